"""Traces of sampled requests as OpenTelemetry spans, one for each stage.

Pure but for its random numbers: times come in, finished spans go out. All times are the frontend's:
a backend reports how long it ran, and the arrival of its answer marks the end of the run.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.observers import QueryObserver, RequestObserver
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.router.links.messages import Fetch, Result

SAMPLED = 0x01
SERVER, INTERNAL = 2, 1
"""Kinds of spans, as OpenTelemetry numbers them."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of a request."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, int | str]
    kind: int = INTERNAL
    failed: str = ""
    """Reason of the refusal; empty if there was a result."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A caller's own trace (W3C trace context)."""

    trace_id: str
    parent_id: str
    sampled: bool


def read_traceparent(text: str) -> TraceContext | None:
    """The context in a header; None if it is malformed, which is no reason to refuse a request."""
    parts = text.strip().split("-")
    if len(parts) < 4 or [len(each) for each in parts[:4]] != [2, 32, 16, 2] or parts[0] == "ff":
        return None
    try:
        numbers = [int(each, 16) for each in parts[:4]]
    except ValueError:
        return None
    if text != text.lower() or not numbers[1] or not numbers[2]:
        return None
    return TraceContext(parts[1], parts[2], bool(numbers[3] & SAMPLED))


class RequestTrace:
    """One sampled request, until it ends."""

    __slots__ = (
        "application",
        "arrived_at_ns",
        "backend",
        "batch",
        "context",
        "fetched_at_ns",
        "kind",
        "payload_at_ns",
        "result_at_ns",
    )

    def __init__(self, now_ns: int, application: str, context: TraceContext, kind: int) -> None:
        self.application = application
        self.kind = kind
        self.context = context
        self.arrived_at_ns = now_ns
        self.payload_at_ns = 0
        self.fetched_at_ns = 0
        self.result_at_ns = 0
        self.backend = -1
        self.batch = -1


class Tracer(RequestObserver):
    """Traces some requests through the frontend, and makes their spans when they end."""

    def __init__(self, share: float, rng: random.Random, open_max: int = 10_000) -> None:
        """Beyond `open_max` requests at a time, none is traced."""
        self.share = share
        self.rng = rng
        self.open_max = open_max
        self.open: dict[int, RequestTrace] = {}
        self.spans: list[Span] = []
        """Spans of requests that have ended, until they are taken."""

    def begin(
        self, now_ns: int, rid: int, terms: RequestTerms, traceparent: str, called: str = ""
    ) -> None:
        """Trace the request if its caller asks for it, or by chance; one of a query, where that
        is traced."""
        if terms.part is None:
            context = self.choose(traceparent)
        else:
            context = read_traceparent(traceparent)
            if context is not None and not context.sampled:
                context = None
        if context is not None and len(self.open) < self.open_max:
            kind = SERVER if terms.part is None else INTERNAL
            self.open[rid] = RequestTrace(now_ns, terms.application, context, kind)

    def choose(self, traceparent: str) -> TraceContext | None:
        """The trace of something new that came with this; None: it is not traced."""
        context = read_traceparent(traceparent) if traceparent else None
        wanted = context is not None and context.sampled
        if not wanted and self.rng.random() >= self.share:
            return None
        return context or TraceContext(self.identity(32), "", True)

    def identity(self, digits: int) -> str:
        """A new identity of a trace or a span."""
        return f"{self.rng.getrandbits(4 * digits) or 1:0{digits}x}"

    def begin_query(self, now_ns: int, pipeline: str, traceparent: str) -> "QueryTrace | None":
        context = self.choose(traceparent)
        return None if context is None else QueryTrace(self, now_ns, pipeline, context)

    def on_payload(self, now_ns: int, rid: int) -> None:
        trace = self.open.get(rid)
        if trace is not None:
            trace.payload_at_ns = now_ns

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        for rid in fetch.rids:
            trace = self.open.get(rid)
            if trace is not None:
                trace.fetched_at_ns = now_ns
                trace.backend = backend
                trace.batch = fetch.batch

    def on_result(self, now_ns: int, rid: int) -> None:
        trace = self.open.get(rid)
        if trace is not None:
            trace.result_at_ns = now_ns

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        trace = self.open.pop(rid, None)
        if trace is not None:
            self.spans += self._spans(now_ns, rid, trace, outcome)

    def take(self) -> list[Span]:
        taken, self.spans = self.spans, []
        return taken

    def _spans(self, now_ns: int, rid: int, trace: RequestTrace, outcome: Outcome) -> list[Span]:
        failed = outcome.reason if isinstance(outcome, Refusal) else ""
        about: dict[str, int | str] = {
            "fermata.application": trace.application,
            "fermata.request": rid,
        }
        if isinstance(outcome, Result):
            about["fermata.variant"] = outcome.variant
            about["fermata.batch_size"] = outcome.batch_size
        if trace.backend >= 0:
            about["fermata.backend"] = trace.backend
            about["fermata.batch"] = trace.batch
        root = self.identity(16)
        parent, trace_id = trace.context.parent_id, trace.context.trace_id
        found = [
            Span(
                trace_id,
                root,
                parent,
                "receive",
                trace.arrived_at_ns,
                now_ns,
                about,
                trace.kind,
                failed,
            )
        ]
        for name, start_ns, end_ns in _stages(now_ns, trace, outcome):
            if start_ns < end_ns:
                own = self.identity(16)
                found.append(Span(trace_id, own, root, name, start_ns, end_ns, about))
        return found


