"""The live router when backends hang, drag, die or drain; l(b) = 4 + b ms."""

import pytest
from router_world import LEFT, LOST, STALE, FakeLink, World, rid
from snapshots import snapshot

from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.health.quarantine import QuarantineRules
from fermata.router.leadership.terms import next_term
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import (
    Done,
    Drained,
    Dropped,
    Ready,
    Retire,
    Run,
    Submit,
    Unavailable,
)
from fermata.router.links.unavailability import UnavailableCause

RULES = QuarantineRules()


def test_a_grant_to_a_backend_that_is_lost_in_the_same_tick_goes_elsewhere() -> None:
    world = World(policy="eager")
    other = world.link("backend", 6)
    world.hear(other, Ready("emulated", ("v",)))
    world.router.on_messages(world.frontend, [Submit(rid(1), "cats", ms(20), ms(20))])
    world.router.on_down(world.backend, LOST)
    world.settle()
    world.advance(1)
    assert world.backend.take(Run) == []
    assert [run.rids for run in other.take(Run)] == [(rid(1),)]


def test_what_was_granted_goes_out_before_the_word_that_nothing_more_comes() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(1)
    [first] = world.backend.take(Run)
    world.submit(2)
    world.advance(1)
    # The end of the first grants the second, and in the same breath the backend wants to go.
    world.hear(world.backend, Done(first.batch, ms(5), 0), Ready("emulated", ()))
    kinds = [type(each) for each in world.backend.said]
    assert kinds.index(Run) < kinds.index(Drained)


def test_a_backend_that_drains_when_it_meets_the_router_is_let_go_at_once() -> None:
    world = World(policy="eager")
    late = world.link("backend", 6)
    world.hear(late, Ready("emulated", ()))
    assert late.take(Drained) == [Drained()]
    assert sorted(world.router.fleet.backends) == [5]


def test_a_batch_that_does_not_end_is_not_run_again_but_the_one_behind_it_is() -> None:
    world = World(policy="eager", lead_ns=ms(1))
    world.submit(1, slo_ns=ms(600))
    world.advance(ms(5.5))
    world.submit(2, slo_ns=ms(600))
    world.advance(1)
    assert [run.rids for run in world.backend.take(Run)] == [(rid(1),), (rid(2),)]
    other = world.link("backend", 6)
    world.hear(other, Ready("emulated", ("v",)))
    # 300 ms and twice the plan of 5 ms, looked for every 75 ms.
    world.advance(ms(305))
    assert world.backend.closed is None
    world.advance(ms(80))
    assert world.backend.closed is not None
    assert world.backend.closed.code is CloseCode.OVERDUE
    assert [run.rids for run in other.take(Run)] == [(rid(2),)]
    [dropped] = world.frontend.take(Dropped)
    assert (dropped.rid, dropped.reason) == (rid(1), DropReason.HUNG)
    assert snapshot(world.router)["hung_backends"] == [5]


def test_who_was_left_out_of_a_batch_runs_again_if_its_frontend_lives() -> None:
    world = World(policy="eager")
    elsewhere = world.link("frontend", 3)
    world.submit(1)
    world.hear(elsewhere, Submit(rid(1, 3), "cats", ms(20), ms(20)))
    world.advance(1)
    [run] = world.backend.take(Run)
    assert run.rids == (rid(1), rid(1, 3))
    world.router.on_down(elsewhere, LOST)
    world.hear(world.backend, Done(run.batch, 0, 0, left_out=run.rids))
    world.advance(1)
    [again] = world.backend.take(Run)
    assert again.rids == (rid(1),)
    # Once: a backend that cannot reach it either is no reason to go on for ever.
    world.hear(world.backend, Done(again.batch, 0, 0, left_out=again.rids))
    assert [each.reason for each in world.frontend.take(Dropped)] == [DropReason.INPUT_LATE]


def test_whose_result_may_be_lost_runs_again() -> None:
    world = World(policy="eager")
    world.submit(1, 2)
    world.advance(1)
    [run] = world.backend.take(Run)
    # The frontend has lost its link to the backend, and asks for the first once more.
    world.submit(1)
    world.advance(1)
    assert world.backend.take(Run) == []
    world.hear(world.backend, Done(run.batch, ms(6), 0))
    world.advance(1)
    assert [each.rids for each in world.backend.take(Run)] == [(rid(1),)]
    assert not world.router.fleet.in_flight.resubmitted


def test_who_is_asked_for_again_in_the_tick_that_granted_it_runs_once() -> None:
    world = World()
    world.submit(1)
    # The second is in a hurry, and the first goes with it.
    hurried, first = (Submit(rid(counter), "cats", ms(6.5), ms(6.5)) for counter in (2, 1))
    world.hear(world.frontend, hurried, first)
    [run] = world.backend.take(Run)
    assert run.rids == (rid(2), rid(1))
    # Nothing of it can have been lost before it was sent.
    world.hear(world.backend, Done(run.batch, ms(6), 0))
    world.advance(ms(20))
    assert world.backend.take(Run) == []
    assert not world.router.engine.outbox.queued


def test_a_backend_that_alone_fails_is_ejected() -> None:
    world = World(policy="eager")
    other = world.link("backend", 6)
    world.hear(other, Ready("emulated", ("v",)))
    for turn in range(2 * RULES.failed_batches):
        # Two at a time: the first goes to backend 5, the second to 6.
        world.submit(2 * turn)
        world.advance(1)
        world.submit(2 * turn + 1)
        world.advance(1)
        for link in (world.backend, other):
            for run in link.take(Run):
                world.hear(link, Done(run.batch, ms(5), 0, "boom" if link.peer.number == 5 else ""))
    ejected = snapshot(world.router)["ejected_backends"]
    assert ejected == {5: "5 batches in a row failed here and ran well elsewhere"}
    assert world.backend.take(Retire) == []


