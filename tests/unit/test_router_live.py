"""The live router, as frontends and backends see it; l(b) = 4 + b ms."""

from dataclasses import replace

import pytest
from router_world import LEFT, LOST, STALE, TABLE, FakeWake, World, rid
from snapshots import snapshot

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.core.events import DropReason
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import (
    Cancel,
    Done,
    Drained,
    Dropped,
    FleetStatus,
    FrontendAddress,
    FrontendStats,
    LoadVariant,
    Place,
    Ready,
    Run,
    Shares,
    Submit,
    Unavailable,
    UnloadVariant,
)
from fermata.router.links.unavailability import LOADING, UNLOADED
from fermata.router.live.driver import LiveRouter
from fermata.router.live.policy_change import policies_of
from fermata.router.live.requests.submissions import UNKNOWN
from fermata.router.live.subprocess_worker import Failed, Then, Work
from fermata.router.policies.application import ApplicationSpec, VariantSpec


def test_who_pins_another_variant_is_refused_by_name() -> None:
    world = World()
    world.hear(world.frontend, Submit(rid(1), "cats", ms(20), ms(20), pinned="w"))
    assert [each.reason for each in world.frontend.take(Dropped)] == ["floor"]
    world.hear(world.frontend, Submit(rid(2), "cats", ms(20), ms(20), pinned="v"))
    world.advance(ms(20))
    assert [each for each in world.backend.said if isinstance(each, Run)]


def test_requests_run_beside_newcomers_that_still_load() -> None:
    world = World(policy="eager")
    newcomers = [world.link("backend", number) for number in (0, 1, 2, 3, 4, 6, 7, 8)]
    for link in newcomers:
        world.hear(link, Ready("emulated", (), empty=True))
    for counter in range(20):
        world.submit(counter)
        world.advance(ms(1))
        [run] = world.backend.take(Run)
        world.hear(world.backend, Done(run.batch, ms(5), 0))
    # The first that has loaded it takes its share.
    world.hear(newcomers[7], Ready("emulated", ("v",)))
    world.submit(20)
    world.advance(ms(1))
    world.submit(21)
    world.advance(ms(1))
    runs = [link.take(Run) for link in (*newcomers, world.backend)]
    assert [len(each) for each in runs] == [0] * 7 + [1, 1]


def test_frontends_hear_who_is_there_whenever_that_changes() -> None:
    world = World()
    assert world.frontend.take(FleetStatus) == [FleetStatus(1, 1)]
    second = world.link("backend", 6)
    world.hear(second, Ready("emulated", ("v",)))
    world.hear(second, Ready("emulated", ("v",)))
    other = world.link("frontend", 3)
    world.settle()
    assert world.frontend.take(FleetStatus) == [FleetStatus(1, 2), FleetStatus(2, 2)]
    assert other.take(FleetStatus) == [FleetStatus(2, 2)]
    # One that drains gets nothing more, and counts no more.
    world.hear(second, Ready("emulated", ()))
    world.router.on_down(world.backend, LOST)
    world.settle()
    assert other.take(FleetStatus) == [FleetStatus(2, 1), FleetStatus(2, 0, ("cats",))]
    world.router.on_down(world.frontend, LOST)
    world.settle()
    assert other.take(FleetStatus) == [FleetStatus(1, 0, ("cats",))]
    # Whoever comes anew has not heard what was said before.
    anew = world.link("frontend", 3)
    world.settle()
    assert anew.take(FleetStatus) == [FleetStatus(1, 0, ("cats",))]


def test_a_backend_that_comes_anew_before_its_old_link_ends_still_holds_its_models() -> None:
    world = World()
    world.frontend.take(FleetStatus)
    anew = world.link("backend", 5)
    world.hear(anew, Ready("emulated", ("v",), limits=(("v", 4),)))
    assert world.frontend.take(FleetStatus) == []
    assert world.router.fleet.availability.held == {5: frozenset({"v"})}
    assert world.router.fleet.batch_limits.told == {5: {0: 4}}
    # The end of the old link is nobody's loss any more.
    world.router.on_down(world.backend, LOST)
    world.settle()
    assert list(world.router.fleet.backends) == [5]