class QueryTrace(QueryObserver):
    """One sampled query, until it ends: a span above those of its stages' requests."""

    def __init__(self, tracer: Tracer, now_ns: int, pipeline: str, context: TraceContext) -> None:
        self.tracer = tracer
        self.context = context
        self.arrived_at_ns = now_ns
        self.span_id = tracer.identity(16)
        self.about: dict[str, int | str] = {"fermata.application": pipeline}
        self.traceparent = f"00-{context.trace_id}-{self.span_id}-{SAMPLED:02x}"

    def worked(self, name: str, stage: str, start_ns: int, end_ns: int) -> None:
        about = {**self.about, "fermata.stage": stage} if stage else self.about
        own, trace_id = self.tracer.identity(16), self.context.trace_id
        span = Span(trace_id, own, self.span_id, name, start_ns, end_ns, about)
        self.tracer.spans.append(span)

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        failed = outcome.reason if isinstance(outcome, Refusal) else ""
        # One that is refused at once has no id.
        about = self.about if rid < 0 else {**self.about, "fermata.request": rid}
        context = self.context
        self.tracer.spans.append(
            Span(
                context.trace_id,
                self.span_id,
                context.parent_id,
                "query",
                self.arrived_at_ns,
                now_ns,
                about,
                SERVER,
                failed,
            )
        )


def _stages(now_ns: int, trace: RequestTrace, outcome: Outcome) -> Iterable[tuple[str, int, int]]:
    """(name, start, end) of each stage that the request reached."""
    arrived_at_ns = trace.arrived_at_ns
    if trace.payload_at_ns:
        yield "decode", arrived_at_ns, trace.payload_at_ns
    fetched_at_ns = trace.fetched_at_ns or now_ns
    yield "queue", arrived_at_ns, fetched_at_ns
    if not trace.fetched_at_ns or not trace.result_at_ns or not isinstance(outcome, Result):
        return
    # Before it runs, a batch waits for its inputs and for the batch before it. The run ends when
    # its answer arrives: other processes' clocks cannot be compared.
    started_at_ns = max(fetched_at_ns, trace.result_at_ns - outcome.run_ns)
    yield "fetch", fetched_at_ns, started_at_ns
    yield "run", started_at_ns, trace.result_at_ns
    yield "reply", trace.result_at_ns, now_ns
