"""The rank: who is granted which backend, and when."""

import pytest
from told import Told, advance, make, ran, send

from fermata.foundation.units import ms
from fermata.router.core.events import Dispatch
from fermata.router.core.lead import Lead


def test_the_smallest_key_is_granted_first() -> None:
    first, second, third = Told(0, key=30), Told(1, key=10), Told(2, key=20)
    engine = make(first, second, third, backends=0)
    for application in range(3):
        send(engine, application, application=application)
    engine.on_backend_up(ms(1), 0)
    assert ran(engine) == [(0, 1, [1])]
    engine.on_done(ms(6), 0, ms(5))
    assert ran(engine) == [(0, 6, [2])]


def test_equal_keys_are_granted_in_the_order_they_became_ripe() -> None:
    engine = make(Told(0, key=10), Told(1, key=10), backends=0)
    send(engine, 1, application=1)
    send(engine, 0, application=0)
    engine.on_backend_up(ms(1), 0)
    assert ran(engine) == [(0, 1, [1])]


def test_a_bid_is_not_granted_before_it_is_ripe() -> None:
    source = Told()
    source.ripe_at_ns = ms(3)
    engine = make(source)
    send(engine, 0)
    advance(engine, ms(3) - 1)
    assert ran(engine) == []
    advance(engine, ms(3))
    assert ran(engine) == [(0, 3, [0])]


def test_a_bid_that_changes_its_key_is_ranked_by_the_new_one() -> None:
    first, second = Told(0, key=10), Told(1, key=20)
    engine = make(first, second, backends=0)
    send(engine, 0, application=0)
    send(engine, 1, application=1)
    first.key = 30
    send(engine, 2, application=0)
    engine.on_backend_up(ms(1), 0)
    assert ran(engine) == [(0, 1, [1])]


def test_a_declined_slot_goes_to_the_others() -> None:
    picky, other = Told(0, key=1), Told(1, key=2)
    picky.declines = {0}
    engine = make(picky, other, backends=0)
    send(engine, 0, application=0)
    send(engine, 1, application=1)
    engine.on_backend_up(ms(1), 0)
    assert ran(engine) == [(0, 1, [1])]
    assert picky.offers == [(0, ms(1))]


def test_who_declined_is_asked_again_at_the_next_slot() -> None:
    picky, other = Told(0, key=1), Told(1, key=2)
    picky.declines = {0}
    engine = make(picky, other, backends=0)
    send(engine, 0, application=0)
    send(engine, 1, application=1)
    engine.on_backend_up(ms(1), 0)
    picky.declines = set()
    engine.on_done(ms(6), 0, ms(5))
    assert ran(engine) == [(0, 1, [1]), (0, 6, [0])]


def test_a_slot_that_all_decline_stays_free() -> None:
    source = Told()
    source.declines = {0}
    engine = make(source)
    send(engine, 0)
    assert ran(engine) == []
    source.declines = set()
    source.key = 1
    send(engine, 1, ms(2))
    assert ran(engine) == [(0, 2, [0, 1])]


def test_who_declines_one_backend_is_offered_the_next() -> None:
    source = Told()
    source.declines = {0}
    engine = make(source, backends=2)
    send(engine, 0)
    assert ran(engine) == [(1, 0, [0])]


def test_expired_bid_is_asked_again_not_granted() -> None:
    source = Told()
    source.expires_at_ns = ms(2)
    engine = make(source, backends=0)
    send(engine, 0)
    source.expires_at_ns, source.ripe_at_ns = ms(9), ms(5)
    engine.on_backend_up(ms(3), 0)
    assert ran(engine) == []
    advance(engine, ms(5))
    assert ran(engine) == [(0, 5, [0])]


def test_lowest_numbered_backend_is_given_first() -> None:
    source = Told()
    source.size_max = 1
    engine = make(source, backends=0)
    for backend in (2, 0, 1):
        engine.on_backend_up(0, backend)
    send(engine, 0)
    send(engine, 1)
    assert [backend for backend, _, _ in ran(engine)] == [0, 1]
    engine.on_done(ms(5), 0, ms(5))
    send(engine, 2, ms(6))
    assert ran(engine) == [(0, 6, [2])]


# Lead time