def test_a_report_is_answered_with_parts_of_tenants_rates_where_they_are_shared() -> None:
    world = World()
    stats = FrontendStats((), tenants=(("cameras", {"good": 40, "rate": 60}),))
    world.hear(world.frontend, stats)
    assert world.frontend.take(Shares) == []
    other = world.link("frontend", 3)
    world.hear(other, FrontendStats(()))
    (shares,) = other.take(Shares)
    assert shares.tenants == {"cameras": pytest.approx(0.01 / 1.02)}
    world.hear(world.frontend, stats)
    (shares,) = world.frontend.take(Shares)
    assert shares.tenants == {"cameras": pytest.approx(1.01 / 1.02)}


def test_tables_that_cannot_be_made_are_told_of_and_tried_again() -> None:
    asked: list[tuple[Work, Then]] = []
    variants = (VariantSpec("v", TABLE, accuracy=0.7), VariantSpec("w", TABLE, accuracy=0.8))
    application = ApplicationSpec("cats", ms(20), variants)
    world = World()
    world.router = LiveRouter(
        RouterConfig((application,), "ramsis", lead_ns=0),
        3,
        lambda: world.now_ns,
        world.soon.append,
        world._wake,
        lambda work, then: asked.append((work, then)),
    )
    world.wakes[0] = world.wakes[1]
    world.frontend, world.backend = world.link("frontend", 2), world.link("backend", 5)
    world.hear(world.backend, Ready("emulated", ("v", "w")))
    world.advance(ms(60))
    asked.pop()[1](Failed("ended with status 1"))
    world.settle()
    told = snapshot(world.router)["policies"]["cats"]
    assert told == {
        "figures": {"table_failures": 1.0},
        "trouble": "ended with status 1",
        "promise": None,
        "name": "ramsis",
    }
    world.advance(ms(1100))
    work, then = asked.pop()
    then(work())
    world.settle()
    told = snapshot(world.router)["policies"]["cats"]
    assert told["trouble"] == ""
    assert told["figures"]["promised_accuracy"] == pytest.approx(0.8)


def test_holds_until_one_more_would_not_fit_then_tells_the_backend_whom_to_ask() -> None:
    world = World()
    world.submit(1, 2, 3)
    # Deadline 20 ms less l(4) = 8 ms.
    world.advance(ms(12) - 1)
    assert world.backend.said == []
    world.advance(1)
    assert world.backend.said == [
        FrontendAddress(2, "host:2", "node"),
        Run(1, "v", (rid(1), rid(2), rid(3)), 0, ms(7)),
    ]


def test_burst_of_one_tick_is_one_batch_even_when_nothing_is_held() -> None:
    world = World(policy="eager")
    link = world.link("frontend", 9)
    world.router.on_messages(world.frontend, [Submit(rid(1), "cats", ms(20), ms(20))])
    world.router.on_messages(link, [Submit(rid(1, 9), "cats", ms(20), ms(20))])
    world.now_ns += 10
    world.settle()
    [run] = world.backend.take(Run)
    assert run.rids == (rid(1), rid(1, 9))


def test_done_frees_the_backend_and_counts() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(1)
    [first] = world.backend.take(Run)
    world.submit(2)
    world.advance(ms(5))
    world.hear(world.backend, Done(first.batch, ms(5), 0))
    assert [run.rids for run in world.backend.take(Run)] == [(rid(2),)]
    assert world.backend.take(FrontendAddress) == [FrontendAddress(2, "host:2", "node")]
    wanted = {"requests": 2, "good": 1, "late": 0, "dropped": {}}
    assert {key: world.application()[key] for key in wanted} == wanted


def test_done_of_another_batch_cuts_the_link() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(1)
    world.hear(world.backend, Done(99, ms(5), 0))
    assert world.backend.closed == Closed(
        CloseCode.MALFORMED, "batch 99 ended, which does not run here"
    )


def test_hopeless_requests_are_dropped_with_a_hint() -> None:
    world = World()
    world.submit(1, slo_ns=ms(3))
    [dropped] = world.frontend.take(Dropped)
    assert (dropped.rid, dropped.reason) == (rid(1), "late")
    assert dropped.retry_after_ns == ms(20)


def test_unknown_application_is_told_at_once() -> None:
    world = World()
    world.submit(1, application="dogs")
    assert world.frontend.take(Dropped) == [Dropped(rid(1), UNKNOWN)]


def test_cancel_frees_the_place_without_a_word() -> None:
    world = World()
    world.frontend.take(FleetStatus)
    world.submit(1, 2)
    world.hear(world.frontend, Cancel(rid(1)))
    world.advance(ms(20))
    assert [run.rids for run in world.backend.take(Run)] == [(rid(2),)]
    assert world.frontend.said == []


