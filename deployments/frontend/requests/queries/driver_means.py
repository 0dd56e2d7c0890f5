"""Threads, timers and the way to the router, which queries have of the request driver."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fermata.deployments.frontend.outcomes import OnAnswer, Refusal
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.router.links.messages import Cancel, HandedOn

if TYPE_CHECKING:
    from fermata.deployments.frontend.requests.request_driver import RequestDriver

T = TypeVar("T")


class DriverMeans:
    """The means of one driver (`QueryMeans`)."""

    def __init__(self, driver: "RequestDriver") -> None:
        self.driver = driver
        self.counts: OutcomeCounts = driver.table.counts
        self.pixels_max = driver.limits.pixels_max
        self.grace_ns = driver.table.limits.grace_ns

    def begin(self, now_ns: int, part: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        return self.driver.begin_part(now_ns, part, on_answer)

    def cancel_soon(self, rid: int) -> None:
        # Not at once: an answer may come while the table is being read.
        self.driver.loop.call_soon(self.driver.cancel, rid)

    def to_router(self, message: Cancel | HandedOn) -> None:
        self.driver.sender.to_router(message, 0)

    def run_aside(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        job = self.driver.loop.run_in_executor(self.driver.pool, work)
        job.add_done_callback(partial(_on_ended, then))

    def call_later(self, delay_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.driver.loop.call_later(max(0, delay_ns) / 1e9, call)

    def now_ns(self) -> int:
        return self.driver.clock()


def _on_ended(then: Callable[[T | Exception], None], job: asyncio.Future[T]) -> None:
    if job.cancelled():
        # The process shuts down, and has cancelled all of its requests.
        return
    error = job.exception()
    if isinstance(error, Exception):
        then(error)
    elif error is None:
        then(job.result())
