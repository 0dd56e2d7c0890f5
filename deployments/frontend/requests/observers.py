"""Observers of requests: traces and logs."""

from collections.abc import Sequence
from typing import Protocol

from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.router.links.messages import Fetch


class QueryObserver(Protocol):
    """Follows one query above the requests of its stages."""

    traceparent: str
    """For those requests."""

    def worked(self, name: str, stage: str, start_ns: int, end_ns: int) -> None:
        """Inputs of a next stage, or the answer, were made in this time; waiting included."""

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        """The client gets its answer; a query that is refused at once has the id -1."""


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

    def begin_query(self, now_ns: int, pipeline: str, traceparent: str) -> QueryObserver | None:
        """A query came; None: it is not followed but for its requests."""
        return None


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

    def begin_query(self, now_ns: int, pipeline: str, traceparent: str) -> QueryObserver | None:
        found = [each.begin_query(now_ns, pipeline, traceparent) for each in self.observers]
        return next((each for each in found if each is not None), None)


def observe_with(observers: Sequence[RequestObserver]) -> RequestObserver | None:
    """One observer for all of them; None without any, which costs nothing."""
    if not observers:
        return None
    return observers[0] if len(observers) == 1 else RequestObservers(observers)
