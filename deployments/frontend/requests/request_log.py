"""A log line for every request once it has ended, at level `debug`."""

from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.frontend.requests.tracing.traces import read_traceparent
from fermata.deployments.specs.outcomes import GOOD, LATE
from fermata.foundation.json_types import Json
from fermata.foundation.logs import LOG, fields, in_ms
from fermata.router.links.messages import Fetch


class OpenLine:
    """Facts about a request, kept until its line is written."""

    __slots__ = ("about", "arrived_at_ns", "backend", "batch", "slo_ns")

    def __init__(self, now_ns: int, terms: RequestTerms, about: dict[str, Json]) -> None:
        self.about = about
        self.arrived_at_ns = now_ns
        self.slo_ns = min(terms.slo_ns, terms.left_ns)
        self.batch = -1
        self.backend = -1


class RequestLog(RequestObserver):
    """Logs the outcome and the batch of each request.

    The router and the backends log the same batch, so their lines can be joined.
    """

    def __init__(self) -> None:
        self.open: dict[int, OpenLine] = {}

    def refuse(self, application: str, refusal: Refusal) -> None:
        about = fields(application=application, outcome=refusal.reason, message=refusal.message)
        LOG.debug("refused", extra=about)

    def begin(
        self, now_ns: int, rid: int, terms: RequestTerms, traceparent: str, called: str
    ) -> None:
        about: dict[str, Json] = {"request": str(rid), "application": terms.application}
        if called:
            about["called"] = called
        context = read_traceparent(traceparent) if traceparent else None
        if context is not None:
            about["trace"] = context.trace_id
        self.open[rid] = OpenLine(now_ns, terms, about)

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        for rid in fetch.rids:
            line = self.open.get(rid)
            if line is not None:
                line.batch, line.backend = fetch.batch, backend

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        line = self.open.pop(rid)
        latency_ns = now_ns - line.arrived_at_ns
        about = line.about
        about.update(latency_ms=in_ms(latency_ns), slo_ms=in_ms(line.slo_ns))
        if line.batch >= 0:
            about.update(batch=line.batch, backend=line.backend)
        if isinstance(outcome, Refusal):
            about.update(outcome=outcome.reason, message=outcome.message)
        else:
            about.update(
                outcome=GOOD if latency_ns <= line.slo_ns else LATE,
                variant=outcome.variant,
                size=outcome.batch_size,
                run_ms=in_ms(outcome.run_ns),
            )
        LOG.debug("request", extra={"fields": about})
