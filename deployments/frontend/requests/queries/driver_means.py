"""Threads, timers and the way to the router, which queries have of the request driver."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.outcomes import OnAnswer, Refusal
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import PartTicket
from fermata.deployments.frontend.requests.queries.begun_together import BegunTogether
from fermata.deployments.frontend.requests.queries.function_loops import FunctionLoop
from fermata.foundation.learnt_time import LearntTime
from fermata.router.links.messages import Cancel, HandedOn, Payload

if TYPE_CHECKING:
    from fermata.deployments.frontend.requests.request_driver import RequestDriver

T = TypeVar("T")
INLINE_NS_MAX = 200_000
"""Work that is planned to take no longer runs on the loop: a thread would cost more, and results of
one batch would wait for one another's."""


class DriverMeans:
    """The means of one driver (`QueryMeans`)."""

    def __init__(self, driver: "RequestDriver") -> None:
        self.driver = driver
        self.counts: OutcomeCounts = driver.table.counts
        self.pixels_max = driver.limits.pixels_max
        self.grace_ns = driver.table.limits.grace_ns
        self.observer = driver.observer
        self.together: BegunTogether | None = None
        """Work that has begun since the loop was last free."""

    def begin(self, now_ns: int, part: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        return self.driver.begin_part(now_ns, part, on_answer)

    def begin_together(
        self,
        now_ns: int,
        part: ParsedRequest,
        inputs: Sequence[RequestInput],
        tickets: Sequence[PartTicket],
        on_answers: Sequence[OnAnswer],
    ) -> list[int] | None:
        driver = self.driver
        if driver.observer is not None or driver.peeker is not None:
            # They follow every request from its beginning.
            return None
        for each in inputs:
            if not driver.is_inline(each) or driver.input_refusal(each) is not None:
                return None
        sizes = [each.memory_bytes() for each in inputs]
        place = partial(self._place_all, inputs)
        rids = driver.table.admit_together(now_ns, part.terms, sizes, tickets, place)
        if rids is not None:
            driver.waiters.update(zip(rids, on_answers, strict=True))
            driver.pump()
        return rids

    def _place_all(self, inputs: Sequence[RequestInput], rids: Sequence[int]) -> Sequence[Payload]:
        """Payloads of these inputs; parts of one picture have it in one place."""
        driver, first = self.driver, inputs[0]
        data = first.tensor.data
        if any(each.cut is None or each.tensor.data is not data for each in inputs):
            return [driver.place(each, rid) for each, rid in zip(inputs, rids, strict=True)]
        placed = driver.place(first, rids[0])
        driver.arena.share(placed, len(inputs))
        return [
            msgspec.structs.replace(placed, rid=rid, cut=each.cut.box)
            for each, rid in zip(inputs, rids, strict=True)
            if each.cut is not None
        ]

    def new_rid(self) -> int:
        return self.driver.table.new_rid()

    def function_loop(self, function: str) -> FunctionLoop | None:
        return self.driver.function_loops.of(function)

    def cancel_soon(self, rid: int) -> None:
        # Not at once: an answer may come while the table is being read.
        self.driver.loop.call_soon(self.driver.cancel, rid)

    def to_router(self, message: Cancel | HandedOn, home: int) -> None:
        self.driver.sender.to_router(message, home)

    def run_aside(
        self, work: Callable[[], T], then: Callable[[T | Exception], None], cost: LearntTime | None
    ) -> None:
        driver = self.driver
        if cost is not None and 0 < cost.planned_ns <= INLINE_NS_MAX:
            # Not at once: an answer may come while the table is being read.
            driver.loop.call_soon(self._run_here, work, then, cost)
        else:
            together = self._together()
            together.begin()
            job = driver.loop.run_in_executor(driver.pool, self._timed, work)
            ended = partial(self._on_ended, then, cost, job)
            job.add_done_callback(lambda _: together.end(ended))

    def _together(self) -> BegunTogether:
        """Results of one batch come in one message: what begins with them is begun at once."""
        if self.together is None:
            self.together = BegunTogether(self.driver.loop, self.driver.clock)
            self.driver.loop.call_soon(self._part)
        return self.together

    def _part(self) -> None:
        self.together = None

    def _timed(self, work: Callable[[], T]) -> tuple[T, int]:
        """The result of some work, and how long it took."""
        from_ns = self.now_ns()
        found = work()
        return found, self.now_ns() - from_ns

    def _run_here(
        self, work: Callable[[], T], then: Callable[[T | Exception], None], cost: LearntTime
    ) -> None:
        from_ns = self.now_ns()
        found: T | Exception
        try:
            found = work()
        except Exception as error:
            found = error
        now_ns = self.now_ns()
        cost.learn(now_ns, now_ns - from_ns)
        then(found)

    def _on_ended(
        self,
        then: Callable[[T | Exception], None],
        cost: LearntTime | None,
        job: asyncio.Future[tuple[T, int]],
    ) -> None:
        if job.cancelled():
            # The process shuts down, and has cancelled all of its requests.
            return
        error = job.exception()
        if isinstance(error, Exception):
            then(error)
        elif error is None:
            found, took_ns = job.result()
            if cost is not None:
                cost.learn(self.now_ns(), took_ns)
            then(found)

    def call_later(self, delay_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.driver.loop.call_later(max(0, delay_ns) / 1e9, call)

    def now_ns(self) -> int:
        return self.driver.clock()
