"""Sequences in the core: order, place of the state, and ends that are told once."""

import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, ms, seconds
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.engine import Engine
from fermata.router.core.events import (
    Dispatch,
    Drop,
    DropReason,
    EndSession,
    Request,
    SequenceStep,
)
from fermata.router.core.sessions.table import ITS_TURN, WAITS, SessionTable, StepEnd
from fermata.router.policies.application import ApplicationSpec, VariantSpec


def tracker(**options: object) -> ApplicationSpec:
    table = tuple(ms(2 + size) for size in range(1, 9))
    variant = VariantSpec("tracker-1", table)
    return ApplicationSpec("tracker", ms(100), (variant,), sequences=True, **options)  # type: ignore[arg-type]


def engine_of(backends: int, **options: object) -> Engine:
    built = assemble(RouterConfig((tracker(**options),), lead_ns=0))
    for backend in range(backends):
        built.engine.on_backend_up(0, backend)
    return built.engine


def step(rid: int, now_ns: int, key: int, start: bool = False, end: bool = False) -> Request:
    request = Request(rid, 0, now_ns, now_ns + ms(100))
    request.sequence = SequenceStep(key, start, end)
    return request


def told(engine: Engine) -> list[object]:
    """Effects in short: (backend, rids) of a batch, (rid, reason) of a drop."""
    found: list[object] = []
    for effect in engine.take_effects():
        if isinstance(effect, Dispatch):
            found.append((effect.backend, [each.rid for each in effect.batch.requests]))
        elif isinstance(effect, Drop):
            found.append((effect.request.rid, effect.reason))
        elif isinstance(effect, EndSession):
            found.append(("end", effect.backend, effect.key))
    return found


# The table


def test_requests_of_a_sequence_take_turns() -> None:
    table: SessionTable[str] = SessionTable(seconds(1), 2)
    assert table.enter(0, SequenceStep(7), "early") == DropReason.NO_SEQUENCE
    assert table.enter(0, SequenceStep(7, start=True), "a") == ITS_TURN
    assert table.enter(0, SequenceStep(7), "b") == WAITS
    assert table.enter(0, SequenceStep(7, end=True), "c") == WAITS
    assert table.leave(1, 7, "b", StepEnd.RAN) == []
    assert table.leave(1, 7, "a", StepEnd.RAN) == [("b", ITS_TURN)]
    assert table.leave(2, 7, "b", StepEnd.RAN) == [("c", ITS_TURN)]
    assert table.leave(3, 7, "c", StepEnd.RAN) == []
    assert len(table) == 0
    assert table.enter(4, SequenceStep(7), "late") == DropReason.NO_SEQUENCE


def test_a_start_that_never_ran_takes_its_followers_with_it() -> None:
    table: SessionTable[str] = SessionTable(seconds(1), 2)
    table.enter(0, SequenceStep(7, start=True), "a")
    table.enter(0, SequenceStep(7), "b")
    table.enter(0, SequenceStep(7, start=True), "again")
    found = table.cancel(1, SequenceStep(7, start=True), "a")
    assert found == [("b", DropReason.NO_SEQUENCE), ("again", ITS_TURN)]


def test_a_cancelled_start_does_not_join_two_sequences() -> None:
    table: SessionTable[str] = SessionTable(seconds(1), 2)
    table.enter(0, SequenceStep(7, start=True), "a")
    table.enter(0, SequenceStep(7, start=True), "second")
    table.enter(0, SequenceStep(7), "of the second")
    assert table.cancel(1, SequenceStep(7, start=True), "second") == []
    assert table.leave(2, 7, "a", StepEnd.RAN) == [("of the second", DropReason.NO_SEQUENCE)]
    assert len(table) == 0


def test_a_refused_start_does_not_join_two_sequences() -> None:
    engine = engine_of(1)
    engine.on_request(0, step(0, 0, 7, start=True))
    refused = step(1, 0, 7, start=True)
    refused.allowed = frozenset((99,))
    engine.on_request(0, refused)
    engine.on_request(0, step(2, 0, 7))
    engine.on_done(ms(3), 0, ms(3))
    found = told(engine)
    assert found == [(0, [0]), (1, DropReason.FLOOR), ("end", 0, 7), (2, DropReason.NO_SEQUENCE)]
    engine.on_request(ms(4), step(3, ms(4), 7))
    assert told(engine) == [(3, DropReason.NO_SEQUENCE)]


