"""The rank where backends hold different models: work is offered to those that can run it."""

from collections.abc import Iterable

import pytest
from told import Told, make, ran, send

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import Source
from fermata.router.policies.baselines.batch_queues import BatchQueues, BatchQueuesOptions
from fermata.router.policies.central.options import CentralOptions
from fermata.router.policies.central.source import CentralQueue
from fermata.router.policies.family import Family, family_of

NOTHING: frozenset[int] = frozenset()


class Counting(BatchQueues):
    """Counts the backends that it is offered."""

    def __init__(self, variant: int) -> None:
        super().__init__(variant, BatchQueuesOptions())
        self.offers = 0

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        self.offers += 1
        return super().grant(now_ns, slot)


def serve(sources: Iterable[Source], kinds: int = 1) -> Engine:
    """One variant for each source; a batch of b runs b + 4 ms, on kind 1 ten times as long."""
    costs = Costs()
    engine = Engine(costs)
    for variant, source in enumerate(sources):
        for kind in range(kinds):
            slower = 10 if kind else 1
            costs.add(variant, [ms(4 + size) * slower for size in range(1, 17)], kind=kind)
        engine.add_application(source)
    return engine


def with_models(count: int) -> tuple[Engine, list[Counting]]:
    sources = [Counting(variant) for variant in range(count)]
    return serve(sources), sources


def family(variants: int) -> Family:
    accuracy = tuple(0.7 + 0.1 * each for each in range(variants))
    return family_of(0, "family", ms(100), tuple(range(variants)), 0, accuracy)


def central(variants: int) -> Engine:
    costs = Costs()
    for variant in range(variants):
        costs.add(variant, [ms(4 + size) for size in range(1, 17)])
    engine = Engine(costs)
    engine.add_application(CentralQueue(family(variants), CentralOptions()))
    return engine


def where(engine: Engine) -> list[int]:
    return [backend for backend, _, _ in ran(engine)]


# Who is offered what


@pytest.mark.parametrize("without", [4, 8, 100])
@pytest.mark.parametrize("held", [NOTHING, frozenset((1,))])
def test_backend_that_holds_the_model_is_found_behind_any_that_do_not(
    without: int, held: frozenset[int]
) -> None:
    engine, sources = with_models(2)
    for backend in range(without):
        engine.on_backend_up(0, backend, resident=held)
    engine.on_backend_up(0, without, resident=frozenset((0,)))
    send(engine, 0)
    assert where(engine) == [without]
    assert sources[0].offers == 1


def test_among_holders_the_order_stays() -> None:
    engine, _ = with_models(1)
    for backend in (9, 2, 7, 4):
        engine.on_backend_up(0, backend, resident=frozenset((0,)) if backend > 2 else NOTHING)
    engine.costs.backend_factor[4] = 1.1
    engine.on_resident(0, 4, frozenset((0,)))
    for rid in range(3):
        send(engine, rid)
    # The slower one comes after its peers.
    assert where(engine) == [7, 9, 4]


def test_whoever_holds_every_model_comes_in_its_turn() -> None:
    engine, _ = with_models(2)
    engine.on_backend_up(0, 3)
    engine.on_backend_up(0, 5, resident=frozenset((1,)))
    engine.on_backend_up(0, 1, resident=frozenset((0,)))
    for rid in range(3):
        send(engine, rid, application=1)
    assert where(engine) == [3, 5]


def test_ripe_bid_is_served_by_whoever_loads_its_model() -> None:
    engine, _ = with_models(2)
    for backend in range(6):
        engine.on_backend_up(0, backend, resident=NOTHING)
    send(engine, 0)
    engine.on_resident(ms(1), 5, frozenset((1,)))
    assert where(engine) == []
    engine.on_resident(ms(2), 5, frozenset((0, 1)))
    assert where(engine) == [5]


def test_unloaded_model_runs_there_no_more() -> None:
    engine, _ = with_models(2)
    for backend in range(2):
        engine.on_backend_up(0, backend)
    engine.on_resident(0, 0, frozenset((1,)))
    send(engine, 0)
    send(engine, 1)
    send(engine, 2, application=1)
    assert where(engine) == [1, 0]


def test_drained_holder_is_passed_over() -> None:
    engine, _ = with_models(1)
    for backend in range(6):
        held = frozenset((0,)) if backend in (2, 4) else NOTHING
        engine.on_backend_up(0, backend, resident=held)
    engine.on_drain(0, 2)
    send(engine, 0)
    assert where(engine) == [4]
    engine.on_backend_down(0, 2)
    engine.on_backend_down(0, 0)
    engine.on_done(ms(5), 4, ms(5))
    send(engine, 1, ms(6))
    assert where(engine) == [4]


def test_model_that_can_be_swapped_in_runs_anywhere() -> None:
    first, second = Told(0), Told(1)
    first.may_run, second.may_run = frozenset((0,)), frozenset((1,))
    engine = make(first, second, backends=0)
    engine.on_backend_up(0, 0, resident=frozenset((1,)))
    engine.on_backend_up(0, 1, resident=frozenset((0,)))
    send(engine, 0)
    send(engine, 1)
    assert where(engine) == [0, 1]


