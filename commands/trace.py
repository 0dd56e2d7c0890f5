"""`fermata trace`: spans of frontends as a file for Perfetto or Chrome's own viewer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fermata.foundation.errors import ConfigError

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="`traces.folder` of the configuration.")
]
OutPath = Annotated[Path, typer.Option("--out", help="File to write.")]
BACKENDS, REQUESTS = 1, 2
"""Numbers of the two groups of rows."""


def read_spans(folder: Path) -> Iterator[dict[str, Any]]:
    """Every span of every frontend, with plain attributes."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{folder}: holds no traces (*.jsonl); is traces.folder set?")
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        yield {**span, "attributes": _plain(span["attributes"])}


def _plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        each["key"].removeprefix("fermata."): next(iter(each["value"].values()))
        for each in attributes
    }


def chrome_events(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Batches on a row for each backend, requests on as few rows as they need."""
    events = [_named(BACKENDS, "backends"), _named(REQUESTS, "sampled requests")]
    origin_ns = min((int(each["startTimeUnixNano"]) for each in spans), default=0)
    backends: set[int] = set()
    batches: set[tuple[str, str]] = set()
    for span in spans:
        told = span["attributes"]
        key = (told.get("backend", ""), told.get("batch", ""))
        if span["name"] == "run" and key not in batches:
            batches.add(key)
            backends.add(int(told["backend"]))
            name = f"{told['variant']} x{told['batch_size']}"
            events.append(_event(span, origin_ns, BACKENDS, int(told["backend"]), name))
    for backend in sorted(backends):
        events.append(_named(BACKENDS, f"backend {backend}", backend))
    return events + _requests(spans, origin_ns)


def _requests(spans: list[dict[str, Any]], origin_ns: int) -> list[dict[str, Any]]:
    """Each request with its stages on the first row that is free."""
    rows: list[int] = []
    row_of: dict[str, int] = {}
    roots = [each for each in spans if each["name"] == "receive"]
    for root in sorted(roots, key=lambda each: int(each["startTimeUnixNano"])):
        start_ns, end_ns = int(root["startTimeUnixNano"]), int(root["endTimeUnixNano"])
        free = [row for row, until_ns in enumerate(rows) if until_ns <= start_ns]
        row = free[0] if free else len(rows)
        rows[row : row + 1] = [end_ns]
        row_of[root["spanId"]] = row
    events = []
    for span in spans:
        own = span["spanId"] if span["name"] == "receive" else span["parentSpanId"]
        if own in row_of:
            name = span["attributes"]["application"] if span["name"] == "receive" else span["name"]
            events.append(_event(span, origin_ns, REQUESTS, row_of[own], name))
    return events


def _event(span: dict[str, Any], origin_ns: int, group: int, row: int, name: str) -> dict[str, Any]:
    start_ns, end_ns = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    return {
        "ph": "X",
        "name": name,
        "pid": group,
        "tid": row,
        "ts": (start_ns - origin_ns) / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": {
            **span["attributes"],
            "trace": span["traceId"],
            "failed": span.get("status", {}).get("message", ""),
        },
    }


def _named(group: int, name: str, row: int | None = None) -> dict[str, Any]:
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
