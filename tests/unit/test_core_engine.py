"""The engine: backends that go, requests that are cancelled or lost, and what is counted."""

import pytest
from told import Told, advance, dropped, make, ran, send

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Blame, Drop, DropReason, Verdict
from fermata.router.core.matching.matcher import RULES


def test_engine_never_asks_to_be_woken_in_the_past() -> None:
    engine = make(Told(), lead_ns=ms(10))
    send(engine, 0)
    send(engine, 1, ms(1))
    # It runs from 10 to 15 ms and the next one from 15 to 20, so that one is due at 10.
    advance(engine, ms(15))
    engine.on_done(ms(15), 0, ms(5))
    assert engine.wake_at_ns() >= ms(15)


def test_draining_backend_finishes_and_is_given_nothing_more() -> None:
    engine = make(Told())
    send(engine, 0)
    engine.on_drain(ms(1), 0)
    send(engine, 1, ms(2))
    assert engine.on_done(ms(5), 0, ms(5)).requests[0].rid == 0
    advance(engine, ms(10))
    assert ran(engine) == [(0, 0, [0])]
    engine.on_backend_down(ms(10), 0)
    assert dropped(engine) == []
    engine.on_backend_up(ms(11), 1)
    assert ran(engine) == [(1, 11, [1])]


def test_requests_of_a_lost_backend_run_once_more() -> None:
    engine = make(Told(), lead_ns=ms(2))
    send(engine, 0)
    advance(engine, ms(5))
    send(engine, 1, ms(5))
    assert ran(engine) == [(0, 2, [0]), (0, 7, [1])]
    engine.on_backend_up(ms(6), 1)
    # Both the running batch and the waiting one come back, the running one first.
    engine.on_backend_down(ms(6), 0)
    advance(engine, ms(11))
    assert ran(engine) == [(1, 8, [0]), (1, 13, [1])]
    engine.on_done(ms(13), 1, ms(5))
    engine.on_done(ms(18), 1, ms(5))
    assert engine.ledger.applications[0].good == 2


def test_request_lost_twice_is_dropped() -> None:
    engine = make(Told(), backends=3)
    send(engine, 0)
    engine.on_backend_down(ms(1), 0)
    assert ran(engine) == [(0, 0, [0]), (1, 1, [0])]
    engine.on_backend_down(ms(2), 1)
    assert dropped(engine) == [(0, DropReason.LOST)]
    assert engine.ledger.applications[0].drops == {DropReason.LOST: 1}
    assert not engine.outbox.queued


def test_request_lost_after_its_deadline_is_dropped() -> None:
    engine = make(Told(), backends=2)
    send(engine, 0)
    engine.take_effects()
    engine.on_backend_down(ms(100), 0)
    assert dropped(engine) == [(0, DropReason.LOST)]


def test_failed_dispatch_is_a_lost_backend() -> None:
    engine = make(Told(), backends=2)
    send(engine, 0)
    engine.on_dispatch_failed(ms(1), 0)
    assert ran(engine) == [(0, 0, [0]), (1, 1, [0])]
    assert list(engine.backend_rank) == [1]


def test_cancelled_request_frees_its_place() -> None:
    source = Told()
    engine = make(source, backends=0)
    send(engine, 0)
    send(engine, 1)
    assert engine.on_cancel(ms(1), 0)
    assert dropped(engine) == [(0, DropReason.CANCELLED)]
    assert not engine.on_cancel(ms(2), 0)
    engine.on_backend_up(ms(3), 0)
    assert ran(engine) == [(0, 3, [1])]
    # No fault of ours, so not a bad one.
    assert engine.ledger.applications[0].bad == 0


def test_last_cancelled_request_takes_the_bid_with_it() -> None:
    engine = make(Told(), backends=0)
    send(engine, 0)
    engine.on_cancel(ms(1), 0)
    engine.take_effects()
    engine.on_backend_up(ms(2), 0)
    assert engine.take_effects() == []
    assert engine.wake_at_ns() == NEVER


def test_running_request_cannot_be_cancelled() -> None:
    engine = make(Told())
    send(engine, 0)
    assert not engine.on_cancel(ms(1), 0)
    assert engine.on_done(ms(5), 0, ms(5)).requests[0].rid == 0
    assert engine.ledger.applications[0].good == 1


def test_unknown_request_is_neither_cancelled_nor_updated() -> None:
    engine = make(Told())
    assert not engine.on_cancel(0, 99)
    assert not engine.on_update(0, 99, (0.5,))
    assert engine.take_effects() == []


def test_evidence_reaches_the_source_while_the_request_is_queued() -> None:
    source = Told()
    engine = make(source, backends=0)
    send(engine, 0)
    assert engine.on_update(ms(1), 0, (0.4, 0.9))
    assert source.evidence == [(0.4, 0.9)]
    engine.on_backend_up(ms(2), 0)
    assert not engine.on_update(ms(3), 0, (0.1, 0.1))