def test_backend_is_offered_a_lead_before_it_is_free() -> None:
    engine = make(Told(), lead_ns=ms(2))
    send(engine, 0)
    assert ran(engine) == [(0, 2, [0])]
    # It runs from 2 to 7 ms, so the next can be sent from 5 ms on.
    send(engine, 1, ms(3))
    advance(engine, ms(5) - 1)
    assert ran(engine) == []
    advance(engine, ms(5))
    assert ran(engine) == [(0, 7, [1])]


def test_at_most_one_batch_waits_on_a_backend() -> None:
    engine = make(Told(), lead_ns=ms(2))
    send(engine, 0)
    send(engine, 1, ms(3))
    advance(engine, ms(5))
    send(engine, 2, ms(6))
    advance(engine, ms(7))
    assert [rids for _, _, rids in ran(engine)] == [[0], [1]]
    engine.on_done(ms(7), 0, ms(5))
    # The second runs from 7 to 12 ms.
    advance(engine, ms(10) - 1)
    assert ran(engine) == []
    advance(engine, ms(10))
    assert ran(engine) == [(0, 12, [2])]


def test_two_batches_wait_where_they_run_shorter_than_their_lead() -> None:
    engine = make(Told(), lead_ns=ms(12))
    for rid, at_ms in enumerate((0, 1, 6, 11)):
        advance(engine, ms(at_ms))
        send(engine, rid, ms(at_ms))
    advance(engine, ms(16))
    # Each begins as the one before ends; a fourth has to wait until one has ended.
    assert ran(engine) == [(0, 12, [0]), (0, 17, [1]), (0, 22, [2])]
    engine.on_done(ms(17), 0, ms(5))
    assert ran(engine) == []
    advance(engine, ms(18))
    assert ran(engine) == [(0, 29, [3])]
    assert [batch.requests[0].rid for batch in engine.backend(0).batches()] == [1, 2, 3]
    engine.on_backend_down(ms(19), 0)
    assert engine.outbox.queued.keys() == {1, 2, 3}


def test_one_batch_waits_on_a_backend_of_an_earlier_version() -> None:
    engine = make(Told(), backends=0, lead_ns=ms(12))
    engine.shallow.add(0)
    engine.on_backend_up(0, 0)
    for rid, at_ms in enumerate((0, 1, 6)):
        advance(engine, ms(at_ms))
        send(engine, rid, ms(at_ms))
    advance(engine, ms(16))
    assert ran(engine) == [(0, 12, [0]), (0, 17, [1])]
    engine.on_done(ms(17), 0, ms(5))
    advance(engine, ms(18))
    assert [batch.requests[0].rid for batch in engine.backend(0).batches()] == [1, 2]


def test_lead_grows_with_the_batch() -> None:
    engine = make(Told(), backends=0, lead_ns=ms(2))
    engine.ranks[0].lead_per_request_ns = ms(1)
    for rid in range(3):
        send(engine, rid)
    engine.on_backend_up(0, 0)
    assert ran(engine) == [(0, 5, [0, 1, 2])]


def test_inputs_of_a_large_batch_are_fetched_while_the_one_before_runs() -> None:
    engine = make(Told(), lead_ns=ms(2))
    engine.ranks[0].lead_per_request_ns = ms(1)
    send(engine, 0)
    # It starts after 3 ms and runs for 5; the next can be sent 3 ms before that.
    assert ran(engine) == [(0, 3, [0])]
    for rid in range(1, 4):
        send(engine, rid, ms(4))
    advance(engine, ms(5))
    # Three inputs take 5 ms, so they are there 2 ms after the backend is free.
    assert ran(engine) == [(0, 10, [1, 2, 3])]


def test_each_application_has_a_lead_of_its_own() -> None:
    engine = make(Told(0), Told(1), backends=2)
    engine.leads[0].start_ns, engine.leads[1].start_ns = ms(8), ms(1)
    send(engine, 0, application=0)
    send(engine, 1, application=1)
    assert ran(engine) == [(0, 8, [0]), (1, 1, [1])]


def test_a_grant_counts_with_the_lead_of_the_very_node() -> None:
    engine = make(Told(), backends=2)
    lead = engine.leads[0]
    lead.start_ns, lead.by_node = ms(8), {"near": Lead(ms(1)), "far": Lead(ms(8))}
    engine.nodes.update({0: "near", 1: "far"})
    send(engine, 0)
    send(engine, 1)
    assert ran(engine) == [(0, 1, [0]), (1, 8, [1])]