def test_sessions_end_when_idle_and_are_bounded() -> None:
    table: SessionTable[str] = SessionTable(seconds(1), 2)
    for key in (1, 2):
        table.enter(key, SequenceStep(key, start=True), "x")
    assert table.enter(3, SequenceStep(3, start=True), "x") == DropReason.FULL
    table.leave(4, 1, "x", StepEnd.RAN)
    table.settle(table.sessions[1], 5)
    assert table.wake_at_ns() == 2 + seconds(1)
    table.expire(seconds(1) + 4)
    assert list(table.sessions) == [2], "the one with a request has not been idle"
    assert table.take_closed() == [(5, 1)]


# The engine


def test_a_batch_mixes_sequences_and_has_none_of_them_twice() -> None:
    engine = engine_of(1)
    engine.on_request(0, step(0, 0, 9, start=True))
    assert told(engine) == [(0, [0])]
    for rid, key in ((1, 1), (2, 2)):
        engine.on_request(1, step(rid, 1, key, start=True))
        engine.on_request(1, step(rid + 10, 1, key))
    engine.on_done(ms(3), 0, ms(3))
    assert told(engine) == [(0, [1, 2])]
    engine.on_done(ms(7), 0, ms(4))
    assert told(engine) == [(0, [11, 12])]


def test_sequences_are_spread_and_stay_where_they_began() -> None:
    engine = engine_of(2)
    engine.on_request(0, step(0, 0, 1, start=True))
    engine.on_request(0, step(1, 0, 2, start=True))
    assert told(engine) == [(0, [0]), (1, [1])]
    for backend in (0, 1):
        engine.on_done(ms(3), backend, ms(3))
    engine.on_request(ms(4), step(2, ms(4), 2))
    assert told(engine) == [(1, [2])]
    engine.on_request(ms(4), step(3, ms(4), 2))
    assert told(engine) == [], "backend 0 is free, but has no state of sequence 2"


def test_each_sequence_of_a_dead_backend_is_told_once() -> None:
    engine = engine_of(1)
    for rid, key in ((0, 1), (1, 2)):
        engine.on_request(0, step(rid, 0, key, start=True))
    engine.on_done(ms(3), 0, ms(3))
    engine.on_done(ms(6), 0, ms(3))
    told(engine)
    engine.on_request(ms(7), step(2, ms(7), 1))
    engine.on_request(ms(7), step(3, ms(7), 1))
    assert told(engine) == [(0, [2])]
    engine.on_backend_up(ms(8), 1)
    engine.on_backend_down(ms(8), 0)
    # Its outstanding request is told, what comes after that has no sequence.
    assert told(engine) == [(2, DropReason.SEQUENCE_LOST), (3, DropReason.NO_SEQUENCE)]
    # Another one had nothing outstanding, so its next request is told.
    engine.on_request(ms(9), step(4, ms(9), 2))
    engine.on_request(ms(9), step(5, ms(9), 2))
    assert told(engine) == [(4, DropReason.SEQUENCE_LOST), (5, DropReason.NO_SEQUENCE)]
    engine.on_request(ms(10), step(6, ms(10), 1, start=True))
    assert told(engine) == [(1, [6])]


def test_a_failed_batch_ends_its_sequences() -> None:
    engine = engine_of(2)
    first = step(0, 0, 1, start=True)
    engine.on_request(0, first)
    told(engine)
    engine.on_done(ms(3), 0, ms(3), failed="ValueError: no", left_out=[first])
    # It is not tried elsewhere: it may have changed the state of others already.
    assert (0, DropReason.FAILED) in told(engine)
    engine.on_request(ms(4), step(1, ms(4), 1))
    assert told(engine) == [(1, DropReason.NO_SEQUENCE)]


def test_a_lost_result_ends_its_sequence() -> None:
    engine = engine_of(2)
    first = step(0, 0, 1, start=True)
    engine.on_request(0, first)
    engine.on_request(0, step(1, 0, 1))
    told(engine)
    engine.on_done(ms(3), 0, ms(3), left_out=[first])
    found = told(engine)
    assert found[:2] == [(0, DropReason.SEQUENCE_LOST), ("end", 0, 1)]
    assert found[2:] == [(1, DropReason.NO_SEQUENCE)]