def test_ledger_tells_good_from_late() -> None:
    engine = make(Told())
    send(engine, 0)
    send(engine, 1)
    engine.on_done(ms(100), 0, ms(5))
    engine.on_done(ms(100) + 1, 0, ms(5))
    count = engine.ledger.applications[0]
    assert (count.good, count.late, count.bad) == (1, 1, 1)


def test_effects_are_handed_out_once() -> None:
    engine = make(Told())
    send(engine, 0)
    assert len(engine.take_effects()) == 1
    assert engine.take_effects() == []


def test_ranks_do_not_share_backends() -> None:
    costs = Costs()
    costs.add(0, [ms(5)])
    engine = Engine(costs, ranks=2)
    engine.add_application(Told(), rank=0)
    engine.add_application(Told(), rank=1)
    engine.on_backend_up(0, 5, rank=1)
    send(engine, 0, application=0)
    send(engine, 1, application=1)
    assert ran(engine) == [(5, 0, [1])]
    assert engine.ranks[0].signals.backends == 0


def test_failed_batch_teaches_nothing_and_is_counted_so() -> None:
    engine = make(Told())
    send(engine, 0)
    engine.on_done(ms(50), 0, ms(50), failed="boom")
    assert engine.costs.of(0).batches == 0
    assert engine.ledger.applications[0].drops == {DropReason.FAILED: 1}
    assert engine.ledger.applications[0].good == 0


def fail(engine: Engine, backend: int, now_ns: int) -> None:
    """The batch that runs there gives no results, and nobody in it has an answer."""
    running = engine.backend(backend).running
    assert running is not None
    engine.on_done(now_ns, backend, 0, failed="boom", left_out=list(running.requests))


def leave_out(engine: Engine, backend: int, now_ns: int) -> None:
    """The batch that runs there runs without anybody, since no input came."""
    running = engine.backend(backend).running
    assert running is not None
    engine.on_done(now_ns, backend, 0, size=0, left_out=list(running.requests))


def test_a_request_whose_input_is_late_runs_once_more_and_is_then_told_so() -> None:
    engine = make(Told(), backends=1)
    send(engine, 0)
    for now_ns in (ms(10), ms(20)):
        leave_out(engine, 0, now_ns)
    assert ran(engine) == [(0, 0, [0]), (0, 10, [0])]
    assert engine.ledger.applications[0].drops == {DropReason.INPUT_LATE: 1}
    assert not engine.outbox.queued


@pytest.mark.parametrize("first", ["died", "late"])
def test_a_late_input_and_a_backend_that_died_are_each_forgiven_once(first: str) -> None:
    engine = make(Told(), backends=4)
    send(engine, 0)
    if first == "died":
        engine.on_backend_down(ms(1), 0)
        leave_out(engine, 1, ms(2))
    else:
        leave_out(engine, 0, ms(1))
        engine.on_backend_down(ms(2), 0)
    runs = ran(engine)
    assert [each[2] for each in runs] == [[0], [0], [0]]
    last = runs[-1][0]
    # It may have killed the first one: it runs alone, whatever else waits.
    leave_out(engine, last, ms(3))
    assert engine.ledger.applications[0].drops == {DropReason.INPUT_LATE: 1}
    assert not engine.outbox.queued


def test_one_that_may_have_killed_a_backend_stays_alone_when_its_input_is_late() -> None:
    engine = make(Told(), backends=2)
    send(engine, 0)
    engine.on_backend_down(ms(1), 0)
    send(engine, 1)
    leave_out(engine, 1, ms(2))
    engine.on_done(ms(7), 1, ms(5))
    assert all(len(each[2]) == 1 for each in ran(engine))


def verdicts(engine: Engine) -> list[tuple[int, str]]:
    return [
        (effect.backend, effect.blame)
        for effect in engine.take_effects()
        if isinstance(effect, Verdict)
    ]


def test_failed_batch_runs_once_more_on_another_backend() -> None:
    engine = make(Told(), backends=3)
    send(engine, 0)
    fail(engine, 0, ms(1))
    assert ran(engine) == [(0, 0, [0]), (1, 1, [0])]
    engine.on_done(ms(6), 1, ms(5))
    assert verdicts(engine) == [(0, Blame.BACKEND)]
    assert engine.ledger.applications[0].good == 1
    assert not engine.ledger.applications[0].drops


