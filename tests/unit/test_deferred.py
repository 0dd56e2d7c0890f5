"""Deferred scheduling on a real engine; a batch of b runs b + 4 ms."""

import pytest
from deferred_bench import SIZE_MAX, Bench

from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.policies.catalog import POLICIES
from fermata.router.policies.deferred_options import DeferredOptions

# How long to hold


def test_waits_until_one_more_request_would_not_fit() -> None:
    bench = Bench()
    bench.send(0, ms(40))
    bench.advance(ms(34) - 1)
    assert bench.ran == []
    # Deadline less the run time of two.
    bench.advance(ms(34))
    assert bench.ran == [(34, [0])]


def test_each_request_that_joins_ends_the_hold_earlier() -> None:
    bench = Bench()
    bench.send(0, ms(40))
    bench.send(ms(5), ms(40))
    bench.send(ms(6), ms(40))
    bench.advance(ms(100))
    # The first has until 40 ms, and four would run 8.
    assert bench.ran == [(32, [0, 1, 2])]
    assert bench.dropped == []


def test_lead_time_comes_off_the_hold() -> None:
    bench = Bench(lead_ns=ms(3))
    bench.send(0, ms(40))
    bench.advance(ms(100))
    assert bench.ran == [(31, [0])]
    assert bench.engine.ledger.applications[0].good == 1


def test_request_without_time_to_wait_leaves_at_once() -> None:
    bench = Bench()
    bench.send(0, ms(5))
    assert bench.ran == [(0, [0])]


def test_batch_as_large_as_the_profile_goes_is_not_held() -> None:
    bench = Bench()
    for _ in range(SIZE_MAX + 1):
        bench.send(ms(1), ms(500))
    assert bench.ran == []
    bench.advance(ms(2))
    assert bench.ran == [(1.000001, list(range(SIZE_MAX)))]


def test_longest_hold_is_the_operators_choice() -> None:
    bench = Bench(DeferredOptions(hold_ns_max=ms(10)))
    bench.send(ms(1), ms(100))
    bench.send(ms(9), ms(100))
    bench.advance(ms(50))
    assert bench.ran == [(11, [0, 1])]


def test_longest_hold_holds_for_requests_behind_the_first() -> None:
    bench = Bench(DeferredOptions(hold_ns_max=ms(10)))
    bench.send(0, ms(200))
    bench.send(ms(9), ms(100))
    bench.advance(ms(50))
    assert bench.ran == [(10, [1, 0])]


def test_hold_ends_earlier_by_twice_the_wait_for_backends() -> None:
    bench = Bench()
    bench.engine.ranks[0].signals.wait_ns = ms(2)
    bench.send(0, ms(40))
    bench.advance(ms(100))
    assert bench.ran == [(30, [0])]


def test_frame_leaves_before_its_successor_is_due() -> None:
    bench = Bench()
    bench.send(0, ms(40), start_by_ns=ms(20))
    bench.advance(ms(100))
    assert bench.ran == [(20, [0])]


@pytest.mark.parametrize("again", [False, True])
def test_a_frame_behind_a_plain_request_goes_when_its_successor_is_due(again: bool) -> None:
    bench = Bench(DeferredOptions(hold="deferred"))
    bench.send(0, ms(100))
    bench.send(ms(1), ms(100), start_by_ns=ms(12))
    if again:
        # Whatever makes the candidate form anew.
        bench.engine.on_plan(ms(2), 0)
    bench.advance(ms(90))
    assert bench.ran == [(12.0, [0, 1])]


def test_eager_leaves_once_all_of_the_instant_have_arrived() -> None:
    bench = Bench(POLICIES["eager"].defaults)
    bench.send(ms(1), ms(40))
    bench.send(ms(1), ms(40))
    bench.send(ms(3), ms(40))
    bench.advance(ms(20))
    # The third finds the backend busy until 7 ms and 1 ns.
    assert bench.ran == [(1.000001, [0, 1]), (7.000001, [2])]


def test_eager_serves_a_request_without_any_slack() -> None:
    bench = Bench(POLICIES["eager"].defaults)
    bench.send(0, ms(5))
    bench.advance(ms(20))
    assert bench.ran == [(0, [0])]


# Order


def test_tight_newcomer_goes_first_and_takes_the_others_along() -> None:
    bench = Bench()
    bench.send(0, ms(40))
    # In order of arrival the first would hold both until 33 ms, too late for deadline 9.
    bench.send(ms(1), ms(8))
    bench.advance(ms(100))
    # Three would run 7 ms, so both leave at 2 ms.
    assert bench.ran == [(2, [1, 0])]
    assert bench.engine.ledger.applications[0].good == 2


def test_cancelled_head_gives_its_time_back() -> None:
    bench = Bench()
    bench.send(0, ms(20))
    bench.send(0, ms(40))
    bench.engine.on_cancel(ms(1), 0)
    bench.advance(ms(100))
    assert bench.ran == [(34, [1])]


# Drops


def test_window_slides_while_the_queue_can_fill_it() -> None:
    bench = Bench(backends=0)
    # As if there were backends, all of them busy for ever.
    bench.engine.outbox.unserved = lambda request: False
    bench.source.window = 4
    for slo_ms in (20, 21, 22, 23, 24):
        bench.send(0, ms(slo_ms))
    bench.advance(ms(30))
    # Four run 8 ms. The first stands in their way from 12 ms on, the second from 13. Then only
    # three are left, who may leave in smaller batches, and the last time for one alone is
    # deadline - 5 ms.
    assert bench.dropped == [
        (ms(12) + 1, 0, DropReason.WINDOW),
        (ms(13) + 1, 1, DropReason.WINDOW),
        (ms(17) + 1, 2, DropReason.LATE),
        (ms(18) + 1, 3, DropReason.LATE),
        (ms(19) + 1, 4, DropReason.LATE),
    ]
    assert not bench.engine.outbox.queued


