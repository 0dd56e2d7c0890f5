"""Streams at the door: who is superseded, who is shed, and for how long a frame may be held."""

import pytest

from fermata.foundation.units import NEVER, ms, seconds
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.core.fairness.admission import RULES, Admission, StreamAdmission
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions


def make(
    newest: bool = False, weights: dict[int, float] | None = None, backends: int = 0
) -> tuple[Engine, StreamAdmission]:
    costs = Costs()
    costs.add(0, [ms(4 + size) for size in range(1, 17)])
    engine = Engine(costs)
    admission = StreamAdmission(engine.outbox, newest, weights or {})
    engine.add_application(ModelThread(0, DeferredOptions()), admission=admission)
    for backend in range(backends):
        engine.on_backend_up(0, backend)
    return engine, admission


def frame(rid: int, at_ns: int, client: int, priority: int = 0) -> Request:
    return Request(rid, 0, at_ns, at_ns + ms(100), client=client, priority=priority)


def send(engine: Engine, rid: int, at_ns: int, client: int) -> None:
    engine.on_request(at_ns, frame(rid, at_ns, client))


def dropped(engine: Engine) -> list[tuple[int, str]]:
    return [
        (effect.request.rid, effect.reason)
        for effect in engine.take_effects()
        if isinstance(effect, Drop)
    ]


def shed_of(admission: StreamAdmission, client: int, frames: int, priority: int = 0) -> int:
    """How many of so many frames of one stream are refused, within one window."""
    reasons = [admission.admit(0, frame(rid, 0, client, priority)) for rid in range(frames)]
    assert set(reasons) <= {None, DropReason.SHED}
    return reasons.count(DropReason.SHED)


# Superseding


def test_new_frame_takes_the_place_of_the_queued_one() -> None:
    engine, _ = make(newest=True)
    send(engine, 0, 0, client=1)
    send(engine, 1, ms(1), client=2)
    send(engine, 2, ms(10), client=1)
    assert dropped(engine) == [(0, DropReason.SUPERSEDED)]
    assert sorted(engine.outbox.queued) == [1, 2]


def test_frame_that_runs_is_not_superseded() -> None:
    engine, _ = make(newest=True, backends=1)
    send(engine, 0, 0, client=1)
    while not engine.outbox.effects:
        engine.on_time(engine.wake_at_ns())
    (effect,) = engine.take_effects()
    assert isinstance(effect, Dispatch)
    send(engine, 1, ms(95), client=1)
    assert dropped(engine) == []
    assert list(engine.outbox.queued) == [1]


def test_all_frames_are_kept_unless_only_the_newest_counts() -> None:
    engine, _ = make(newest=False)
    send(engine, 0, 0, client=1)
    send(engine, 1, ms(10), client=1)
    assert dropped(engine) == []


def test_refused_frame_supersedes_nobody() -> None:
    engine, admission = make(newest=True)
    send(engine, 0, 0, client=1)
    admission.shed = 0.9
    admission.streams[1].debt = 0.5
    send(engine, 1, ms(10), client=1)
    assert dropped(engine) == [(1, DropReason.NO_BACKEND)]
    assert list(engine.outbox.queued) == [0]


def test_requests_that_stand_alone_do_not_supersede_one_another() -> None:
    engine, _ = make(newest=True)
    send(engine, 0, 0, client=0)
    send(engine, 1, ms(1), client=0)
    assert dropped(engine) == []


# Hold


def test_frame_should_start_before_the_next_is_due() -> None:
    engine, _ = make(newest=True)
    for rid, at_ms in enumerate((0, 20, 40)):
        send(engine, rid, ms(at_ms), client=1)
    # 0.8 of the period after its arrival.
    assert engine.outbox.queued[2].start_by_ns == ms(40 + 16)


def test_period_follows_the_frames_slowly() -> None:
    engine, admission = make(newest=True)
    for rid, at_ms in enumerate((0, 20, 48)):
        send(engine, rid, ms(at_ms), client=1)
    # 20 ms, and an eighth of the 8 ms by which the last gap was longer.
    assert admission.streams[1].period_ns == ms(21)
    assert engine.outbox.queued[2].start_by_ns == ms(48) + int(0.8 * ms(21))


def test_first_frame_and_streams_that_keep_all_are_held_as_long_as_the_deadline_allows() -> None:
    engine, _ = make(newest=True)
    send(engine, 0, 0, client=1)
    assert engine.outbox.queued[0].start_by_ns == NEVER
    engine, _ = make(newest=False)
    send(engine, 0, 0, client=1)
    send(engine, 1, ms(20), client=1)
    assert engine.outbox.queued[1].start_by_ns == NEVER


# Shedding


def test_shedding_takes_the_same_share_of_every_stream() -> None:
    _, admission = make()
    admission.shed = 0.25
    admission.window_ends_at_ns = NEVER
    assert [shed_of(admission, client, frames=100) for client in range(1, 6)] == [25] * 5


def test_streams_are_refused_in_turn_not_all_at_once() -> None:
    _, admission = make()
    admission.shed = 0.25
    admission.window_ends_at_ns = NEVER
    rounds = [sum(shed_of(admission, client, 1) for client in range(1, 41)) for _ in range(8)]
    # A quarter of forty, give or take a few.
    assert min(rounds) >= 7
    assert max(rounds) <= 13


def test_others_of_its_stream_go_in_place_of_the_highest_priority() -> None:
    _, admission = make()
    admission.shed = 0.25
    admission.window_ends_at_ns = NEVER
    urgent = rest = 0
    for _ in range(100):
        urgent += shed_of(admission, 1, frames=1, priority=1)
        rest += shed_of(admission, 1, frames=1)
    assert urgent == 0
    assert 45 <= rest <= 50


