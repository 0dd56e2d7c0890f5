"""Reasons of drops while the only backend does not end its batch; l(b) = 4 + b ms."""

from typing import Any

import pytest
from router_world import LOST, TABLE, FakeLink, World, rid

from fermata.foundation.units import ms
from fermata.partitioner.plan import Plan
from fermata.router.assembly import RouterConfig
from fermata.router.core.events import Drop, DropReason, Request
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.links.messages import Done, Dropped, Ready, Run
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec

SPARE = 6
STEP_NS = ms(1) // 4
TRUE = {DropReason.LOST, DropReason.NO_BACKEND}


@pytest.mark.parametrize("rate_rps", [150, 300, 600])
@pytest.mark.parametrize("silent_ms", [3, 17, 60, 150, 280])
@pytest.mark.parametrize("killed_at_ms", [100, 103, 106])
def test_a_death_that_shows_later_is_the_reason_from_the_first_drop_on(
    rate_rps: int, silent_ms: int, killed_at_ms: int
) -> None:
    """The process is killed, and its link ends only when the kernel has taken it apart."""
    world, backend_free_at_ns = World(hold="auto"), 0
    spare = world.link("backend", SPARE)
    world.hear(spare, Ready("emulated", ("v",), spare_of=5))
    began_ns, sent, why = world.now_ns, 0, list[Dropped]()
    running: list[tuple[int, Run]] = []
    while world.now_ns < began_ns + ms(killed_at_ms + silent_ms):
        past_ns = world.now_ns - began_ns
        while sent < rate_rps * past_ns / 1e9:
            sent += 1
            world.submit(sent, slo_ns=ms(20))
        for run in world.backend.take(Run):
            backend_free_at_ns = max(world.now_ns, backend_free_at_ns) + ms(4 + len(run.rids))
            running.append((backend_free_at_ns, run))
        while past_ns < ms(killed_at_ms) and running and running[0][0] <= world.now_ns:
            ended = running.pop(0)[1]
            world.hear(world.backend, Done(ended.batch, ms(4 + len(ended.rids)), 0))
        why += world.frontend.take(Dropped)
        world.advance(STEP_NS)
    world.router.on_down(world.backend, LOST)
    world.hear(spare, Ready("emulated", ("v",)))
    why += world.frontend.take(Dropped)
    assert {each.reason for each in why} <= TRUE
    assert len({each.rid for each in why}) == len(why)
    assert world.router.doubtful.held == {}


def late_batch() -> World:
    """A batch of one that was to end after 5 ms, and a second request that waited for it."""
    world = World("deferred", hold="eager")
    world.submit(1, slo_ns=ms(40))
    world.advance(ms(1))
    world.submit(2, slo_ns=ms(15))
    world.advance(ms(12))
    return world


def test_the_reason_stays_where_the_batch_ends_after_all() -> None:
    world = late_batch()
    (run,) = world.backend.take(Run)[:1]
    assert world.frontend.take(Dropped) == [], "not known yet"
    world.hear(world.backend, Done(run.batch, ms(12), 0))
    (told,) = world.frontend.take(Dropped)
    assert (told.rid, told.reason) in {(rid(2), DropReason.LATE), (rid(2), DropReason.WINDOW)}


def test_the_answer_comes_by_the_deadline_though_nothing_is_known() -> None:
    world = late_batch()
    world.advance(ms(3))
    (told,) = world.frontend.take(Dropped)
    assert (told.rid, told.reason) == (rid(2), DropReason.NO_BACKEND)


def test_a_request_that_is_sent_again_meanwhile_is_answered_once() -> None:
    world = late_batch()
    world.submit(2, slo_ns=ms(3))
    world.router.on_down(world.backend, LOST)
    world.settle()
    (told,) = [each for each in world.frontend.take(Dropped) if each.rid == rid(2)]
    assert told.reason == DropReason.NO_BACKEND


class TwoModels(World):
    """Two applications with a model each, and backends that hold both or one at a time."""

    def __init__(
        self,
        *policies: str,
        swap_in_ns: int | None = None,
        backends: int = 1,
        moves: bool = False,
    ) -> None:
        self.now_ns = ms(1000)
        self.soon, self.wakes = [], []
        applications = tuple(
            ApplicationSpec(
                name,
                ms(20),
                (VariantSpec(name[0], TABLE, accuracy=0.5, swap_in_ns=swap_in_ns),),
                policy=policy,
            )
            for name, policy in zip(("cats", "dogs"), policies, strict=True)
        )
        config = RouterConfig(applications, lead_ns=0, swap=swap_in_ns is not None, moves=moves)
        self.router = LiveRouter(config, 3, lambda: self.now_ns, self.soon.append, self._wake)
        self.frontend = self.link("frontend", 2)
        self.backends: list[FakeLink] = []
        for number in range(5, 5 + backends):
            self.backends.append(self.link("backend", number))
            self.hear(self.backends[-1], Ready("emulated", ("c", "d")))


