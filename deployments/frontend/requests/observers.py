"""Who wants to know what becomes of requests: traces and logs."""

from collections.abc import Sequence

from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.router.links.messages import Fetch


class RequestObserver:
    """Told by the desk what happens to each request; heeds nothing unless told to."""

    def refuse(self, application: str, refusal: Refusal) -> None:
        """One was not admitted: it has no id."""

    def begin(
        self, now_ns: int, rid: int, arrival: RequestTerms, traceparent: str, called: str
    ) -> None:
        """One was admitted; its trace and what its caller calls it, empty where not said."""

    def on_payload(self, now_ns: int, rid: int) -> None:
        """Its input is decoded."""

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        """A backend has it in a batch, and asks for its input."""

    def on_result(self, now_ns: int, rid: int) -> None:
        """Its batch has run."""

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        """Its client gets an answer now."""


class RequestObservers(RequestObserver):
    """Several of them, told in order."""

    def __init__(self, followers: Sequence[RequestObserver]) -> None:
        self.followers = followers

    def refuse(self, application: str, refusal: Refusal) -> None:
        for each in self.followers:
            each.refuse(application, refusal)

    def begin(
        self, now_ns: int, rid: int, arrival: RequestTerms, traceparent: str, called: str
    ) -> None:
        for each in self.followers:
            each.begin(now_ns, rid, arrival, traceparent, called)

    def on_payload(self, now_ns: int, rid: int) -> None:
        for each in self.followers:
            each.on_payload(now_ns, rid)

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        for each in self.followers:
            each.on_fetch(now_ns, backend, fetch)

    def on_result(self, now_ns: int, rid: int) -> None:
        for each in self.followers:
            each.on_result(now_ns, rid)

    def end(self, now_ns: int, rid: int, outcome: Outcome) -> None:
        for each in self.followers:
            each.end(now_ns, rid, outcome)


def observe_with(followers: Sequence[RequestObserver]) -> RequestObserver | None:
    """One that stands for all; None where there is none, which costs nothing."""
    if not followers:
        return None
    return followers[0] if len(followers) == 1 else RequestObservers(followers)