def test_the_last_backend_is_kept_however_bad() -> None:
    world = World(policy="eager")
    for turn in range(3 * RULES.failed_batches):
        world.submit(turn)
        world.advance(1)
        for run in world.backend.take(Run):
            world.hear(world.backend, Done(run.batch, ms(5), 0, "boom"))
    assert world.backend.take(Retire) == []


def test_a_model_that_kills_its_backends_rests_for_a_while() -> None:
    world = World(policy="eager")
    world.submit(0, slo_ns=ms(5000))
    world.advance(1)
    for number in range(10, 10 + RULES.crashes):
        world.router.on_down(world.backend, LOST)
        world.settle()
        world.backend = world.link("backend", number)
        world.hear(world.backend, Ready("emulated", ("v",)))
        world.submit(number, slo_ns=ms(5000))
        world.advance(1)
    reasons = {each.rid: each.reason for each in world.frontend.take(Dropped)}
    assert reasons[rid(10 + RULES.crashes - 1)] == DropReason.QUARANTINED
    [unavailable] = world.frontend.take(Unavailable)[-1].applications.values()
    assert unavailable.cause is UnavailableCause.QUARANTINED
    world.advance(RULES.quarantine_ns)
    assert world.frontend.take(Unavailable)[-1] == Unavailable({})
    world.submit(99)
    world.advance(1)
    assert (rid(99),) in [run.rids for run in world.backend.take(Run)]


@pytest.mark.parametrize(("other_node", "blamed"), [("b", False), ("a", True)])
def test_a_machine_that_is_lost_is_not_the_models_fault(other_node: str, blamed: bool) -> None:
    world = World(policy="eager")
    lost = [FakeLink("backend", number, "a") for number in range(20, 20 + RULES.crashes)]
    for link in (*lost, FakeLink("backend", 30, other_node)):
        world.router.on_up(link)
        world.hear(link, Ready("emulated", ("v",)))
    world.router.on_down(world.backend, LEFT)
    for counter in range(len(lost)):
        world.submit(counter, slo_ns=ms(5000))
        world.advance(1)
    assert all(link.take(Run) for link in lost)
    for link in lost:
        world.router.on_down(link, LOST)
        world.settle()
    world.submit(99, slo_ns=ms(5000))
    world.advance(ms(100))
    reasons = [each.reason for each in world.frontend.take(Dropped)]
    assert (DropReason.QUARANTINED in reasons) == blamed


def test_a_router_that_is_told_of_a_newer_one_stands_down() -> None:
    world = World()
    reasons: list[str] = []
    world.router.stand_down = reasons.append
    world.router.on_refused(world.backend, STALE)
    world.router.on_down(world.backend, STALE)
    assert len(reasons) == 2


def test_a_router_stands_down_for_nobody_whom_the_record_contradicts() -> None:
    world = World()
    reasons: list[str] = []
    asked: list[int] = []
    world.router.stand_down = reasons.append
    world.router.confirm = lambda term, then: asked.append(term)
    world.router.on_down(world.backend, STALE)
    assert asked == [STALE.term]
    assert reasons == []
    assert snapshot(world.router)["stale"] == ""
    # That link is gone all the same.
    assert not world.router.fleet.backends
    world.submit(1)
    assert len(world.router.engine.outbox.queued) == 1


@pytest.mark.parametrize("code", [each for each in CloseCode if each is not CloseCode.STALE])
def test_no_other_end_of_a_link_ends_a_router(code: CloseCode) -> None:
    world = World()
    reasons: list[str] = []
    world.router.stand_down = reasons.append
    for by_peer in (False, True):
        closed = Closed(code, "router term 3 is stale: a newer router has taken over", by_peer)
        world.router.on_refused(world.backend, closed)
        world.router.on_down(world.frontend, closed)
    assert reasons == []


def test_a_backend_that_says_it_is_lost_takes_no_model_with_it() -> None:
    world = World(policy="eager")
    claims = Closed(CloseCode.LOST, "end of file", by_peer=True)
    for number in range(10, 11 + RULES.crashes):
        world.submit(number, slo_ns=ms(5000))
        world.advance(1)
        world.router.on_down(world.backend, claims)
        world.settle()
        world.backend = world.link("backend", number)
        world.hear(world.backend, Ready("emulated", ("v",)))
    assert not world.router.fleet.availability.quarantined


def test_epochs_grow_though_the_clock_is_set_back() -> None:
    first = next_term(1, 5000)
    assert next_term(1, 4000, first) == first + 1
    assert next_term(1, 6000, first) == next_term(1, 6000) > first
    assert next_term(2, 0, first) > first


def test_a_lead_that_grows_makes_what_waits_start_sooner() -> None:
    world = World()
    world.submit(1, slo_ns=ms(8))
    world.advance(ms(2))
    [first] = world.backend.take(Run)
    world.submit(2, slo_ns=ms(20))
    world.advance(ms(6))
    # Fetched 6 ms after it should have started. The second was to start 14 ms after it came, which
    # leaves no time to fetch it: now it goes out 8 ms after, 2 ms from here.
    world.hear(world.backend, Done(first.batch, ms(5), ms(6)))
    world.advance(ms(2))
    assert [run.rids for run in world.backend.take(Run)] == [(rid(2),)]