def test_lost_frontend_takes_its_queued_requests_with_it() -> None:
    world = World()
    other = world.link("frontend", 9)
    world.hear(other, Submit(rid(1, 9), "cats", ms(20), ms(20)))
    world.submit(1)
    world.router.on_down(world.frontend, LOST)
    world.advance(ms(20))
    assert [run.rids for run in world.backend.take(Run)] == [(rid(1, 9),)]


def test_lost_backend_has_its_batch_run_elsewhere() -> None:
    world = World(policy="eager")
    spare = world.link("backend", 6)
    world.hear(spare, Ready("emulated", ("v",)))
    world.submit(1)
    world.advance(1)
    assert len(world.backend.take(Run)) == 1
    world.router.on_down(world.backend, LOST)
    world.settle()
    world.advance(1)
    assert [run.rids for run in spare.take(Run)] == [(rid(1),)]


def test_frontend_that_submits_once_more_is_not_run_twice() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(1)
    again = world.link("frontend", 2)
    assert world.frontend.closed == Closed(CloseCode.SUPERSEDED, "frontend 2 has come anew")
    world.router.on_down(world.frontend, LEFT)
    world.hear(again, Submit(rid(1), "cats", ms(15), ms(15)))
    world.advance(ms(15))
    assert len(world.backend.take(Run)) == 1


def test_backend_that_comes_back_before_its_end_was_seen_starts_afresh() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(1)
    again = world.link("backend", 5)
    world.hear(again, Ready("emulated", ("v",)))
    world.advance(1)
    assert [run.rids for run in again.take(Run)] == [(rid(1),)]
    world.router.on_down(world.backend, LOST)
    world.hear(again, Done(2, ms(5), 0))
    assert world.application()["good"] == 1


def test_each_kind_of_backend_has_run_times_of_its_own() -> None:
    world = World(policy="eager")
    slow = tuple(2 * each for each in TABLE)
    other = world.link("backend", 6)
    world.hear(other, Ready("slow", ("v",), costs=(("v", slow, slow),)))
    third = world.link("backend", 7)
    world.hear(third, Ready("slow", ("v",)))
    unmeasured = world.link("backend", 8)
    world.hear(unmeasured, Ready("configured", ("v",)))
    for counter, link in ((1, world.backend), (2, unmeasured), (3, other), (4, third)):
        world.submit(counter, slo_ns=ms(100))
        world.advance(1)
        (run,) = link.take(Run)
        assert run.plan_ns == (ms(10) if link in (other, third) else ms(5))


def test_an_application_that_no_backend_has_is_told_to_frontends() -> None:
    world = World(policy="eager")
    assert world.frontend.take(Unavailable) == []
    world.hear(world.frontend, Place("cats", False))
    assert world.backend.take(UnloadVariant) == [UnloadVariant("v")]
    assert world.frontend.take(Unavailable) == [Unavailable({"cats": UNLOADED})]
    late = world.link("frontend", 3)
    assert late.take(Unavailable) == [Unavailable({"cats": UNLOADED})]
    world.hear(world.frontend, Place("cats", True))
    assert world.backend.take(LoadVariant) == [LoadVariant("v")]
    assert late.take(Unavailable) == [Unavailable({"cats": LOADING})]
    world.hear(world.backend, Ready("emulated", ("v", "w")))
    assert late.take(Unavailable) == [Unavailable({})]


def test_a_backend_that_drains_is_told_when_nothing_more_will_come() -> None:
    world = World(policy="eager")
    world.hear(world.backend, Ready("emulated", ()))
    assert world.backend.take(Drained) == [Drained()]
    world.submit(1)
    world.advance(1)
    assert world.backend.take(Run) == []


def test_a_backend_with_nothing_loaded_does_not_drain() -> None:
    world = World(policy="eager")
    world.hear(world.backend, Ready("emulated", (), empty=True))
    assert world.frontend.take(Unavailable) == [Unavailable({"cats": UNLOADED})]
    world.hear(world.backend, Ready("emulated", ("v",)))
    world.submit(1)
    world.advance(1)
    assert [run.rids for run in world.backend.take(Run)] == [(rid(1),)]