def test_what_fails_elsewhere_too_is_dropped_with_its_error() -> None:
    engine = make(Told(), backends=3)
    send(engine, 0)
    fail(engine, 0, ms(1))
    engine.take_effects()
    fail(engine, 1, ms(2))
    verdict, drop = engine.take_effects()
    assert isinstance(verdict, Verdict)
    assert (verdict.backend, verdict.blame) == (0, Blame.INPUT)
    assert isinstance(drop, Drop)
    assert (drop.reason, drop.request.error) == (DropReason.FAILED, "boom")
    assert not engine.outbox.queued
    assert engine.ledger.applications[0].drops == {DropReason.FAILED: 1}


def test_failed_batch_is_tried_where_the_last_one_ran_well() -> None:
    engine = make(Told(), backends=4)
    send(engine, 0)
    fail(engine, 0, ms(1))
    fail(engine, 1, ms(2))
    engine.take_effects()
    # Backends 0 and 1 come last now, and are not asked for help.
    send(engine, 1, ms(3))
    fail(engine, 2, ms(4))
    assert ran(engine) == [(2, 3, [1]), (3, 4, [1])]


def test_alone_a_backend_has_its_failures_told_at_once() -> None:
    engine = make(Told(), backends=1)
    send(engine, 0)
    engine.take_effects()
    fail(engine, 0, ms(1))
    assert [type(each).__name__ for each in engine.take_effects()] == ["Verdict", "Drop"]
    assert engine.ledger.applications[0].drops == {DropReason.FAILED: 1}


def test_retry_ends_when_nobody_else_is_left() -> None:
    engine = make(Told(), backends=2)
    send(engine, 0)
    send(engine, 1)
    fail(engine, 0, ms(1))
    assert 0 in engine.outbox.queued
    engine.on_drain(ms(2), 1)
    effects = engine.take_effects()
    assert [each.reason for each in effects if isinstance(each, Drop)] == [DropReason.FAILED]
    assert 0 not in engine.outbox.queued


def test_retry_whose_client_leaves_is_gone() -> None:
    engine = make(Told(), backends=2)
    send(engine, 0)
    send(engine, 1)
    fail(engine, 0, ms(1))
    engine.take_effects()
    assert engine.on_update(ms(2), 0, (0.5,))
    assert engine.on_cancel(ms(2), 0)
    assert [type(each).__name__ for each in engine.take_effects()] == ["Verdict", "Drop"]
    engine.on_done(ms(6), 1, ms(5))
    assert ran(engine) == []


def test_retry_that_finds_no_backend_in_time_is_told_of_its_error() -> None:
    engine = make(Told(), backends=2)
    send(engine, 0)
    send(engine, 1)
    fail(engine, 0, ms(1))
    engine.take_effects()
    advance(engine, ms(100))
    effects = engine.take_effects()
    assert [each.reason for each in effects if isinstance(each, Drop)] == [DropReason.FAILED]
    assert [each.blame for each in effects if isinstance(each, Verdict)] == [Blame.UNKNOWN]


def test_retry_on_a_backend_that_dies_of_it_is_the_inputs_fault() -> None:
    engine = make(Told(), backends=3)
    send(engine, 0)
    fail(engine, 0, ms(1))
    engine.take_effects()
    engine.on_backend_down(ms(2), 1)
    effects = engine.take_effects()
    assert [each.reason for each in effects if isinstance(each, Drop)] == [DropReason.FAILED]
    assert [each.blame for each in effects if isinstance(each, Verdict)] == [Blame.INPUT]


def test_backend_that_failed_comes_last_for_a_while() -> None:
    engine = make(Told(), backends=2)
    send(engine, 0)
    fail(engine, 0, 0)
    engine.on_done(ms(5), 1, ms(5))
    send(engine, 1, ms(10))
    engine.on_done(ms(15), 1, ms(5))
    advance(engine, RULES.last_ns)
    send(engine, 2, RULES.last_ns)
    assert [backend for backend, _, _ in ran(engine)] == [0, 1, 1, 0]


def test_ejected_backend_is_tried_with_one_batch_at_a_time() -> None:
    engine = make(Told(), lead_ns=ms(2))
    engine.on_eject(0, 0)
    send(engine, 0)
    send(engine, 1)
    assert ran(engine) == []
    assert engine.ranks[0].signals.backends == 0
    engine.on_give_back(ms(1), 0)
    assert engine.ranks[0].signals.backends == 1
    send(engine, 2, ms(2))
    advance(engine, ms(7))
    assert ran(engine) == [(0, 3, [0, 1])]
    engine.on_done(ms(9), 0, ms(6))
    advance(engine, ms(20))
    send(engine, 3, ms(9))
    advance(engine, ms(20))
    assert [rids for _, _, rids in ran(engine)] == [[2], [3]]


def test_backend_that_leaves_while_it_is_ejected_is_not_given_back() -> None:
    engine = make(Told())
    engine.on_eject(0, 0)
    engine.on_drain(ms(1), 0)
    engine.on_give_back(ms(2), 0)
    send(engine, 0, ms(3))
    assert ran(engine) == []
