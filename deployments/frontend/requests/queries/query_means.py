"""Means that queries have of the driver that holds them."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.outcomes import OnAnswer, Refusal
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import PartTicket
from fermata.deployments.frontend.requests.queries.function_loops import FunctionLoop
from fermata.deployments.frontend.requests.queries.open_query import TimerHandle
from fermata.foundation.learnt_time import LearntTime
from fermata.router.links.messages import Cancel, HandedOn

T = TypeVar("T")


class QueryMeans(Protocol):
    """Means of the driver that holds queries."""

    counts: OutcomeCounts
    pixels_max: int
    grace_ns: int
    observer: RequestObserver | None

    def begin(self, now_ns: int, part: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        """Admit a request."""

    def begin_together(
        self,
        now_ns: int,
        part: ParsedRequest,
        inputs: Sequence[RequestInput],
        tickets: Sequence[PartTicket],
        on_answers: Sequence[OnAnswer],
    ) -> list[int] | None:
        """Admit several requests on the terms of `part`: their ids. None where each has to be
        admitted by itself."""

    def new_rid(self) -> int:
        """An id for a query that is no request."""

    def function_loop(self, function: str) -> FunctionLoop | None:
        """The loop that a function runs on; None where it holds too many."""

    def cancel_soon(self, rid: int) -> None:
        """Withdraw a request, which may have ended."""

    def to_router(self, message: Cancel | HandedOn, home: int) -> None:
        """To the router of this sub-cluster."""

    def run_aside(
        self, work: Callable[[], T], then: Callable[[T | Exception], None], cost: LearntTime | None
    ) -> None:
        """Run work soon, and hand its result over on the loop; `cost` learns how long it takes,
        and tells whether a thread is worth its while. None: it may take any time."""

    def call_later(self, delay_ns: int, call: Callable[[], None]) -> TimerHandle: ...

    def now_ns(self) -> int: ...