def test_near_backends_are_given_first_while_they_are_idle() -> None:
    engine = make(Told(), backends=4)
    engine.on_near({2, 3})
    for rid in range(3):
        send(engine, rid)
    assert [backend for backend, _, _ in ran(engine)] == [2, 3, 0]
    engine.on_done(ms(5), 3, ms(5))
    send(engine, 3, ms(5))
    assert ran(engine) == [(3, 5, [3])]


def test_a_backend_that_comes_back_is_as_near_as_it_was() -> None:
    engine = make(Told(), backends=3)
    engine.on_near({2})
    engine.on_backend_down(0, 2)
    engine.on_backend_up(0, 2)
    send(engine, 0)
    engine.on_backend_down(0, 1)
    send(engine, 1)
    engine.on_done(ms(5), 0, ms(5))
    engine.on_done(ms(5), 2, ms(5))
    engine.on_near(())
    send(engine, 2, ms(5))
    assert [backend for backend, _, _ in ran(engine)] == [2, 0, 0]


def test_a_busy_backend_that_is_near_comes_after_idle_ones() -> None:
    engine = make(Told(), backends=2, lead_ns=ms(2))
    engine.on_near({0})
    send(engine, 0)
    # The first is about to end.
    advance(engine, ms(5))
    send(engine, 1, ms(5))
    assert [backend for backend, _, _ in ran(engine)] == [0, 1]


def test_a_batch_does_not_go_where_its_inputs_would_be_late() -> None:
    source = Told()
    engine = make(source, backends=8)
    lead = engine.leads[0]
    lead.start_ns, lead.by_node = ms(1), {"near": Lead(ms(1)), "far": Lead(ms(8))}
    engine.nodes.update(dict.fromkeys(range(7), "far") | {7: "near"})
    source.expires_at_ns = ms(6)
    send(engine, 0)
    assert ran(engine) == [(7, 1, [0])]
    source.expires_at_ns = ms(7)
    send(engine, 1)
    assert ran(engine) == [(0, 8, [1])]


def test_a_far_backend_does_not_speak_for_a_near_one() -> None:
    source = Told()
    source.may_run, source.declines = frozenset((0,)), set(range(7))
    engine = make(source, backends=8)
    lead = engine.leads[0]
    lead.start_ns, lead.by_node = ms(1), {"near": Lead(ms(1)), "far": Lead(ms(8))}
    engine.nodes.update(dict.fromkeys(range(7), "far") | {7: "near"})
    send(engine, 0)
    assert ran(engine) == [(7, 1, [0])]


def test_overdue_backend_is_not_offered() -> None:
    engine = make(Told(), lead_ns=ms(2))
    send(engine, 0)
    advance(engine, ms(5))
    # The end was due at 7 ms; at 8 nobody knows when it will come.
    send(engine, 1, ms(8))
    assert [rids for _, _, rids in ran(engine)] == [[0]]
    engine.on_done(ms(9), 0, ms(7))
    assert ran(engine) == [(0, 11, [1])]


def test_free_backends_come_before_those_about_to_be_free() -> None:
    engine = make(Told(), backends=2, lead_ns=ms(2))
    send(engine, 0)
    advance(engine, ms(6))
    send(engine, 1, ms(6))
    assert ran(engine) == [(0, 2, [0]), (1, 8, [1])]


def test_backend_offered_ahead_has_its_own_place_once_it_is_free() -> None:
    engine = make(Told(), backends=2, lead_ns=ms(2))
    send(engine, 0)
    advance(engine, ms(7))
    engine.on_done(ms(7), 0, ms(5))
    send(engine, 1, ms(10))
    assert ran(engine) == [(0, 2, [0]), (0, 12, [1])]


def test_batch_sent_ahead_is_planned_for_what_will_then_be_resident() -> None:
    first, second = Told(0), Told(1)
    engine = make(first, second, backends=0, lead_ns=ms(2))
    engine.on_backend_up(0, 0, resident=frozenset((0,)))
    send(engine, 0, application=1)
    # Swapped in for 20 ms and run for 5: from 2 to 27 ms. Then variant 0 has to come back.
    send(engine, 1, ms(1), application=0)
    advance(engine, ms(25))
    batches = [effect.batch for effect in engine.take_effects() if isinstance(effect, Dispatch)]
    assert [batch.plan_ns for batch in batches] == [ms(25), ms(25)]