def test_other_streams_of_its_tenant_go_in_place_of_the_highest_priority() -> None:
    _, admission = make()
    admission.shed = 0.25
    admission.window_ends_at_ns = NEVER
    lost = dict.fromkeys((1, 2, 3), 0)
    for rid in range(300):
        client = 1 + rid % 3
        request = frame(rid, 0, client, priority=1 if client == 1 else 2)
        request.tenant = 9 if client < 3 else 8
        lost[client] += admission.admit(0, request) is not None
    assert lost == {1: 0, 2: pytest.approx(50, abs=2), 3: pytest.approx(25, abs=2)}


def test_stream_of_nothing_but_the_highest_priority_bears_its_share() -> None:
    _, admission = make()
    admission.shed = 0.25
    admission.window_ends_at_ns = NEVER
    lost = shed_of(admission, 1, frames=200, priority=1)
    assert lost == 50 - RULES.owed_max
    assert shed_of(admission, 2, frames=200) == 50
    # Once nobody has to go any more, what is owed is forgiven.
    admission.window_ends_at_ns = 0
    admission.admit(seconds(60), frame(0, seconds(60), client=1))
    assert admission.owed == {}


def test_twice_the_weight_is_half_the_loss() -> None:
    _, admission = make(weights={1: 2.0})
    admission.shed = 0.5
    admission.window_ends_at_ns = NEVER
    assert shed_of(admission, 1, frames=200) == 50
    assert shed_of(admission, 2, frames=200) == 100


def test_light_stream_recovers_from_an_overload() -> None:
    _, admission = make(weights={1: 0.5})
    admission.shed = 0.8
    admission.window_ends_at_ns = NEVER
    shed_of(admission, 1, frames=500)
    admission.shed = 0.1
    # A fifth of its frames is its share now; it loses all of them, for 375 frames.
    assert shed_of(admission, 1, frames=100) <= 30


def test_stream_that_lost_a_frame_is_spared_its_next_turn() -> None:
    _, admission = make()
    admission.shed = 0.5
    admission.window_ends_at_ns = NEVER
    shed_of(admission, 1, frames=2)
    before = admission.streams[1].debt
    admission.on_lost(frame(9, 0, 1))
    assert admission.streams[1].debt == before - 1.0
    assert shed_of(admission, 1, frames=2) == 0
    assert shed_of(admission, 1, frames=2) == 1


def test_losses_in_the_queue_raise_the_share_and_quiet_eases_it() -> None:
    _, admission = make()
    for rid in range(100):
        admission.admit(0, frame(rid, 0, client=rid))
    assert admission.shed == 0.0
    for rid in range(20):
        admission.on_lost(frame(rid, 0, client=rid))
    admission.admit(RULES.window_ns, frame(100, 0, client=1))
    raised = admission.shed
    assert 0.15 < raised <= 0.2
    # As much is offered as before, and nothing is lost: a little less is refused.
    for rid in range(1, 100):
        admission.admit(RULES.window_ns, frame(100 + rid, 0, client=rid))
    admission.admit(2 * RULES.window_ns, frame(300, 0, client=1))
    assert admission.shed == pytest.approx(0.95 * raised)
    # Then one request in a window where 80 were served: no more than there is room for.
    admission.admit(3 * RULES.window_ns, frame(301, 0, client=1))
    assert admission.shed == 0.0


def test_few_losses_are_tolerated_unless_one_stream_has_them_all() -> None:
    _, admission = make()
    for rid in range(1000):
        admission.admit(0, frame(rid, 0, client=rid % 100))
    for _ in range(4):
        admission.on_lost(frame(0, 0, client=7))
    # 0.4 %, but all of one stream's: its credit is used up.
    assert admission.starved
    admission.admit(RULES.window_ns, frame(0, 0, client=1))
    assert admission.shed == pytest.approx(0.005)


def test_engine_tells_of_losses_but_not_of_refusals_and_departures() -> None:
    engine, admission = make(newest=True)
    send(engine, 0, 0, client=1)
    send(engine, 1, ms(1), client=1)
    engine.on_cancel(ms(2), 1)
    assert dropped(engine) == [(0, DropReason.SUPERSEDED), (1, DropReason.CANCELLED)]
    assert admission.lost == 1


def test_plain_admission_lets_everybody_in() -> None:
    admission = Admission()
    assert admission.admit(0, frame(0, 0, 1)) is None
    assert admission.superseded(frame(1, 0, 1)) is None


def test_streams_that_have_ended_are_forgotten() -> None:
    _, admission = make()
    for client in range(1, 2001):
        admission.admit(client * ms(100), frame(client, client * ms(100), client))
    # One frame each, ten streams a second: after 200 s only the last minute's can matter.
    assert len(admission.streams) <= 1000


def test_nobody_is_refused_once_the_load_has_fallen() -> None:
    engine = Engine(Costs())
    admission = StreamAdmission(engine.outbox, newest=False, weights={})
    for rid in range(200):
        request = Request(rid, 0, rid * ms(5), rid * ms(5) + ms(100), client=1)
        if admission.admit(rid * ms(5), request) is None and rid % 2:
            admission.on_lost(request)
    assert admission.shed > 0.3
    # An hour later one request comes; what could be served then was far more.
    late_ns = seconds(3600)
    assert admission.admit(late_ns, Request(900, 0, late_ns, late_ns + ms(100), client=1)) is None
    assert admission.shed == 0.0