def crowded(options: DeferredOptions, losing: bool) -> tuple[Bench, int, list[int]]:
    """A bench at 7 ms, with the urgent request and those that came after it. The only backend is
    free just after 6 ms. The urgent one has less than 8 ms then: room for three."""
    bench = Bench(options)
    bench.source.window = 2
    for _ in range(30 if losing else 0):
        bench.send(0, ms(4.9))  # not even a batch of one would be in time
    before = bench.send(ms(1), ms(12))
    bench.advance(ms(2))
    urgent = bench.send(ms(2), ms(12))
    others = [bench.send(ms(5), ms(20)) for _ in range(8)]
    bench.dropped.clear()
    bench.advance(ms(7))
    assert bench.ran[0][1] == [before]
    return bench, urgent, others


def test_in_overload_heads_are_passed_over() -> None:
    bench, urgent, others = crowded(DeferredOptions(hold="eager"), losing=True)
    assert bench.ran[1][1] == others
    assert not bench.dropped
    # Another backend may come in time for it.
    bench.engine.on_backend_up(ms(8), 1)
    bench.carry_out(ms(8))
    bench.advance(ms(9))
    assert bench.ran[2][1] == [urgent]


def test_whoever_is_passed_over_is_told_as_soon_as_it_is_hopeless() -> None:
    bench, urgent, _ = crowded(DeferredOptions(hold="eager"), losing=True)
    for _ in range(2):
        bench.send(ms(8.5), ms(60))
    bench.advance(ms(12))
    # It must end until 14 ms, and takes 5 ms alone. Those behind it can wait for much longer.
    assert [(at_ns, rid) for at_ns, rid, _ in bench.dropped] == [(ms(9) + 1, urgent)]


def test_heads_are_not_passed_over_while_few_are_lost() -> None:
    bench, urgent, others = crowded(DeferredOptions(hold="eager"), losing=False)
    assert bench.ran[1][1] == [urgent, *others[:2]]
    assert not bench.dropped


def test_in_overload_heads_make_room_for_the_largest_full_batch() -> None:
    options = DeferredOptions(hold="eager", pass_over=False)
    bench, urgent, others = crowded(options, losing=True)
    assert bench.ran[1][1] == others
    assert [rid for _, rid, _ in bench.dropped] == [urgent]


def test_in_overload_heads_make_room_for_a_batch_of_whole_requests() -> None:
    bench = Bench(DeferredOptions(hold="eager"))
    bench.source.window = 2
    for _ in range(10):
        bench.send(0, ms(4.9))
    lost = bench.rid
    bench.send(ms(1), ms(12))
    bench.advance(ms(2))
    urgent = bench.send(ms(2), ms(12))
    others = [bench.send(ms(5), ms(20), rows=2) for _ in range(4)]
    bench.dropped.clear()
    bench.advance(ms(7))
    # As above, with the eight places of the others taken by four.
    assert bench.ran[0][1] == [lost]
    assert bench.ran[1][1] == others
    assert [rid for _, rid, _ in bench.dropped] == [urgent]


def test_candidate_that_expires_is_built_anew() -> None:
    bench = Bench(DeferredOptions(wait_margin=0.0), backends=0)
    for slo_ms in (10, 30, 30):
        bench.send(0, ms(slo_ms))
    # Three have until 3 ms to start by the first deadline, two until 4, one until 5.
    bench.advance(ms(3))
    assert bench.source.size == 3
    bench.advance(ms(3) + 1)
    assert bench.source.size == 2
    bench.advance(ms(4.5))
    bench.engine.on_backend_up(ms(4.5), 0)
    bench.carry_out(ms(4.5))
    bench.advance(ms(40))
    assert bench.dropped == []
    # One alone at 4.5 ms until 9.5; then the others have until 30 ms less the run time of three.
    assert bench.ran == [(4.5, [0]), (23, [1, 2])]


def test_request_that_came_too_late_is_dropped_on_arrival() -> None:
    bench = Bench()
    bench.send(ms(1), ms(5) - 1)
    assert bench.dropped == [(ms(1), 0, DropReason.LATE)]


def test_waiting_requests_are_dropped_when_hopeless_without_any_event() -> None:
    bench = Bench(backends=0)
    bench.send(0, ms(40))
    bench.advance(ms(35))
    assert bench.dropped == []
    bench.advance(ms(35) + 1)
    assert bench.dropped == [(ms(35) + 1, 0, DropReason.NO_BACKEND)]


def test_slow_backend_is_no_reason_to_drop_while_another_is_free() -> None:
    bench = Bench(backends=2)
    bench.engine.costs.backend_factor[0] = 2.0
    bench.send(0, ms(8))
    bench.advance(ms(20))
    assert bench.dropped == []


def test_tight_request_is_not_dropped_while_a_backend_is_free() -> None:
    bench = Bench(backends=4)
    bench.source.window = 8
    for _ in range(7):
        bench.send(0, ms(100))
    # It leaves no room for eight, which run 12 ms; but nobody waits for a backend.
    bench.send(ms(1), ms(8))
    assert bench.dropped == []


def test_tight_request_is_judged_by_its_own_lead_time() -> None:
    bench = Bench()
    bench.engine.ranks[0].lead_per_request_ns = ms(1)
    for _ in range(8):
        bench.send(0, ms(100))
    # Alone it needs 1 + 5 of its 8 ms; with the lead of eight it would need 13.
    bench.send(ms(1), ms(8))
    assert bench.dropped == []