def test_a_start_behind_a_lost_result_runs_where_it_was() -> None:
    engine = assemble(RouterConfig((tracker(),), lead_ns=ms(1))).engine
    engine.on_backend_up(0, 0)
    first = step(0, 0, 1, start=True)
    engine.on_request(0, first)
    # The backend can be had again before it has ended, and its turn comes when it ends.
    engine.on_time(ms(3))
    engine.on_request(ms(3), step(1, ms(3), 1, start=True))
    engine.on_done(ms(4), 0, ms(3), left_out=[first])
    assert told(engine) == [(0, [0]), (0, DropReason.SEQUENCE_LOST), ("end", 0, 1), (0, [1])]


def test_a_backend_that_runs_out_takes_requests_without_a_sequence() -> None:
    engine = engine_of(2)
    for rid in range(4):
        engine.on_request(0, Request(rid, 0, 0, ms(100)))
    assert told(engine) == [(0, [0]), (1, [1])]
    # Two of them wait, one on each; whichever ends first takes both.
    engine.on_done(ms(3), 1, ms(3))
    engine.on_done(ms(7), 1, ms(4))
    engine.on_done(ms(9), 0, ms(9))
    assert sorted(rid for _, rids in told(engine) for rid in rids) == [2, 3]


def test_a_request_without_a_sequence_goes_where_nothing_runs() -> None:
    engine = engine_of(2)
    engine.on_request(0, Request(0, 0, 0, ms(100)))
    engine.on_request(ms(1), Request(1, 0, ms(1), ms(100)))
    assert told(engine) == [(0, [0]), (1, [1])]
    engine.on_done(ms(3), 1, ms(2))
    # Nothing waits anywhere, and the first one is still at work.
    engine.on_request(ms(4), Request(2, 0, ms(4), ms(100)))
    assert told(engine) == [(1, [2])]


def test_an_idle_sequence_ends_and_its_backend_hears_of_it() -> None:
    engine = engine_of(1, sequence_idle_ns=seconds(2))
    engine.on_request(0, step(0, 0, 1, start=True))
    engine.on_done(ms(3), 0, ms(3))
    told(engine)
    while engine.wake_at_ns() < NEVER:
        engine.on_time(engine.wake_at_ns())
    assert told(engine) == [("end", 0, 1)]
    engine.on_request(seconds(5), step(1, seconds(5), 1))
    assert told(engine) == [(1, DropReason.NO_SEQUENCE)]


def test_a_backend_that_is_to_go_keeps_its_sequences_and_gets_no_new_one() -> None:
    engine = engine_of(2)
    engine.on_request(0, step(0, 0, 1, start=True))
    engine.on_done(ms(3), 0, ms(3))
    assert not engine.vacate(ms(4), 0)
    engine.on_request(ms(4), step(1, ms(4), 2, start=True))
    engine.on_request(ms(4), step(2, ms(4), 3, start=True))
    engine.on_request(ms(4), step(3, ms(4), 1, end=True))
    assert told(engine) == [(0, [0]), (1, [1]), (0, [3])]
    engine.on_done(ms(7), 0, ms(3))
    assert engine.vacate(ms(8), 0)


def test_requests_wait_for_the_first_backend() -> None:
    engine = engine_of(0)
    engine.on_request(0, step(0, 0, 1, start=True))
    engine.on_request(0, step(1, 0, 1))
    engine.on_request(0, step(2, 0, 2, start=True))
    engine.on_cancel(ms(1), 2)
    told(engine)
    engine.on_backend_up(ms(5), 4)
    assert told(engine) == [(4, [0])]


def test_without_a_backend_a_start_ends_in_time() -> None:
    engine = engine_of(0)
    engine.on_request(0, step(0, 0, 1, start=True))
    engine.on_request(0, step(1, 0, 1))
    while engine.outbox.queued:
        engine.on_time(engine.wake_at_ns())
    assert told(engine) == [(0, DropReason.NO_BACKEND), (1, DropReason.NO_SEQUENCE)]


@pytest.mark.parametrize(
    ("options", "error"),
    [({"policy": "eager"}, "leave policy out"), ({"newest": True}, "newest would drop parts")],
)
def test_options_that_break_sequences_are_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        engine_of(1, **options)
