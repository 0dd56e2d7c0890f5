"""Deadline-aware routing on a real engine: heavy takes 40 ms for a request, light 10 ms."""

import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.policies.baselines.single_queue import SingleQueue, SingleQueueOptions
from fermata.router.policies.family import family_of
from fermata.router.policies.routing.deadline import DeadlineRouting, RoutingOptions
from fermata.router.policies.routing.mix import allot, read_mix
from fermata.router.policies.routing.service_times import ServiceTimes
from fermata.router.policies.sneakpeek.classes import Classes

HEAVY, LIGHT = 0, 1
LIGHT_BACKEND, HEAVY_BACKEND = 0, 1
"""Of two backends the first to come is the light instance: a single one must be fast."""
SPEED = [ms(40), ms(10)]
FAMILY = family_of(0, "vision", ms(300), (HEAVY, LIGHT), HEAVY, accuracy=(0.83, 0.78))
EXACT = RoutingOptions(reserve=0.0)


def engine_with(source: DeadlineRouting | SingleQueue, backends: int = 2) -> Engine:
    costs = Costs()
    costs.add(HEAVY, [ms(40)])
    costs.add(LIGHT, [ms(10)])
    engine = Engine(costs)
    engine.add_application(source)
    for backend in range(backends):
        engine.on_backend_up(0, backend, owner=0)
    return engine


def send(
    engine: Engine,
    rid: int,
    at_ns: int = 0,
    slo_ns: int = ms(300),
    allowed: frozenset[int] | None = None,
) -> None:
    request = Request(rid, 0, at_ns, at_ns + slo_ns)
    request.allowed = allowed
    engine.on_request(at_ns, request)


def effects(engine: Engine) -> list[tuple[int, int | str]]:
    """(request, variant that runs it or why it was dropped), in order."""
    seen: list[tuple[int, int | str]] = []
    for effect in engine.take_effects():
        if isinstance(effect, Dispatch):
            seen.extend((request.rid, effect.batch.variant) for request in effect.batch.requests)
        elif isinstance(effect, Drop):
            seen.append((effect.request.rid, effect.reason))
    return seen


def queues(source: DeadlineRouting) -> list[list[int]]:
    return [[request.rid for request in each.queue] for each in source.instances.ordered]


def test_heavy_as_long_as_it_is_in_time_then_light() -> None:
    source = DeadlineRouting(FAMILY, EXACT)
    engine = engine_with(source)
    for rid in range(5):
        send(engine, rid, slo_ns=ms(100))
    # Heavy ends its requests at 40, 80 and 120 ms; the third would be late.
    assert effects(engine) == [(0, HEAVY), (2, LIGHT)]
    assert queues(source) == [[1], [3, 4]]


def test_drops_what_no_instance_can_end_in_time() -> None:
    source = DeadlineRouting(FAMILY, EXACT)
    engine = engine_with(source)
    for rid in range(4):
        send(engine, rid, slo_ns=ms(25))
    assert effects(engine) == [(0, LIGHT), (2, DropReason.LATE), (3, DropReason.LATE)]
    assert queues(source) == [[], [1]]


def test_drops_when_every_buffer_is_full() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(buffer=2, reserve=0.0))
    engine = engine_with(source)
    for rid in range(5):
        send(engine, rid)
    assert effects(engine) == [(0, HEAVY), (2, LIGHT), (4, DropReason.FULL)]


def test_the_reserve_grows_with_the_work_before_the_end() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(reserve=2.0))
    engine = engine_with(source)
    send(engine, 0)
    # A spread of 0.1 is assumed at first: 2 x 0.1 x 40 ms x sqrt(2 runs) is 11.3 ms.
    send(engine, 1, slo_ns=ms(80 + 11))
    send(engine, 2, slo_ns=ms(80 + 12))
    assert effects(engine) == [(0, HEAVY), (1, LIGHT)]
    assert queues(source) == [[2], []]


