"""Observers of requests: traces and logs."""

from collections.abc import Sequence

from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.router.links.messages import Fetch


class RequestObserver:
    """Hears of each request's progress from the driver; this base class ignores all of it."""

    def refuse(self, application: str, refusal: Refusal) -> None:
        """A request was refused before it got an id."""

    def begin(
        self, now_ns: int, rid: int, terms: RequestTerms, traceparent: str, called: str
    ) -> None:
        """A request was admitted; `called` is its caller's id for it, empty if there is none."""

    def on_payload(self, now_ns: int, rid: int) -> None:
        """The input is decoded."""

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        """A backend has requests in a batch, and asks for their inputs."""

    def on_result(self, now_ns: int, rid: int) -> None:
        """The batch of a request has run."""

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        """The client gets its answer."""


class RequestObservers(RequestObserver):
    """Several observers, called in order."""

    def __init__(self, observers: Sequence[RequestObserver]) -> None:
        self.observers = observers

    def refuse(self, application: str, refusal: Refusal) -> None:
        for each in self.observers:
            each.refuse(application, refusal)

    def begin(
        self, now_ns: int, rid: int, terms: RequestTerms, traceparent: str, called: str
    ) -> None:
        for each in self.observers:
            each.begin(now_ns, rid, terms, traceparent, called)

    def on_payload(self, now_ns: int, rid: int) -> None:
        for each in self.observers:
            each.on_payload(now_ns, rid)

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        for each in self.observers:
            each.on_fetch(now_ns, backend, fetch)

    def on_result(self, now_ns: int, rid: int) -> None:
        for each in self.observers:
            each.on_result(now_ns, rid)

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        for each in self.observers:
            each.end(now_ns, rid, outcome)


def observe_with(observers: Sequence[RequestObserver]) -> RequestObserver | None:
    """One observer for all of them; None without any, which costs nothing."""
    if not observers:
        return None
    return observers[0] if len(observers) == 1 else RequestObservers(observers)
