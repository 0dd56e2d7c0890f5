"""Spans of a followed request: worked out on one clock, written as OTLP, drawn for Perfetto."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fermata.commands.trace import chrome_events, read_spans
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.frontend.requests.tracing.trace_file import Traces, otlp_line
from fermata.deployments.frontend.requests.tracing.traces import Span, Tracer, read_traceparent
from fermata.deployments.specs.frontend import TraceOptions
from fermata.foundation.rolling_file import RollingFile
from fermata.foundation.units import ms
from fermata.router.links.messages import Fetch, Result

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CATS = RequestTerms("cats", ms(50), ms(50), 1)
QUIET = PARENT[:-1] + "0"


def followed(tracer: Tracer, rid: int = 7, traceparent: str = PARENT) -> list[Span]:
    """Arrives at 0, decoded at 2 ms, fetched at 10, run from 14 to 20, told at 21."""
    tracer.begin(0, rid, CATS, traceparent)
    tracer.on_payload(ms(2), rid)
    tracer.on_fetch(ms(10), 3, Fetch(5, (rid,)))
    tracer.on_result(ms(20), rid)
    tracer.end(ms(21), rid, Result(rid, "v", 4, 0, ms(6)))
    return tracer.take()


def test_stages_follow_one_another() -> None:
    spans = followed(Tracer(0.0, random.Random(1)))
    assert [(each.name, each.start_ns // ms(1), each.end_ns // ms(1)) for each in spans] == [
        ("receive", 0, 21),
        ("decode", 0, 2),
        ("queue", 0, 10),
        ("fetch", 10, 14),
        ("run", 14, 20),
        ("reply", 20, 21),
    ]
    root = spans[0]
    assert root.trace_id == PARENT[3:35]
    assert root.parent_id == PARENT[36:52]
    assert {each.parent_id for each in spans[1:]} == {root.span_id}
    assert root.attributes["fermata.backend"] == 3
    assert root.attributes["fermata.batch"] == 5


def test_only_who_asks_is_followed_where_chance_takes_nobody() -> None:
    tracer = Tracer(0.0, random.Random(1))
    assert followed(tracer, traceparent=QUIET) == []
    assert followed(tracer, traceparent="") == []
    assert followed(tracer, traceparent=PARENT)


def test_by_chance_a_share_is_followed_under_its_callers_trace() -> None:
    tracer = Tracer(0.25, random.Random(1))
    found = [followed(tracer, rid, QUIET) for rid in range(400)]
    taken = [spans for spans in found if spans]
    assert 60 < len(taken) < 140
    assert {spans[0].trace_id for spans in taken} == {PARENT[3:35]}


def test_a_refusal_ends_where_it_came_to() -> None:
    tracer = Tracer(1.0, random.Random(1))
    tracer.begin(0, 1, CATS, "")
    tracer.end(ms(9), 1, Refusal("DEADLINE_EXCEEDED", "late", "late: no time left"))
    spans = tracer.take()
    assert [each.name for each in spans] == ["receive", "queue"]
    assert spans[0].failed == "late"
    assert not tracer.open


@pytest.mark.parametrize(
    "text", ["", "00-1-2-01", PARENT.upper(), PARENT.replace("4bf9", "zzzz"), "ff" + PARENT[2:]]
)
def test_what_is_no_traceparent_is_no_reason_to_refuse(text: str) -> None:
    assert read_traceparent(text) is None


def test_a_file_is_read_back_and_drawn(tmp_path: Path) -> None:
    tracer = Tracer(1.0, random.Random(1))
    spans = [span for rid in (1, 2) for span in followed(tracer, rid)]
    RollingFile(tmp_path / "frontend-1.jsonl", 1 << 20).write(otlp_line(spans, ms(1000), {}))
    events = chrome_events(list(read_spans(tmp_path)))
    drawn = [each for each in events if each["ph"] == "X"]
    # Both requests were in one batch, which is drawn once.
    batches = [each for each in drawn if each["pid"] == 1]
    assert [(each["name"], each["tid"], each["dur"]) for each in batches] == [("v x4", 3, 6000)]
    rows = {each["tid"] for each in drawn if each["pid"] == 2}
    assert rows == {0, 1}
    assert json.dumps(events)


def test_a_full_file_starts_anew_and_keeps_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "frontend-1.jsonl"
    line: Any = otlp_line(followed(Tracer(1.0, random.Random(1))), 0, {})
    file = RollingFile(path, 2 * len(line))
    for _ in range(3):
        file.write(line)
    assert path.read_text() == line
    assert path.with_suffix(".old.jsonl").read_text() == line * 2


def test_a_disk_that_takes_no_spans_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fermata.foundation.logs.LOG.propagate", True)
    blocked = tmp_path / "frontend-1.jsonl"
    with ThreadPoolExecutor(1) as pool:
        traces = Traces(TraceOptions(tmp_path, 1.0), 1, pool)
        blocked.mkdir()
        for rid in range(3):
            traces.tracer.begin(0, rid, CATS, PARENT)
            traces.tracer.end(ms(1), rid, Result(rid, "v", 1, 0, ms(1)))
            traces.write()
    assert [each.message for each in caplog.records] == ["cannot write traces"]