def test_the_reserve_is_learnt() -> None:
    costs = Costs()
    costs.add(HEAVY, [ms(40)])
    steady, varying = ServiceTimes(costs.of(HEAVY)), ServiceTimes(costs.of(HEAVY))
    assert steady.spread == pytest.approx(0.1)
    for run in range(2000):
        steady.observe(1.2)
        varying.observe(0.7 if run % 2 else 1.3)
    assert steady.mean == pytest.approx(1.2, abs=1e-3)
    assert steady.spread < 0.01
    varying.observe(0.01)  # failed
    assert varying.mean == pytest.approx(1.0, abs=0.02)
    assert varying.spread == pytest.approx(0.3, abs=0.01)


def test_an_early_deadline_goes_first_but_makes_nobody_late() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(mix="1/0", reserve=0.0))
    engine = engine_with(source, backends=1)
    send(engine, 0)
    send(engine, 1, slo_ns=ms(300))
    send(engine, 2, slo_ns=ms(90))
    assert queues(source) == [[2, 1]]
    send(engine, 3, slo_ns=ms(85))
    assert effects(engine) == [(0, HEAVY), (3, DropReason.LATE)]


def test_a_slow_run_sends_those_behind_it_elsewhere() -> None:
    source = DeadlineRouting(FAMILY, EXACT)
    engine = engine_with(source)
    for rid in range(3):
        send(engine, rid, slo_ns=ms(120))
    assert queues(source) == [[1, 2], []]
    # The first run takes 60 ms in place of 40: the third would end at 140 ms.
    engine.on_done(ms(60), HEAVY_BACKEND, ms(60))
    assert effects(engine) == [(0, HEAVY), (1, HEAVY), (2, LIGHT)]


def test_a_head_that_waits_too_long_for_heavy_is_run_by_light() -> None:
    source = DeadlineRouting(FAMILY, EXACT)
    engine = engine_with(source)
    send(engine, 0)
    send(engine, 1, slo_ns=ms(85))
    assert queues(source) == [[1], []]
    while engine.wake_at_ns() <= ms(50):
        engine.on_time(engine.wake_at_ns())
    assert effects(engine) == [(0, HEAVY), (1, LIGHT)]


def test_a_lost_light_instance_is_replaced_by_a_heavy_one() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(mix="2/2", reserve=0.0))
    engine = engine_with(source, backends=4)
    assert [each.tier for each in source.instances.ordered] == [HEAVY, HEAVY, LIGHT, LIGHT]
    for rid in range(6):
        send(engine, rid)
    effects(engine)
    lost = source.instances.ordered[3].backend
    engine.on_backend_down(ms(1), lost)
    assert [each.tier for each in source.instances.ordered] == [HEAVY, LIGHT, LIGHT]
    assert len(engine.outbox.queued) == 4
    engine.on_backend_up(ms(2), lost, owner=0)
    assert [each.tier for each in source.instances.ordered] == [HEAVY, HEAVY, LIGHT, LIGHT]


def test_requests_wait_for_the_first_instance() -> None:
    source = DeadlineRouting(FAMILY, EXACT)
    engine = engine_with(source, backends=0)
    send(engine, 0)
    send(engine, 1, slo_ns=ms(15))
    engine.on_time(ms(5) + 1)
    assert effects(engine) == [(1, DropReason.NO_BACKEND)]
    engine.on_backend_up(ms(10), 7, owner=0)
    assert effects(engine) == [(0, LIGHT)]


def test_a_cancelled_request_leaves_its_buffer() -> None:
    source = DeadlineRouting(FAMILY, EXACT)
    engine = engine_with(source)
    send(engine, 0)
    send(engine, 1)
    assert engine.on_cancel(ms(1), 1)
    assert queues(source) == [[], []]


def test_unaware_routing_serves_the_late_until_their_hard_limit() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(mix="1/0", aware=False, buffer=3))
    engine = engine_with(source, backends=1)
    for rid in range(4):
        engine.on_request(0, Request(rid, 0, 0, ms(50), ms(100)))
    assert effects(engine) == [(0, HEAVY), (3, DropReason.FULL)]
    engine.on_done(ms(40), 0, ms(40))
    engine.on_done(ms(80), 0, ms(40))
    assert effects(engine) == [(1, HEAVY), (2, DropReason.LATE)]