def test_source_that_moves_finds_its_holders_in_the_new_sub_cluster() -> None:
    costs = Costs()
    engine = Engine(costs, ranks=2)
    for variant in range(2):
        costs.add(variant, [ms(5)])
        engine.add_application(Counting(variant))
    for backend in range(12):
        held = frozenset((0,)) if backend in (5, 11) else frozenset((1,))
        engine.on_backend_up(0, backend, rank=backend // 6, resident=held)
    for rid in range(2):
        send(engine, rid)
    engine.move_application(ms(1), 0, 1)
    assert where(engine) == [5, 11]


# Several variants


def test_any_variant_of_the_family_will_do() -> None:
    engine = central(3)
    for backend in range(8):
        engine.on_backend_up(0, backend, resident=NOTHING)
    engine.on_backend_up(0, 8, resident=frozenset((1,)))
    send(engine, 0)
    assert where(engine) == [8]


def test_client_that_insists_on_a_variant_finds_who_holds_it() -> None:
    engine = central(2)
    for backend in range(40):
        engine.on_backend_up(0, backend, resident=frozenset((0,)))
    engine.on_backend_up(0, 40, resident=frozenset((0, 1)))
    request = Request(0, 0, 0, ms(100))
    request.allowed = frozenset((1,))
    engine.on_request(0, request)
    assert where(engine) == [40]


# Backends that are too slow


def test_fast_backend_is_found_behind_any_of_a_slow_kind() -> None:
    source = Counting(0)
    engine = serve([source], kinds=2)
    for backend in range(60):
        engine.on_backend_up(0, backend, kind=1)
    engine.on_backend_up(0, 60)
    engine.on_request(0, Request(0, 0, 0, ms(40)))
    assert where(engine) == [60]
    # One of the slow ones speaks for all of them.
    assert source.offers == 2


def test_all_weak_backends_have_their_turn_in_the_end() -> None:
    source = Counting(0)
    engine = serve([source])
    for backend in range(60):
        engine.costs.backend_factor[backend] = 10.0 if backend < 59 else 1.1
        engine.on_backend_up(0, backend)
    for rid in range(4):
        # Each makes the batch larger, and is a reason to look again.
        engine.on_request(0, Request(rid, 0, 0, ms(40)))
    assert where(engine) == [59]
    assert source.offers <= 64


def test_one_healthy_backend_speaks_for_its_peers_and_for_weaker_ones() -> None:
    source = Told()
    source.may_run, source.declines = frozenset((0,)), set(range(40))
    engine = make(source, backends=0)
    engine.costs.backend_factor = dict.fromkeys(range(20), 1.5)
    for backend in range(40):
        engine.on_backend_up(0, backend)
    send(engine, 0)
    assert source.offers == [(20, 0)]
    source.key -= 1
    send(engine, 1)
    assert source.offers == [(20, 0), (20, 0)]


# What an event costs


def test_bids_that_no_idle_backend_can_serve_are_not_offered_again() -> None:
    engine, sources = with_models(101)
    for backend in range(8):
        engine.on_backend_up(0, backend, resident=frozenset((100,)))
    for rid in range(100):
        send(engine, rid, application=rid)
    for rid in range(100, 150):
        send(engine, rid, ms(rid), application=100)
        (backend,) = where(engine)
        engine.on_done(ms(rid), backend, ms(5))
    assert [source.offers for source in sources] == [0] * 100 + [50]


def test_backend_that_becomes_free_is_offered_to_nobody_whom_it_cannot_serve() -> None:
    engine, sources = with_models(102)
    engine.on_backend_up(0, 0, resident=frozenset(range(101)))
    engine.on_backend_up(0, 1, resident=frozenset((101,)))
    for rid in range(101):
        send(engine, rid, application=rid)
    assert where(engine) == [0]
    for rid in range(101, 150):
        send(engine, rid, ms(rid), application=101)
        send(engine, rid + 100, ms(rid), application=101)
        engine.on_done(ms(rid), 1, ms(5))
        assert where(engine) == [1, 1]
        engine.on_done(ms(rid), 1, ms(5))
    assert sum(source.offers for source in sources) == 1 + 2 * 49


def test_bid_that_declines_a_backend_is_not_offered_it_at_the_events_of_others() -> None:
    slow, fast = Counting(0), Counting(1)
    engine = serve([slow, fast], kinds=2)
    engine.on_backend_up(0, 0, kind=1, resident=frozenset((0,)))
    engine.on_backend_up(0, 1, resident=frozenset((1,)))
    engine.on_request(0, Request(0, 0, 0, ms(40)))
    for rid in range(1, 30):
        engine.on_request(rid, Request(rid, 1, rid, ms(100)))
        engine.on_done(rid, 1, ms(5))
    assert slow.offers == 1