def test_a_batch_of_another_model_on_time_is_no_reason_to_wait() -> None:
    world = TwoModels("deferred", "deferred", swap_in_ns=ms(3))
    world.submit(*range(1, 17), slo_ns=ms(60))
    world.advance(ms(1))
    (run,) = world.backends[0].take(Run)
    world.submit(17, application="dogs", slo_ns=ms(18))
    world.advance(ms(17))
    (told,) = world.frontend.take(Dropped)
    assert (told.rid, told.reason) == (rid(17), DropReason.LATE)
    assert run.plan_ns == ms(20 + 3)


@pytest.mark.parametrize("mine", ["cats", "dogs"])
def test_backends_of_another_owner_are_not_counted_on(mine: str) -> None:
    """The pool serves one of two applications, and the other one has a backend of its own."""
    world = TwoModels("deferred", "single-queue", backends=2)
    world.submit(1, application=mine, slo_ns=ms(100))
    world.advance(ms(99))
    assert sum(len(each.take(Run)) for each in world.backends) == 1
    world.advance(ms(2))
    for counter, name in enumerate(("cats", "dogs"), 2):
        application = world.router.built.applications[name]
        request = Request(rid(counter), application, world.now_ns, world.now_ns + ms(20))
        held = world.router.doubtful.hold(world.now_ns, Drop(request, DropReason.LATE))
        assert held == (name == mine)


def test_a_late_backend_that_is_to_go_is_not_waited_for() -> None:
    world = late_batch()
    world.hear(world.backend, Ready("emulated", ()))
    (told,) = world.frontend.take(Dropped)
    assert (told.rid, told.reason) == (rid(2), DropReason.NO_BACKEND)


@pytest.mark.parametrize("ends", [True, False])
def test_answers_come_in_the_order_of_their_deadlines(ends: bool) -> None:
    """Whichever was held back first; an end of the batch gives the reasons of those left."""
    world = late_batch()
    now_ns, doubtful = world.now_ns, world.router.doubtful
    for counter, left_ms in ((3, 9), (4, 5), (5, 7)):
        request = Request(rid(counter), 0, now_ns, now_ns + ms(left_ms))
        assert doubtful.hold(now_ns, Drop(request, DropReason.SHED))
    world.hear(world.frontend)
    world.advance(ms(6))
    assert [each.rid for each in world.frontend.take(Dropped)] == [rid(2), rid(4)]
    if ends:
        (run,) = world.backend.take(Run)[:1]
        world.hear(world.backend, Done(run.batch, ms(19), 0))
        told = {each.rid: each.reason for each in world.frontend.take(Dropped)}
        assert told == {rid(3): DropReason.SHED, rid(5): DropReason.SHED}
    world.advance(ms(10))
    assert len(world.frontend.take(Dropped)) == (0 if ends else 2)
    assert world.router.doubtful.held == {}


def moving() -> TwoModels:
    """A batch of cats that was to end after 5 ms, and now should have."""
    world = TwoModels("deferred", "deferred", moves=True)
    world.submit(1, slo_ns=ms(40))
    world.advance(ms(41))
    return world


def late(world: World, counter: int) -> Drop:
    request = Request(rid(counter), 0, world.now_ns, world.now_ns + ms(9))
    return Drop(request, DropReason.LATE)


def test_answers_of_an_application_that_goes_away_are_handed_back_at_once() -> None:
    world = moving()
    assert world.router.doubtful.hold(world.now_ns, late(world, 2))
    world.router.place(Plan({"dogs": 0}))
    world.settle()
    (told,) = world.frontend.take(Dropped)
    assert (told.rid, told.reason) == (rid(2), DropReason.MOVED)
    world.submit(2, slo_ns=ms(9))
    assert len(world.frontend.take(Dropped)) == 1, "there is no cat here"
    world.advance(ms(10))
    assert world.frontend.take(Dropped) == []
    assert world.router.doubtful.held == {}


def test_a_drop_that_is_read_after_its_application_has_gone_does_not_wait() -> None:
    world = moving()
    world.router.engine.outbox.effects.append(late(world, 2))
    world.router.place(Plan({"dogs": 0}))
    world.settle()
    assert [each.rid for each in world.frontend.take(Dropped)] == [rid(2)]
    assert world.router.doubtful.held == {}


class CountedBackends(dict[int, BackendState]):
    """Counts how often all of them are looked at."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def counted(world: World) -> CountedBackends:
    (rank,) = world.router.engine.ranks
    rank.backends = CountedBackends(rank.backends)
    return rank.backends


def drop_of(world: World, number: int) -> Drop:
    return Drop(Request(rid(number), 0, world.now_ns, world.now_ns + ms(50)), DropReason.LATE)


def test_drops_do_not_look_at_every_backend_while_one_is_in_time() -> None:
    world = World("deferred", hold="eager")
    for number in range(6, 40):
        world.hear(world.link("backend", number), Ready("emulated", ()))
    backends, doubtful = counted(world), world.router.doubtful
    for number in range(100):
        assert not doubtful.hold(world.now_ns, drop_of(world, number))
    assert backends.looks == 1


def test_drops_do_not_look_at_every_backend_while_all_are_overdue() -> None:
    world = late_batch()
    backends, doubtful = counted(world), world.router.doubtful
    assert doubtful.held
    for number in range(100, 200):
        assert doubtful.hold(world.now_ns, drop_of(world, number))
    assert backends.looks <= 1