def test_what_is_loaded_late_runs_what_waited_for_it() -> None:
    world = World(policy="eager")
    world.hear(world.backend, Ready("emulated", ("other",)))
    world.submit(1)
    world.advance(1)
    assert world.backend.take(Run) == []
    world.hear(world.backend, Ready("emulated", ("v",)))
    assert [run.rids for run in world.backend.take(Run)] == [(rid(1),)]


def test_ready_for_nothing_drains() -> None:
    world = World(policy="eager")
    world.hear(world.backend, Ready("emulated", ()))
    world.submit(1)
    world.advance(ms(20))
    assert world.backend.take(Run) == []
    assert world.frontend.take(Dropped)[0].reason == "no-backend"


def test_failed_batch_counts_as_failed() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(1)
    world.hear(world.backend, Done(1, ms(1), 0, "boom"))
    assert world.application()["dropped"] == {DropReason.FAILED: 1}
    assert world.application()["good"] == 0
    assert snapshot(world.router)["variants"][0]["margin_factor"] == 1.0


def test_lead_time_is_learnt_from_late_starts_and_the_way_there() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(1)
    # Fetched in 2 ms; 3 ms more went by than run and fetch explain: 1.5 each way.
    world.advance(ms(10) - 1)
    world.hear(world.backend, Done(1, ms(5), ms(2)))
    assert snapshot(world.router)["lead_ns"] == pytest.approx(ms(3.5), abs=1000)


def test_only_its_own_words_are_taken_from_a_peer() -> None:
    world = World()
    world.hear(world.frontend, Ready("emulated", ("v",)))
    assert world.frontend.closed == Closed(CloseCode.WRONG_ROLE, "Ready from a frontend")


def test_router_that_is_told_of_a_newer_one_knows_that_it_is_stale() -> None:
    world = World()
    world.router.on_refused(world.backend, STALE)
    assert snapshot(world.router)["stale"] != ""


@pytest.mark.parametrize(
    ("applications", "word"),
    [
        ((), "applications is empty"),
        ((ApplicationSpec("a", 1, ()),), "has no variants"),
        ((ApplicationSpec("a", 1, (VariantSpec("v", ()),)),), "has no run times"),
        ((ApplicationSpec("a", 1, (VariantSpec("v", TABLE),), "w"),), "serving='w'"),
        ((ApplicationSpec("a", 1, (VariantSpec("v", TABLE),)),) * 2, "there twice"),
    ],
)
def test_configuration_that_cannot_work_is_refused(
    applications: tuple[ApplicationSpec, ...], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        LiveRouter(RouterConfig(applications), 1, lambda: 0, print, FakeWake)


def test_policies_change_while_requests_wait_and_run() -> None:
    world = World()
    world.submit(1, 2)
    world.advance(ms(13))
    (run,) = world.backend.take(Run)
    world.submit(3, 4)
    eager = policies_of(RouterConfig(world.router.config.applications, "eager"))
    assert world.router.set_policies(eager) == ["cats"]
    world.advance(ms(1))
    world.hear(world.backend, Done(run.batch, ms(6), 0))
    # Those who wait are held no longer, and the batch before has ended as ever.
    (run,) = world.backend.take(Run)
    assert run.rids == (rid(3), rid(4))
    world.hear(world.backend, Done(run.batch, ms(6), 0))
    told = snapshot(world.router)["applications"]["cats"]
    assert (told["good"], told["late"], told["dropped"]) == (4, 0, {})


def test_tables_that_come_after_their_policy_has_gone_are_left_aside() -> None:
    asked: list[tuple[Work, Then]] = []
    variants = (VariantSpec("v", TABLE, accuracy=0.7), VariantSpec("w", TABLE, accuracy=0.8))
    config = RouterConfig((ApplicationSpec("cats", ms(20), variants),), "ramsis", lead_ns=0)
    world = World()
    world.router = LiveRouter(
        config,
        3,
        lambda: world.now_ns,
        world.soon.append,
        world._wake,
        lambda work, then: asked.append((work, then)),
    )
    world.wakes[0] = world.wakes[1]
    world.frontend, world.backend = world.link("frontend", 2), world.link("backend", 5)
    world.hear(world.backend, Ready("emulated", ("v", "w")))
    world.advance(ms(60))
    work, then = asked.pop()
    assert world.router.set_policies(policies_of(replace(config, policy="routing"))) == ["cats"]
    then(work())
    world.submit(1)
    world.settle()
    assert len(world.backend.take(Run)) == 1
