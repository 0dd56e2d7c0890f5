"""A router and the spares of its backends; l(b) = 4 + b ms."""

import msgspec
from router_world import LOST, FakeLink, World, rid
from snapshots import rated

from fermata.deployments.backend.models.model_store import CONTEXT_BYTES, spare_fits
from fermata.deployments.control.page.history import History
from fermata.deployments.control.page.page_frames import live_frame
from fermata.deployments.metrics.families import prometheus_text
from fermata.foundation.units import ms
from fermata.router.links.messages import (
    Done,
    Dropped,
    FleetStatus,
    LoadVariant,
    Ready,
    Run,
    UnloadVariant,
)
from fermata.router.live.snapshot import take_snapshot
from fermata.router.telemetry.snapshot import SpareSnapshot

FIRST, SPARE = 5, 6
WAITS = Ready("emulated", ("v",), spare_of=FIRST)
SERVES = Ready("emulated", ("v",))


def with_spare() -> tuple[World, FakeLink]:
    world = World("eager")
    spare = world.link("backend", SPARE)
    world.hear(spare, WAITS)
    return world, spare


def ran(link: FakeLink) -> list[int]:
    return [each for run in link.take(Run) for each in run.rids]


def test_a_spare_is_given_nothing_and_is_no_capacity() -> None:
    world, spare = with_spare()
    world.submit(*range(1, 40), slo_ns=ms(100))
    world.advance(ms(50))
    assert ran(spare) == []
    told = take_snapshot(world.router)
    assert list(told.backends) == [FIRST]
    assert told.spares == {SPARE: SpareSnapshot(FIRST, "emulated", ["v"])}
    assert told.ranks[0].backends == 1
    assert world.frontend.take(FleetStatus)[-1].backends == 1


def test_page_and_metrics_show_it_as_a_spare() -> None:
    world, _ = with_spare()
    status = rated(world.router, History())
    shown = {each.name: each.state for each in live_frame(status, History(), "here").backends}
    assert shown == {str(FIRST): "idle", str(SPARE): f"spare of {FIRST}"}
    lines = prometheus_text(status).splitlines()
    assert "fermata_spares 1" in lines
    assert 'fermata_backends{subcluster="0"} 1' in lines


def test_a_spare_alone_is_no_backend_either() -> None:
    world, spare = with_spare()
    world.router.on_down(world.backend, LOST)
    world.submit(1)
    world.advance(ms(50))
    assert ran(spare) == []
    assert [each.reason for each in world.frontend.take(Dropped)] == ["no-backend"]


def test_it_runs_what_its_first_held_when_it_died() -> None:
    world, spare = with_spare()
    world.submit(1, slo_ns=ms(100))
    world.advance(ms(1))
    assert ran(world.backend) == [rid(1)]
    world.router.on_down(world.backend, LOST)
    world.submit(2, slo_ns=ms(100))
    world.advance(ms(10))
    world.hear(spare, SERVES)
    world.advance(ms(1))
    runs = spare.take(Run)
    for run in runs:
        world.hear(spare, Done(run.batch, run.plan_ns, 0))
    later = spare.take(Run)
    assert {each for run in [*runs, *later] for each in run.rids} == {rid(1), rid(2)}
    told = take_snapshot(world.router)
    assert list(told.backends) == [SPARE]
    assert told.spares == {}


def test_a_takeover_that_is_heard_before_the_end_of_the_first_ends_that_one() -> None:
    """The two links end and begin in any order."""
    world, spare = with_spare()
    world.submit(1, slo_ns=ms(100))
    world.advance(ms(1))
    assert ran(world.backend) == [rid(1)]
    world.hear(spare, SERVES)
    assert world.backend.closed is not None
    assert ran(spare) == [rid(1)]
    world.router.on_down(world.backend, LOST)
    world.settle()
    told = take_snapshot(world.router)
    assert list(told.backends) == [SPARE]
    assert len(told.lost_backends) == 1
    world.submit(2, slo_ns=ms(100))
    assert ran(world.backend) == []


