"""A line for every request, once it has ended: what `debug` asks for."""

from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.frontend.requests.traces import read_traceparent
from fermata.deployments.specs.outcomes import GOOD, LATE
from fermata.foundation.logs import LOG, fields, in_ms
from fermata.router.links.messages import Fetch


class Followed:
    """What is kept of a request until its line is written."""

    __slots__ = ("about", "arrived_at_ns", "backend", "batch", "slo_ns")

    def __init__(self, now_ns: int, arrival: RequestTerms, about: dict[str, object]) -> None:
        self.about = about
        self.arrived_at_ns = now_ns
        self.slo_ns = min(arrival.slo_ns, arrival.left_ns)
        self.batch = -1
        self.backend = -1


class RequestLog(RequestObserver):
    """Logs how each request ended and in which batch, for whoever joins it with the router's and
    the backends' lines of that batch."""

    def __init__(self) -> None:
        self.open: dict[int, Followed] = {}

    def refuse(self, application: str, refusal: Refusal) -> None:
        about = fields(application=application, outcome=refusal.reason, message=refusal.message)
        LOG.debug("refused", extra=about)

    def begin(
        self, now_ns: int, rid: int, arrival: RequestTerms, traceparent: str, called: str
    ) -> None:
        about: dict[str, object] = {"request": str(rid), "application": arrival.application}
        if called:
            about["called"] = called
        context = read_traceparent(traceparent) if traceparent else None
        if context is not None:
            about["trace"] = context.trace_id
        self.open[rid] = Followed(now_ns, arrival, about)

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        for rid in fetch.rids:
            followed = self.open.get(rid)
            if followed is not None:
                followed.batch, followed.backend = fetch.batch, backend

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        followed = self.open.pop(rid)
        latency_ns = now_ns - followed.arrived_at_ns
        about = followed.about
        about["latency_ms"] = in_ms(latency_ns)
        about["slo_ms"] = in_ms(followed.slo_ns)
        if followed.batch >= 0:
            about["batch"], about["backend"] = followed.batch, followed.backend
        if isinstance(outcome, Refusal):
            about["outcome"], about["message"] = outcome.reason, outcome.message
        else:
            about["outcome"] = GOOD if latency_ns <= followed.slo_ns else LATE
            about["variant"] = outcome.variant
            about["size"] = outcome.batch_size
            about["run_ms"] = in_ms(outcome.run_ns)
        LOG.debug("request", extra={"fields": about})
