"""Timeout batching on a real engine; a batch of b runs b + 4 ms."""

from random import Random

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.policies.baselines.timeout import TimeoutBatching, TimeoutOptions
from fermata.router.policies.family import alone


def make(
    backends: int = 1, models: int = 1, wait_ns: int = ms(5), size_max: int = 0
) -> tuple[Engine, TimeoutBatching]:
    costs = Costs()
    for variant in range(models):
        costs.add(variant, [ms(4 + size) for size in range(1, 17)])
    engine = Engine(costs)
    source = TimeoutBatching(alone(range(models)), TimeoutOptions(wait_ns, size_max), Random(1))
    for _ in range(models):
        engine.add_application(source)
    for backend in range(backends):
        engine.on_backend_up(0, backend, owner=0)
    return engine, source


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


def dropped(engine: Engine) -> list[tuple[int, str]]:
    return [
        (effect.request.rid, effect.reason)
        for effect in engine.take_effects()
        if isinstance(effect, Drop)
    ]


def test_batch_leaves_when_its_first_request_has_waited() -> None:
    engine, _ = make()
    send(engine, 0, 0)
    send(engine, 1, ms(2))
    advance(engine, ms(5) - 1)
    assert ran(engine) == []
    advance(engine, ms(5))
    assert ran(engine) == [[0, 1]]


def test_full_batch_leaves_at_once() -> None:
    engine, _ = make(size_max=2)
    send(engine, 0, 0)
    send(engine, 1, ms(1))
    assert ran(engine) == [[0, 1]]
    # Five more come while the two run until 7 ms; then two of them leave.
    for rid in range(2, 7):
        send(engine, rid, ms(2))
    engine.on_done(ms(7), 0, ms(6))
    assert ran(engine) == [[2, 3]]


def test_by_default_a_full_batch_takes_half_the_slo() -> None:
    engine, source = make()
    send(engine, 0, 0, slo_ns=ms(14))
    send(engine, 1, 0, slo_ns=ms(14))
    assert source.size_max == {0: 3}
    assert ran(engine) == []
    send(engine, 2, 0, slo_ns=ms(14))
    assert ran(engine) == [[0, 1, 2]]


def test_hopeless_request_is_dropped_while_the_backend_is_busy() -> None:
    engine, _ = make(wait_ns=0)
    send(engine, 0, 0)
    send(engine, 1, ms(1), slo_ns=ms(8))
    assert ran(engine) == [[0]]
    # It expires at 9 ms and needs 5: after 4 ms there is no hope.
    advance(engine, ms(4))
    assert engine.take_effects() == []
    advance(engine, ms(4) + 1)
    assert dropped(engine) == [(1, DropReason.LATE)]


def test_head_that_the_batch_would_make_late_is_dropped_at_its_turn() -> None:
    engine, _ = make(wait_ns=0)
    send(engine, 0, 0)
    send(engine, 1, ms(1), slo_ns=ms(9.5))
    send(engine, 2, ms(1))
    engine.take_effects()
    # At 5 ms both together would end at 11, the first expires at 10.5.
    engine.on_done(ms(5), 0, ms(5))
    drop, dispatch = engine.take_effects()
    assert isinstance(drop, Drop)
    assert drop.request.rid == 1
    assert drop.reason == DropReason.WINDOW
    assert isinstance(dispatch, Dispatch)
    assert dispatch.batch.requests[0].rid == 2


def test_models_take_turns_by_oldest_head() -> None:
    engine, _ = make(models=2, wait_ns=ms(1))
    send(engine, 0, 0, application=0)
    advance(engine, ms(1))
    send(engine, 1, ms(2), application=1)
    send(engine, 2, ms(3), application=0)
    assert ran(engine) == [[0]]
    engine.on_done(ms(6), 0, ms(5))
    assert ran(engine) == [[1]]
    engine.on_done(ms(11), 0, ms(5))
    assert ran(engine) == [[2]]


def test_the_shorter_of_two_backends_is_chosen() -> None:
    engine, source = make(backends=2)
    for rid in range(6):
        send(engine, rid, 0)
    assert [replica.load for replica in source.up] == [3, 3]


def test_running_requests_count_as_load_until_they_are_done() -> None:
    engine, source = make(backends=2, wait_ns=0)
    send(engine, 0, 0)
    (dispatch,) = engine.take_effects()
    assert isinstance(dispatch, Dispatch)
    assert source.replicas[dispatch.backend].load == 1
    engine.on_done(ms(5), dispatch.backend, ms(5))
    assert source.replicas[dispatch.backend].load == 0


def test_requests_of_a_backend_that_goes_move_to_another() -> None:
    engine, source = make(backends=2)
    for rid in range(4):
        send(engine, rid, 0)
    engine.on_backend_down(ms(1), 0)
    assert source.replicas[1].load == 4
    advance(engine, ms(5))
    (batch,) = ran(engine)
    assert sorted(batch) == [0, 1, 2, 3]


def test_without_backends_requests_wait_until_they_are_hopeless() -> None:
    engine, _ = make(backends=0)
    send(engine, 0, 0, slo_ns=ms(20))
    send(engine, 1, 0, slo_ns=ms(12))
    send(engine, 2, 0, slo_ns=ms(10))
    assert engine.on_cancel(ms(1), 2)
    engine.take_effects()
    advance(engine, ms(7))
    assert engine.take_effects() == []
    advance(engine, ms(7) + 1)
    assert dropped(engine) == [(1, DropReason.NO_BACKEND)]
    # At 8 ms it has waited for long enough already.
    engine.on_backend_up(ms(8), 0, owner=0)
    assert ran(engine) == [[0]]
    assert not engine.outbox.queued


def test_cancelled_request_is_forgotten() -> None:
    engine, source = make()
    send(engine, 0, 0)
    send(engine, 1, ms(1))
    assert engine.on_cancel(ms(2), 0)
    assert dropped(engine) == [(0, DropReason.CANCELLED)]
    advance(engine, ms(6) - 1)
    assert engine.take_effects() == []
    assert engine.on_cancel(ms(6) - 1, 1)
    assert source.replicas[0].load == 0
    assert engine.wake_at_ns() == NEVER


def test_a_margin_that_leaves_no_time_to_wait_for_others_is_doubted() -> None:
    engine, _ = make(wait_ns=ms(10), size_max=4)
    # It leaves 36 of 40 ms, so that a request alone could run at once, but not after its wait.
    for _ in range(20):
        engine.costs.observe(0, 0, 0, 1, ms(36))
    for rid in range(40):
        send(engine, rid, rid * ms(100))
        advance(engine, rid * ms(100) + ms(50))
        for _ in ran(engine):
            engine.on_done(rid * ms(100) + ms(60), 0, ms(5))
    assert engine.costs.of(0).factor < 2.0