def test_a_takeover_that_is_heard_first_is_carried_out_while_time_goes_on() -> None:
    """Real clocks do not stand still between two steps of one message."""
    world, spare = with_spare()
    world.submit(1, slo_ns=ms(100))
    world.advance(ms(1))

    def tick() -> int:
        world.now_ns += 1
        return world.now_ns

    world.router.clock = tick
    world.hear(spare, SERVES)
    assert ran(spare) == [rid(1)]
    assert list(take_snapshot(world.router).backends) == [SPARE]


def test_a_word_of_the_ended_one_changes_nothing() -> None:
    world, spare = with_spare()
    world.submit(1, slo_ns=ms(100))
    world.advance(ms(1))
    (run,) = world.backend.take(Run)
    world.hear(spare, SERVES)
    world.hear(world.backend, Done(run.batch, run.plan_ns, 0))
    assert ran(spare) == [rid(1)]
    assert list(take_snapshot(world.router).backends) == [SPARE]


def test_a_spare_that_goes_is_forgotten() -> None:
    world, spare = with_spare()
    world.router.on_down(spare, LOST)
    told = take_snapshot(world.router)
    assert told.spares == {}
    assert list(told.backends) == [FIRST]
    assert told.lost_backends == []


def test_a_spare_that_drains_is_forgotten() -> None:
    world, spare = with_spare()
    world.hear(spare, Ready("emulated", (), spare_of=FIRST))
    assert take_snapshot(world.router).spares == {}


def test_one_that_comes_anew_is_one_spare() -> None:
    world, spare = with_spare()
    again = world.link("backend", SPARE)
    world.hear(again, WAITS)
    world.router.on_down(spare, LOST)
    assert list(take_snapshot(world.router).spares) == [SPARE]


def test_a_spare_comes_to_hold_what_its_first_holds() -> None:
    world = World("eager")
    spare = world.link("backend", SPARE)
    world.hear(spare, Ready("emulated", ("other",), empty=True, spare_of=FIRST))
    assert spare.take(LoadVariant) == [LoadVariant("v")]
    assert spare.take(UnloadVariant) == [UnloadVariant("other")]
    world.hear(spare, WAITS)
    world.hear(world.backend, Ready("emulated", (), empty=True))
    assert spare.take(UnloadVariant) == [UnloadVariant("v")]
    world.hear(spare, Ready("emulated", (), empty=True, spare_of=FIRST))
    world.hear(world.backend, SERVES)
    assert spare.take(LoadVariant) == [LoadVariant("v")]


def test_a_load_that_fails_there_is_not_asked_for_for_ever() -> None:
    world = World("eager")
    spare = world.link("backend", SPARE)
    failed = Ready("emulated", (), (("v", "no room"),), empty=True, spare_of=FIRST)
    world.hear(spare, failed)
    for _ in range(5):
        world.hear(spare, failed)
        world.hear(world.backend, SERVES)
    assert spare.take(LoadVariant) == [LoadVariant("v")]
    # It may be had again once its first has loaded it anew.
    world.hear(world.backend, Ready("emulated", (), empty=True))
    world.hear(world.backend, SERVES)
    assert spare.take(LoadVariant) == [LoadVariant("v")]


def test_a_backend_that_serves_cannot_become_a_spare() -> None:
    world = World("eager")
    world.hear(world.backend, msgspec.structs.replace(WAITS, spare_of=SPARE))
    assert world.backend.closed is not None
    assert world.router.strays == 1


def test_a_spare_has_to_fit_beside_its_first_with_room() -> None:
    total, models = 100 * CONTEXT_BYTES, 20 * CONTEXT_BYTES
    enough = models + CONTEXT_BYTES + total // 10
    assert spare_fits(enough, total, models)
    assert not spare_fits(enough - 1, total, models)
    # Models of unknown size may take all of it.
    assert not spare_fits(total, total, total)