def test_single_queue_prefers_the_idle_heavy_instance() -> None:
    source = SingleQueue(FAMILY, SingleQueueOptions("1/1"))
    engine = engine_with(source)
    for rid in range(4):
        send(engine, rid)
    assert effects(engine) == [(0, HEAVY), (1, LIGHT)]
    engine.on_done(ms(10), LIGHT_BACKEND, ms(10))
    engine.on_done(ms(20), LIGHT_BACKEND, ms(10))
    assert effects(engine) == [(2, LIGHT), (3, LIGHT)]


@pytest.mark.parametrize(
    ("instances", "counts"), [(1, [0, 1]), (2, [1, 1]), (3, [1, 2]), (4, [2, 2]), (5, [2, 3])]
)
def test_an_odd_instance_is_a_fast_one(instances: int, counts: list[int]) -> None:
    assert allot((2, 2), instances, SPEED) == counts


def test_the_mix_is_the_two_ends_of_the_family_unless_given() -> None:
    five = family_of(0, "digits", ms(50), (0, 1, 2, 3, 4), 0, accuracy=(0.8, 0.9, 0.95, 0.97, 0.98))
    speed = [1, 2, 3, 4, 5]
    assert read_mix("", five, speed) == (1, 0, 0, 0, 1)
    assert read_mix("0/1/0/2/0", five, speed) == (0, 1, 0, 2, 0)
    for wrong in ("1/1", "1/1/1/1/x", "0/0/0/0/0"):
        with pytest.raises(ConfigError, match="mix"):
            read_mix(wrong, five, speed)


def test_an_overdue_instance_is_not_believed_free() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(mix="0/1", reserve=0.0))
    engine = engine_with(source)
    send(engine, 0)
    # The first run should have ended at 10 ms. At 100 ms nobody knows when it will.
    send(engine, 1, at_ns=ms(100), slo_ns=ms(50))
    send(engine, 2, at_ns=ms(101), slo_ns=ms(50))
    assert effects(engine) == [(0, LIGHT), (1, LIGHT)]
    assert queues(source) == [[], [2]]


def test_doubt_about_an_overdue_instance_grows_with_how_late_it_is() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(mix="0/1", reserve=0.0))
    engine = engine_with(source, backends=1)
    send(engine, 0)
    (instance,) = source.instances.ordered
    ends = [instance.free_at_ns(ms(at_ms), ms(1)) for at_ms in (5, 10, 12, 30, 100)]
    assert ends == [ms(10), ms(10), ms(14), ms(50), ms(190)]
    engine.on_done(ms(100), 0, ms(100))
    assert instance.free_at_ns(ms(200), ms(1)) == ms(100)


def test_those_who_wait_behind_a_stalled_run_are_routed_again() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(mix="0/1", reserve=0.0))
    engine = engine_with(source)
    for rid in range(4):
        send(engine, rid, slo_ns=ms(100))
    assert queues(source) == [[2], [3]]
    engine.on_done(ms(10), 1, ms(10))
    while engine.wake_at_ns() <= ms(19):
        engine.on_time(engine.wake_at_ns())
    # The run on backend 0 is overdue from 13 ms on; the other has one to run until 20 ms.
    assert queues(source) == [[], [2]]
    engine.on_done(ms(20), 1, ms(10))
    assert effects(engine) == [(0, LIGHT), (1, LIGHT), (3, LIGHT), (2, LIGHT)]


def test_who_finds_nothing_better_stays_where_it_is() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(mix="0/1", reserve=0.0))
    engine = engine_with(source, backends=1)
    for _ in range(60):
        engine.costs.observe(LIGHT, 0, 0, 1, ms(10))
    send(engine, 0, slo_ns=ms(100))
    send(engine, 1, slo_ns=ms(100))
    engine.on_time(ms(70))
    assert queues(source) == [[1]]
    engine.on_done(ms(80), 0, ms(80))
    assert effects(engine) == [(0, LIGHT), (1, LIGHT)]


