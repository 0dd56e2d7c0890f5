"""Batch queues on a real engine; a batch of b runs b + 4 ms."""

from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.policies.baselines.batch_queues import BatchQueues, BatchQueuesOptions


def make(backends: int = 1, models: int = 1, size_weight_ns: int = 0) -> Engine:
    costs = Costs()
    engine = Engine(costs)
    for variant in range(models):
        costs.add(variant, [ms(4 + size) for size in range(1, 17)])
        engine.add_application(BatchQueues(variant, BatchQueuesOptions(size_weight_ns)))
    for backend in range(backends):
        engine.on_backend_up(0, backend)
    return engine


def send(engine: Engine, rid: int, at_ns: int, slo_ns: int = ms(40), application: int = 0) -> None:
    engine.on_request(at_ns, Request(rid, application, at_ns, at_ns + slo_ns))


def advance(engine: Engine, to_ns: int) -> None:
    """Fire every timer due by then, each at its own time."""
    while engine.wake_at_ns() <= to_ns:
        engine.on_time(engine.wake_at_ns())


def ran(engine: Engine) -> list[list[int]]:
    """The request ids of the batches dispatched since the last call."""
    return [
        [request.rid for request in effect.batch.requests]
        for effect in engine.take_effects()
        if isinstance(effect, Dispatch)
    ]


def test_a_free_backend_never_waits() -> None:
    engine = make()
    send(engine, 0, 0)
    assert ran(engine) == [[0]]
    for rid in (1, 2, 3):
        send(engine, rid, ms(1))
    engine.on_done(ms(5), 0, ms(5))
    assert ran(engine) == [[1, 2, 3]]


def test_tight_head_is_left_out_of_the_larger_batch() -> None:
    engine = make()
    send(engine, 0, 0)
    send(engine, 1, ms(1), slo_ns=ms(9.5))
    send(engine, 2, ms(1))
    send(engine, 3, ms(1))
    engine.take_effects()
    # At 5 ms three would end at 12 and two at 11, too late for deadline 10.5; alone it had time.
    engine.on_done(ms(5), 0, ms(5))
    assert ran(engine) == [[2, 3]]
    assert list(engine.outbox.queued) == [1]
    advance(engine, ms(5.5))
    assert engine.take_effects() == []
    advance(engine, ms(5.5) + 1)
    (drop,) = engine.take_effects()
    assert isinstance(drop, Drop)
    assert drop.request.rid == 1
    assert drop.reason == DropReason.LATE
    assert engine.wake_at_ns() == NEVER


def test_head_left_out_runs_on_the_next_backend() -> None:
    engine = make(backends=2)
    send(engine, 0, 0)
    send(engine, 1, 0)
    send(engine, 2, ms(1), slo_ns=ms(9.5))
    send(engine, 3, ms(1))
    send(engine, 4, ms(1))
    engine.take_effects()
    engine.on_done(ms(5), 0, ms(5))
    engine.on_done(ms(5), 1, ms(5))
    assert ran(engine) == [[3, 4], [2]]


def test_request_is_dropped_only_when_it_would_be_late_alone() -> None:
    engine = make(backends=0)
    send(engine, 0, 0, slo_ns=ms(10))
    send(engine, 1, 0, slo_ns=ms(10))
    # Both together have until 4 ms, one alone until 5.
    advance(engine, ms(5))
    assert engine.take_effects() == []
    advance(engine, ms(5) + 1)
    assert len(engine.take_effects()) == 2
    assert not engine.outbox.queued


def fill_two_models(engine: Engine) -> None:
    """Until 5 ms the backend is busy; then one model has a tight request, the other four."""
    send(engine, 0, 0)
    send(engine, 1, ms(1), slo_ns=ms(16), application=0)
    for rid in range(2, 6):
        send(engine, rid, ms(1), slo_ns=ms(24), application=1)
    engine.take_effects()
    engine.on_done(ms(5), 0, ms(5))


def test_among_models_the_earliest_latest_start_wins() -> None:
    engine = make(models=2)
    fill_two_models(engine)
    # Latest starts: 17 - 5 = 12 ms against 25 - 8 = 17 ms.
    assert ran(engine) == [[1]]


def test_among_models_the_largest_batch_may_win() -> None:
    engine = make(models=2, size_weight_ns=SECOND)
    fill_two_models(engine)
    assert ran(engine) == [[2, 3, 4, 5]]


def test_overload_keeps_batches_as_large_as_the_slo_allows() -> None:
    engine = make()
    send(engine, 0, 0)
    for rid in range(1, 40):
        send(engine, rid, ms(1) + rid, slo_ns=ms(16))
    engine.take_effects()
    # At 5 ms there are 12 ms left: a batch of 8.
    engine.on_done(ms(5), 0, ms(5))
    assert ran(engine) == [list(range(1, 9))]
    # At 13 ms nobody has time for more than 4 + 1 ms; all were dropped before.
    advance(engine, ms(12) + 40)
    assert sum(isinstance(effect, Drop) for effect in engine.take_effects()) == 31


def test_cancelled_request_is_forgotten() -> None:
    engine = make(backends=0)
    send(engine, 0, 0)
    assert engine.on_cancel(ms(1), 0)
    engine.take_effects()
    engine.on_backend_up(ms(2), 0)
    assert ran(engine) == []
    assert engine.wake_at_ns() == NEVER
