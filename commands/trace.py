"""`fermata trace`: spans of frontends as a file for Perfetto or Chrome's own viewer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fermata.foundation.errors import ConfigError
from fermata.foundation.json_types import JsonObject

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="`traces.folder` of the configuration.")
]
OutPath = Annotated[Path, typer.Option("--out", help="File to write.")]
BACKENDS, REQUESTS = 1, 2
"""Numbers of the two groups of rows."""
WHOLE = ("receive", "query")
"""Names of spans of a whole request or query; what it went through is below it."""


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """A span as a frontend's file holds it, its attributes without their prefix."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    failed: str
    attributes: Mapping[str, str]

    @property
    def request_id(self) -> str:
        """The span of the whole request or query that this one is part of."""
        return self.span_id if self.name in WHOLE else self.parent_id


def read_spans(folder: Path) -> Iterator[RecordedSpan]:
    """Every span of every frontend, with plain attributes."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{folder}: holds no traces (*.jsonl); is traces.folder set?")
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    yield from map(_read_span, scope["spans"])


def _read_span(given: Any) -> RecordedSpan:
    return RecordedSpan(
        name=given["name"],
        trace_id=given["traceId"],
        span_id=given["spanId"],
        parent_id=given["parentSpanId"],
        start_ns=int(given["startTimeUnixNano"]),
        end_ns=int(given["endTimeUnixNano"]),
        failed=given.get("status", {}).get("message", ""),
        attributes={
            each["key"].removeprefix("fermata."): next(iter(each["value"].values()))
            for each in given["attributes"]
        },
    )


def chrome_events(spans: list[RecordedSpan]) -> list[JsonObject]:
    """Batches on a row for each backend, requests on as few rows as they need."""
    events = [_named(BACKENDS, "backends"), _named(REQUESTS, "sampled requests")]
    origin_ns = min((each.start_ns for each in spans), default=0)
    backends: set[int] = set()
    batches: set[tuple[str, str]] = set()
    for span in spans:
        told = span.attributes
        key = (told.get("backend", ""), told.get("batch", ""))
        if span.name == "run" and key not in batches:
            batches.add(key)
            backend = int(told["backend"])
            backends.add(backend)
            name = f"{told['variant']} x{told['batch_size']}"
            events.append(_event(span, origin_ns, BACKENDS, backend, name))
    for backend in sorted(backends):
        events.append(_named(BACKENDS, f"backend {backend}", backend))
    return events + _requests(spans, origin_ns)


def _requests(spans: list[RecordedSpan], origin_ns: int) -> list[JsonObject]:
    """Each request with its stages on the first row that is free."""
    rows: list[int] = []
    row_of: dict[str, int] = {}
    roots = [each for each in spans if each.name in WHOLE]
    for root in sorted(roots, key=lambda each: each.start_ns):
        free = [row for row, until_ns in enumerate(rows) if until_ns <= root.start_ns]
        row = free[0] if free else len(rows)
        rows[row : row + 1] = [root.end_ns]
        row_of[root.span_id] = row
    events = []
    for span in spans:
        row_here = row_of.get(span.request_id)
        if row_here is not None:
            name = span.attributes["application"] if span.name in WHOLE else span.name
            events.append(_event(span, origin_ns, REQUESTS, row_here, name))
    return events


def _event(span: RecordedSpan, origin_ns: int, group: int, row: int, name: str) -> JsonObject:
    return {
        "ph": "X",
        "name": name,
        "pid": group,
        "tid": row,
        "ts": (span.start_ns - origin_ns) / 1000,
        "dur": (span.end_ns - span.start_ns) / 1000,
        "args": {**span.attributes, "trace": span.trace_id, "failed": span.failed},
    }


def _named(group: int, name: str, row: int | None = None) -> JsonObject:
    kind = "process_name" if row is None else "thread_name"
    return {"ph": "M", "name": kind, "pid": group, "tid": row or 0, "args": {"name": name}}


def trace(folder: Folder, out: OutPath = Path("trace.json")) -> None:
    """Make one file of what frontends have traced, for ui.perfetto.dev or chrome://tracing."""
    spans = list(read_spans(folder))
    events = chrome_events(spans)
    try:
        out.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from None
    typer.echo(f"{out}: {len(events)} events of {len(spans)} spans; open it at ui.perfetto.dev")
