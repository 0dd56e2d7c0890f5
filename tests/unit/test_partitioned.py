"""Static partitions: the packing by hand, and the source on a real engine. A batch of b runs
b + 4 ms, so with an SLO of 24 ms a backend runs batches of 8 in 12 ms, 667 requests a second."""

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.policies.baselines.partitioned import (
    Bin,
    Partitioned,
    PartitionedOptions,
    PartitionWorker,
    Route,
    SessionLoad,
    pack,
    partition,
    residual_bin,
)
from fermata.router.policies.family import alone

TABLE = [0, *(ms(4 + size) for size in range(1, 17))]
WHOLE_RPS = 8 / 0.012


def load(application: int, rps: float) -> SessionLoad:
    return SessionLoad(application, rps, ms(24), TABLE, 8)


def contents(bins: list[Bin] | None) -> list[list[tuple[int, int]]]:
    """(application, batch size) of the parts of each bin."""
    assert bins is not None
    return [[(part.load.application, part.size) for part in packed.parts] for packed in bins]


def test_residual_takes_the_longest_cycle_its_slo_allows() -> None:
    # 5 requests arrive in 15 ms and run 9; 6 would need 18 + 10 ms.
    residual = residual_bin(load(0, 1000 / 3), 1000 / 3)
    assert contents([residual]) == [[(0, 5)]]
    assert residual.duty_ns == pytest.approx(ms(15))
    assert residual.occupancy == pytest.approx(9 / 15)
    # Once a second there is never more than one: its cycle is SLO less run time.
    assert residual_bin(load(0, 1.0), 1.0).duty_ns == ms(24 - 5)


def test_whole_backends_first_then_the_rest() -> None:
    bins = pack([load(0, 2 * WHOLE_RPS + 340)], 1.0, 8)
    assert contents(bins) == [[(0, 8)], [(0, 8)], [(0, 5)]]
    assert pack([load(0, 2 * WHOLE_RPS + 340)], 1.0, 2) is None


def test_residuals_share_a_backend_while_a_cycle_has_room() -> None:
    # 100 a second: one request every 10 ms, run in 5; two fill the cycle, a third does not fit.
    assert contents(pack([load(0, 100), load(1, 100)], 1.0, 8)) == [[(0, 1), (1, 1)]]
    three = pack([load(0, 100), load(1, 100), load(2, 100)], 1.0, 8)
    assert contents(three) == [[(0, 1), (1, 1)], [(2, 1)]]


def test_partition_fills_all_backends_in_proportion() -> None:
    for rps in (10.0, 10_000.0):
        bins = partition([load(0, rps), load(1, 3 * rps)], 8)
        assert len(bins) == 8
        total = [
            sum(part.rps for packed in bins for part in packed.parts if part.load.application == a)
            for a in (0, 1)
        ]
        assert total[1] / total[0] == pytest.approx(3, rel=0.35)


def test_loads_that_fit_at_no_scale_get_no_plan() -> None:
    assert partition([load(application, 1.0) for application in range(9)], 1) == []


def test_route_follows_the_weights() -> None:
    route = Route([(PartitionWorker(0), 200.0), (PartitionWorker(1), 100.0)])
    assert [route.next().backend for _ in range(6)] == [0, 1, 0, 0, 1, 0]


def make(backends: int = 1, models: int = 1) -> tuple[Engine, Partitioned]:
    costs = Costs()
    for variant in range(models):
        costs.add(variant, TABLE[1:])
    engine = Engine(costs)
    source = Partitioned(alone(range(models)), PartitionedOptions())
    for _ in range(models):
        engine.add_application(source)
    for backend in range(backends):
        engine.on_backend_up(0, backend, owner=0)
    return engine, source


def send(engine: Engine, rid: int, at_ns: int, application: int = 0, slo_ns: int = ms(24)) -> None:
    engine.on_request(at_ns, Request(rid, application, at_ns, at_ns + slo_ns))


def advance(engine: Engine, to_ns: int) -> None:
    """Fire every timer due by then, each at its own time."""
    while engine.wake_at_ns() <= to_ns:
        engine.on_time(engine.wake_at_ns())


def ran(engine: Engine) -> list[tuple[int, list[int]]]:
    """Backend and request ids of the batches dispatched since the last call."""
    return [
        (effect.backend, [request.rid for request in effect.batch.requests])
        for effect in engine.take_effects()
        if isinstance(effect, Dispatch)
    ]


def drops(engine: Engine) -> list[tuple[int, str]]:
    return [
        (effect.request.rid, effect.reason)
        for effect in engine.take_effects()
        if isinstance(effect, Drop)
    ]