def test_a_stall_does_not_make_the_reserve() -> None:
    costs = Costs()
    costs.add(LIGHT, [ms(10)])
    times = ServiceTimes(costs.of(LIGHT))
    for run in range(1200):
        times.observe(35.0 if run % 60 == 59 else 1.0)
    assert times.mean < 1.1
    assert times.spread < 0.2
    for _ in range(1200):
        times.observe(3.0)
    assert times.mean == pytest.approx(3.0, abs=0.1)


ONLY_HEAVY = frozenset((HEAVY,))


def test_a_client_s_floor_leaves_the_instances_that_reach_it() -> None:
    source = DeadlineRouting(FAMILY, EXACT)
    engine = engine_with(source)
    for rid in range(4):
        send(engine, rid, slo_ns=ms(100), allowed=ONLY_HEAVY)
    # Light would be in time for the third and the fourth, but may not run them.
    assert effects(engine) == [(0, HEAVY), (2, DropReason.LATE), (3, DropReason.LATE)]
    send(engine, 4, slo_ns=ms(60), allowed=frozenset((LIGHT,)))
    assert effects(engine) == [(4, LIGHT)]


def test_unaware_routing_heeds_a_client_s_floor_too() -> None:
    source = DeadlineRouting(FAMILY, RoutingOptions(aware=False, buffer=2))
    engine = engine_with(source)
    for rid in range(3):
        send(engine, rid, allowed=ONLY_HEAVY)
    assert effects(engine) == [(0, HEAVY), (2, DropReason.FULL)]


@pytest.mark.parametrize("backends", [0, 1])
def test_a_floor_that_no_instance_reaches_is_said(backends: int) -> None:
    for source in (
        DeadlineRouting(FAMILY, RoutingOptions(mix="0/1")),
        SingleQueue(FAMILY, SingleQueueOptions("0/1")),
    ):
        engine = engine_with(source, backends)
        send(engine, 0, allowed=ONLY_HEAVY)
        assert effects(engine) == [(0, DropReason.FLOOR)]


def test_who_waits_for_the_heavy_instance_does_not_keep_others_from_the_light_one() -> None:
    source = SingleQueue(FAMILY, SingleQueueOptions("1/1"))
    engine = engine_with(source)
    send(engine, 0)
    send(engine, 1, allowed=ONLY_HEAVY)
    send(engine, 2)
    assert effects(engine) == [(0, HEAVY), (2, LIGHT)]
    engine.on_done(ms(10), LIGHT_BACKEND, ms(10))
    send(engine, 3, at_ns=ms(10))
    assert effects(engine) == [(3, LIGHT)]
    engine.on_done(ms(40), HEAVY_BACKEND, ms(40))
    assert effects(engine) == [(1, HEAVY)]


def test_who_waits_for_an_instance_that_goes_is_told() -> None:
    source = SingleQueue(FAMILY, SingleQueueOptions("1/1"))
    engine = engine_with(source)
    send(engine, 0)
    send(engine, 1, allowed=ONLY_HEAVY)
    effects(engine)
    # Of one backend that is left the variant is light.
    engine.on_backend_down(ms(1), LIGHT_BACKEND)
    assert effects(engine) == [(1, DropReason.FLOOR)]


def test_a_mix_below_a_floor_is_refused() -> None:
    floored = family_of(0, "vision", ms(300), (0, 1), 0, (0.83, 0.78), accuracy_floor=0.8)
    assert read_mix("3/0", floored, SPEED) == (3, 0)
    rule = (
        r"mix='1/1': variant '1' of vision has an accuracy of 0.78, below accuracy_floor=0.8; give"
    )
    with pytest.raises(ConfigError, match=rule):
        read_mix("1/1", floored, SPEED)
    classes = Classes(((0.9, 0.9), (0.9, 0.4)), recall_floors=(0.5, 0.5))
    weak = family_of(0, "vision", ms(300), (0, 1), 0, (0.9, 0.65), classes=classes)
    with pytest.raises(ConfigError, match="variant '1' of vision may miss a recall floor"):
        read_mix("1/1", weak, SPEED)
