"""A query whose function calls stages, on the frontend's loop: its calls are requests."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from fermata.deployments.frontend.outcomes import Outcome, Refusal, drop_refusal
from fermata.deployments.frontend.requests.pending_request import CallTicket
from fermata.deployments.frontend.requests.queries.answers import called_answer
from fermata.deployments.frontend.requests.queries.function_loops import FunctionLoop
from fermata.deployments.frontend.requests.queries.function_run import FunctionRun, StageCall
from fermata.deployments.frontend.requests.queries.open_query import OpenQuery
from fermata.deployments.frontend.requests.queries.parts import QueryPartRecord, result_of
from fermata.deployments.frontend.requests.queries.refusals import told_of
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Cancel, HandedOn

if TYPE_CHECKING:
    from fermata.deployments.frontend.requests.queries.query_requests import QueryRequests

AT_THE_DOOR = frozenset(
    (DropReason.SHED, DropReason.QUARANTINED, DropReason.BLAMED, "unknown-application")
)
"""Reasons for which a query is refused with its first call: the router has not let it in."""
UNTOLD = frozenset((DropReason.CANCELLED, RefusalReason.EXPIRED))
"""Ends of which the load says nothing: its door is not to learn from them."""


class CalledQuery:
    """The frontend's side of one query's function (`CallTaker`)."""

    def __init__(self, requests: "QueryRequests", query: OpenQuery, on: FunctionLoop) -> None:
        self.requests = requests
        self.means = requests.means
        self.query = query
        self.on = on
        given, pixels_max = query.request.input, requests.means.pixels_max
        self.run: FunctionRun | None = FunctionRun(query.pipeline, on, given, pixels_max, self)
        """None once the query is answered. Nothing that has ended must hold what was large until
        cycles are collected, which frontends do rarely."""
        on.post(self.run.begin)

    def on_call(self, call: StageCall) -> None:
        query, now_ns = self.query, self.means.now_ns()
        if query.settled or call.given_up:
            return
        call.record = QueryPartRecord(call.place, call.given)
        query.add(call.record)
        ticket = CallTicket(query.bond, call.place, query.rid)
        on_answer = partial(self._on_part, call, ticket)
        found = self.requests.begin(now_ns, query, call.record, ticket, on_answer)
        if isinstance(found, Refusal):
            self._lose(call, found)
        else:
            call.rid = found

    def on_given_up(self, call: StageCall) -> None:
        call.given_up = True
        if call.rid in self.query.running and not self.query.settled:
            self.means.cancel_soon(call.rid)

    def _on_part(self, call: StageCall, ticket: CallTicket, rid: int, outcome: Outcome) -> None:
        query = self.query
        query.running.discard(rid)
        if query.settled:
            return
        query.ended_at_ns = self.means.now_ns()
        assert call.record is not None
        if not isinstance(outcome, Refusal):
            call.record.result = outcome
            query.open[call.place] -= 1
            stage = query.pipeline.stages[call.place]
            self.on.post(call.end, result_of(call.record, stage, self.means.pixels_max))
        elif ticket.begins and outcome.reason in AT_THE_DOOR:
            self.end(told_of(query.pipeline.stages[call.place], 0, outcome))
        elif outcome.reason == DropReason.CANCELLED and not call.given_up:
            # Nobody here has cancelled it: the router has refused the query with its first call,
            # which the function did not wait for.
            self.end(told_of(query.pipeline.stages[0], 0, drop_refusal(DropReason.SHED)))
        else:
            self._lose(call, outcome)

    def _lose(self, call: StageCall, refusal: Refusal) -> None:
        query = self.query
        assert call.record is not None
        call.record.missing = refusal.reason
        query.open[call.place] -= 1
        stage = query.pipeline.stages[call.place]
        # A client's own input is its own mistake, whichever stage that is given to.
        bad_input = call.is_own and refusal.reason == RefusalReason.BAD_INPUT
        told = refusal if bad_input else told_of(stage, call.place, refusal, by_name=True)
        self.on.post(call.end, told)

    def on_ended(self, outcome: bytes | Refusal) -> None:
        if self.query.settled:
            return
        if isinstance(outcome, Refusal):
            self.end(outcome)
            return
        query, now_ns = self.query, self.means.now_ns()
        self.tell("" if now_ns <= query.deadline_ns else DropReason.LATE)
        for rid in query.running:
            # It did not wait for them.
            self.means.cancel_soon(rid)
        found = called_answer(query.pipeline, query.parts, query.rid, outcome)
        self.requests.on_answer(query, found)

    def end(self, refusal: Refusal) -> None:
        """End the query without an answer."""
        if refusal.reason not in UNTOLD:
            self.tell(refusal.reason)
        elif self.query.bond.is_known and self.query.bond.told:
            self.means.to_router(Cancel(self.query.rid), self.query.bond.home)
        self.requests.withdraw(self.query, refusal)

    def tell(self, lost: str) -> None:
        """Tell the router how the query has ended."""
        if self.query.bond.is_known and self.query.bond.told:
            self.means.to_router(HandedOn(self.query.rid, lost), self.query.bond.home)

    def stop(self) -> None:
        """The query is answered, and its function is of no use any more."""
        assert self.run is not None
        self.on.post(self.run.stop)
        self.run = None

    @property
    def state(self) -> str:
        """Why there is no answer, for a client that is told that its query expired."""
        pipeline = self.query.pipeline
        told = f"function {pipeline.function}"
        run = self.run
        if run is None or not run.begun:
            return f"{told} had not begun: other runs of it hold its thread"
        if run.task is None:
            return f"{told} had just ended"
        if asyncio.current_task(self.on.loop) is run.task:
            return f"{told} held its thread, and must await what takes long"
        waits = [stage.name for stage, n in zip(pipeline.stages, self.query.open, strict=True) if n]
        return f"{told} still waited for {', '.join(waits) or 'something that is no stage'}"