def test_before_the_first_plan_requests_go_round_all_backends() -> None:
    engine, _ = make(backends=3)
    for rid in range(3):
        send(engine, rid, 0)
    assert ran(engine) == [(0, [0]), (1, [1]), (2, [2])]


def test_first_plan_parts_the_backends() -> None:
    engine, source = make(backends=2, models=2)
    for rid in range(50):
        send(engine, rid, ms(10 * rid), application=rid % 2)
        for backend, _ in ran(engine):
            engine.on_done(ms(10 * rid + 5), backend, ms(5))
    assert source.routes == {}
    send(engine, 50, SECOND // 2)
    assert [list(worker.sizes) for worker in source.workers.values()] == [[0], [1]]
    ((backend, _),) = ran(engine)
    assert backend == 0
    # The next plan comes at twice that age.
    assert source.replan_at_ns == SECOND


def test_backend_serves_its_queues_in_turn() -> None:
    engine, _ = make(models=2)
    send(engine, 0, 0, application=0)
    for rid, application in ((1, 0), (2, 1), (3, 0), (4, 1)):
        send(engine, rid, ms(1), application)
    assert ran(engine) == [(0, [0])]
    engine.on_done(ms(5), 0, ms(5))
    assert ran(engine) == [(0, [1, 3])]
    engine.on_done(ms(11), 0, ms(6))
    assert ran(engine) == [(0, [2, 4])]


def test_early_drop_keeps_overload_from_shrinking_the_batch() -> None:
    engine, _ = make()
    send(engine, 0, 0)
    send(engine, 1, 0, slo_ns=ms(14))
    for rid in range(2, 12):
        send(engine, rid, ms(1))
    engine.take_effects()
    # At 5 ms request 1 leaves 9 ms, time for 5 of the 7 planned; the others 20, time for all.
    engine.on_done(ms(5), 0, ms(5))
    drop, dispatch = engine.take_effects()
    assert isinstance(drop, Drop)
    assert drop.request.rid == 1
    assert drop.reason == DropReason.WINDOW
    assert isinstance(dispatch, Dispatch)
    assert len(dispatch.batch.requests) == 10


def test_hopeless_request_is_dropped_while_the_backend_is_busy() -> None:
    engine, _ = make(models=2)
    send(engine, 0, 0)
    send(engine, 1, ms(1), application=0)
    send(engine, 2, ms(1), application=1, slo_ns=ms(8))
    engine.take_effects()
    advance(engine, ms(4))
    assert engine.take_effects() == []
    advance(engine, ms(4) + 1)
    assert drops(engine) == [(2, DropReason.LATE)]


def test_requests_of_a_backend_that_goes_move_to_another() -> None:
    engine, source = make(backends=2)
    for rid in range(4):
        send(engine, rid, 0)
    assert ran(engine) == [(0, [0]), (1, [1])]
    engine.on_backend_down(ms(1), 0)
    engine.on_done(ms(5), 1, ms(5))
    engine.on_done(ms(11), 1, ms(6))
    # What ran when it went may be why, and has no company any more.
    assert [(backend, sorted(batch)) for backend, batch in ran(engine)] == [(1, [2, 3]), (1, [0])]
    assert list(source.workers) == [1]


def test_without_backends_requests_wait_until_they_are_hopeless() -> None:
    engine, _ = make(backends=0)
    send(engine, 0, 0)
    send(engine, 1, 0, slo_ns=ms(12))
    advance(engine, ms(7))
    assert engine.take_effects() == []
    advance(engine, ms(7) + 1)
    assert drops(engine) == [(1, DropReason.NO_BACKEND)]
    engine.on_backend_up(ms(8), 0, owner=0)
    assert ran(engine) == [(0, [0])]
    assert not engine.outbox.queued


def test_cancelled_request_is_forgotten() -> None:
    engine, _ = make()
    send(engine, 0, 0)
    send(engine, 1, 0)
    assert engine.on_cancel(ms(1), 1)
    assert drops(engine) == [(1, DropReason.CANCELLED)]
    engine.on_done(ms(5), 0, ms(5))
    assert ran(engine) == []


def test_a_margin_that_lets_nothing_run_is_doubted() -> None:
    engine, _ = make()
    for rid in range(20):
        send(engine, rid, ms(100 * rid))
        assert ran(engine) == [(0, [rid])]
        # The last one hangs for 200 ms: its margin alone would refuse everyone from now on.
        engine.on_done(ms(100 * rid + 5), 0, ms(5) if rid < 19 else ms(200))
    send(engine, 20, ms(3000))
    assert drops(engine) == [(20, "late")]
    send(engine, 21, ms(3100))
    assert ran(engine) == [(0, [21])]