def test_swap_in_is_paid_once() -> None:
    engine = make(Told(0), Told(1), backends=0)
    engine.on_backend_up(0, 0, resident=frozenset((1,)))
    send(engine, 0)
    engine.on_done(ms(25), 0, ms(25))
    send(engine, 1, ms(30))
    batches = [effect.batch for effect in engine.take_effects() if isinstance(effect, Dispatch)]
    assert [batch.plan_ns for batch in batches] == [ms(25), ms(5)]
    # The swap is no part of what the margin learns from.
    assert engine.costs.of(0).factor == 1.0


def test_swap_in_times_are_learnt_apart_from_run_times() -> None:
    engine = make(Told(0), Told(1), backends=0)
    engine.on_backend_up(0, 0, resident=frozenset((1,)))
    send(engine, 0)
    # Planned as 20 + 5 ms, it took 65: the swap 60, a quarter of the way from 20 is 30.
    engine.on_done(ms(65), 0, ms(65))
    assert engine.costs.swap_in_ns[0] == ms(30)
    assert engine.costs.of(0).factor == 1.0


def test_uptime_and_busy_time_add_up() -> None:
    engine = make(Told(), backends=1)
    rank = engine.ranks[0]
    engine.on_backend_up(ms(10), 1)
    send(engine, 0, ms(12))
    engine.on_done(ms(18), 0, ms(6))
    rank.settle(ms(30))
    # One backend for 30 ms, the other for 20.
    assert rank.signals.uptime_ns == ms(50)
    assert rank.signals.busy_ns == ms(6)
    engine.on_backend_down(ms(40), 1)
    rank.settle(ms(100))
    assert rank.signals.uptime_ns == ms(30 + 20 + 20 + 60)
    assert rank.signals.backends == 1


def test_wait_of_ripe_bids_is_averaged() -> None:
    engine = make(Told(), backends=1)
    send(engine, 0)
    send(engine, 1, ms(1))
    engine.on_done(ms(5), 0, ms(5))
    signals = engine.ranks[0].signals
    assert signals.grants == 2
    # 0 for the first; 4 ms for the second, with a weight of 1/32.
    assert signals.wait_ns == ms(4) / 32


def test_late_run_is_learnt() -> None:
    engine = make(Told())
    send(engine, 0)
    engine.on_done(ms(6), 0, ms(6))
    assert engine.costs.of(0).factor == 1.2


@pytest.mark.parametrize(
    ("slow", "after_ms", "tried"),
    [
        ({0, 1}, 506, True),
        # Something has run there a moment ago, and showed how slow it is.
        ({0, 1}, 400, False),
        # Whoever is refused may go elsewhere.
        ({0}, 506, False),
    ],
)
def test_a_pool_that_is_slow_as_a_whole_is_soon_tried_again(
    slow: set[int], after_ms: int, tried: bool
) -> None:
    source = Told()
    engine = make(source, backends=2)
    for rid in range(2):
        send(engine, rid)
    for backend in range(2):
        engine.on_done(ms(5), backend, ms(5))
    engine.costs.backend_factor = dict.fromkeys(slow, 8.0)
    source.declines = {0, 1}
    for rid in range(2, 4):
        send(engine, rid, ms(after_ms) + rid)
        source.key -= 1
    assert (0 not in engine.costs.backend_factor) == tried


@pytest.mark.parametrize("backends", [0, 1])
def test_ripe_bids_take_no_more_room_than_there_are_bids(backends: int) -> None:
    source = Told()
    engine = make(source, backends=backends)
    for rid in range(200):
        source.key = -rid
        send(engine, rid, rid)
    # Backends may be away for hours, and each request makes a new key.
    ripe = engine.ranks[0].lanes[0].ripe.values()
    assert sum(len(each.heap) for each in ripe) <= 64


def test_a_slow_backend_that_runs_is_not_refused() -> None:
    source = Told()
    engine = make(source, lead_ns=ms(2))
    engine.costs.backend_factor = {0: 8.0}
    send(engine, 0)
    source.declines = {0}
    send(engine, 1)
    advance(engine, ms(45))
    # It was offered before it was free; what runs there tells how slow it is.
    assert engine.costs.refusals == {}
    engine.on_done(ms(45), 0, ms(40))
    engine.costs.backend_factor = {0: 8.0}
    send(engine, 2, ms(46))
    assert engine.costs.refusals[0] > 0
