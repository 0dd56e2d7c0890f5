"""A query that a frontend holds: its parts, its time, and what is under way for it."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.outcomes import OnAnswer
from fermata.deployments.frontend.requests.observers import QueryObserver
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import (
    PartTicket,
    QueryBond,
    RequestTerms,
)
from fermata.deployments.frontend.requests.queries.conditions import LeftOut
from fermata.deployments.frontend.requests.queries.parts import QueryPartRecord
from fermata.deployments.specs.pipelines import ServedPipeline, ServedStage
from fermata.foundation.units import NEVER

if TYPE_CHECKING:
    from fermata.deployments.frontend.requests.queries.called_query import CalledQuery


class TimerHandle(Protocol):
    """A call that is to come."""

    def cancel(self) -> None: ...


class OpenQuery:
    """A query without an answer."""

    def __init__(
        self,
        request: ParsedRequest,
        on_answer: OnAnswer,
        now_ns: int,
        is_known: bool,
        answer_ns: int,
    ) -> None:
        """`answer_ns`: time from its last result to its answer, as planned."""
        pipeline = request.model.pipeline
        assert pipeline is not None
        self.pipeline: ServedPipeline = pipeline
        self.request = request
        self.on_answer = on_answer
        self.rid = -1
        """The id of its first part; its own where a function calls its stages."""
        self.application = request.terms.application
        self.tenant = 0
        """Tenants are counted by the requests of stages."""
        self.arrived_at_ns = now_ns
        terms = request.terms
        self.deadline_ns = now_ns + min(terms.slo_ns, terms.left_ns)
        self.plan_by_ns = self.deadline_ns - answer_ns
        """When its last part is to have ended, so that the answer is made in time."""
        self.ended_at_ns = 0
        """When its last part has ended."""
        self.gone_at_ns = NEVER if terms.left_ns == NEVER else now_ns + terms.left_ns
        self.bond = QueryBond(pipeline.name, is_known)
        count = len(pipeline.stages)
        self.parts: list[list[QueryPartRecord]] = [[] for _ in range(count)]
        """By stage."""
        self.left_out: list[LeftOut] = []
        """Results that a condition kept from a stage."""
        self.open = [0] * count
        """By stage: parts that have not ended, or whose results are being handed on."""
        self.ended = [0] * count
        """By stage: parts that have ended with a result."""
        self.running: set[int] = set()
        """Parts that have been submitted and not ended, by id."""
        self.joining = False
        """Inputs of joins are being made, and the router has not been told what made them due."""
        self.later: list[Callable[[], None]] = []
        """Ends of other parts meanwhile: the router must not hear of them before."""
        self.settled = False
        """It has its answer."""
        self.timer: TimerHandle | None = None
        self.function: CalledQuery | None = None
        """Calls its stages; None where they follow one another."""
        self.trace: QueryObserver | None = None

    def add(self, record: QueryPartRecord) -> ServedStage:
        """Note one more part; returns its stage."""
        record.number = len(self.parts[record.stage])
        self.parts[record.stage].append(record)
        self.open[record.stage] += 1
        return self.pipeline.stages[record.stage]

    def terms_of(
        self, now_ns: int, stage: ServedStage, given: RequestInput, ticket: PartTicket
    ) -> RequestTerms:
        """Terms of a part: the time that is left of the query's."""
        left_ns = self.deadline_ns - now_ns
        return replace(
            self.request.terms,
            application=stage.application,
            slo_ns=max(1, self.plan_by_ns - now_ns),
            hard_limit_ns=left_ns,
            left_ns=NEVER if self.gone_at_ns == NEVER else self.gone_at_ns - now_ns,
            size_bytes=given.memory_bytes(),
            rows=1,
            part=ticket,
        )
