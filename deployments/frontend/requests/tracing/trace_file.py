"""Spans in a file, one OTLP message a line: OpenTelemetry's collector reads it (`otlpjsonfile`)."""

import json
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from fermata.deployments.frontend.requests.tracing.traces import Span, Tracer
from fermata.deployments.specs.frontend import TraceOptions
from fermata.foundation.json_types import Json, JsonObject
from fermata.foundation.logs import LOG, fields
from fermata.foundation.rolling_file import RollingFile

SCOPE = {"name": "fermata"}
ERROR = 2
"""OpenTelemetry's status code for an error."""


def otlp_line(spans: Sequence[Span], wall_ns: int, resource: Mapping[str, str]) -> str:
    """One line; `wall_ns` is the offset from the monotonic clock to wall time."""
    message = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": SCOPE, "spans": [_span(each, wall_ns) for each in spans]}],
            }
        ]
    }
    return json.dumps(message, separators=(",", ":")) + "\n"


def _span(span: Span, wall_ns: int) -> JsonObject:
    written: dict[str, Json] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        # 64-bit numbers are strings in protobuf's JSON.
        "startTimeUnixNano": str(span.start_ns + wall_ns),
        "endTimeUnixNano": str(span.end_ns + wall_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.failed:
        written["status"] = {"code": ERROR, "message": span.failed}
    return written


def _attributes(values: Mapping[str, int | str]) -> list[JsonObject]:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in values.items()
    ]


class Traces:
    """A frontend's tracer and its file; threads write it, so that no request waits for a disk."""

    def __init__(self, options: TraceOptions, number: int, pool: Executor) -> None:
        self.tracer = Tracer(options.share, random.Random())
        self.file = RollingFile(options.folder / f"frontend-{number}.jsonl", options.bytes_max)
        self.pool = pool
        self.resource = {"service.name": "fermata", "service.instance.id": f"frontend-{number}"}
        self.wall_ns = time.time_ns() - time.monotonic_ns()
        self.failing = False
        """The disk has not taken the last spans, and the log tells so."""

    def write(self) -> None:
        """Have a thread write the spans of requests that have ended; called once a second."""
        spans = self.tracer.take()
        if spans:
            self.pool.submit(self._write, spans)

    def _write(self, spans: Sequence[Span]) -> None:
        try:
            self.file.write(otlp_line(spans, self.wall_ns, self.resource))
            self.failing = False
        except OSError as error:
            if not self.failing:
                about = fields(path=self.file.path, reason=error.strerror)
                LOG.warning("cannot write traces", extra=about)
            self.failing = True

    def close(self) -> None:
        """Write the last spans, before the threads end."""
        spans = self.tracer.take()
        if spans:
            self._write(spans)
