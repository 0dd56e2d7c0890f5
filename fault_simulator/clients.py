"""Clients, and what becomes of their requests: the ledger is the judge."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fermata.clients.wire.tensors import RawTensor, join_bytes
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.served_model import ServedModel
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.processes import FrontendHost
from fermata.foundation.units import ms, seconds
from fermata.router.core.events import SequenceStep
from fermata.router.links.messages import ClientNetworkReport, Result

PROMISE_NS = ms(50)
"""After a request has expired: by then its client has an answer."""

PATIENCE_NS = seconds(3)
"""Several times as long as it takes to see that a backend hangs."""


@dataclass(slots=True)
class Sent:
    """One request in its client's ledger."""

    number: int
    model: ServedModel
    frontend: FrontendHost
    due_ns: int = 0
    """An answer has to be there by then, as long as its frontend runs."""
    held_ns: int = 0
    """How long its frontend had been held when it came."""
    rid: int = -1
    outcomes: list[Outcome] = field(default_factory=list)
    answered_at_ns: int = 0
    sent_at_ns: int = 0
    tenant: int = 0
    cancelled: bool = False
    step: SequenceStep | None = None
    """Its part in a sequence."""
    report: ClientNetworkReport | None = None
    """The network as its client tells it."""


class SimulatedClients:
    """They stand right at the desks of frontends."""

    def __init__(self, world: World, on_failed: Callable[[Sent], None]) -> None:
        self.world = world
        self.on_failed = on_failed
        self.on_refused: Callable[[Sent, Refusal], None] = lambda sent, refusal: None
        self.judge_query: Callable[[Sent, Outcome], None] = lambda sent, outcome: None
        """Looks at the answers of pipelines."""
        self.ledger: list[Sent] = []
        self.open: dict[int, Sent] = {}
        """By number: no answer yet."""
        self.patient: set[int] = set()
        """Requests whose clients wait for long, so that there is time to try them elsewhere."""

    def on_lost(self, frontend: FrontendHost) -> None:
        """They see their connections end: that is their answer."""
        for number in [n for n, sent in self.open.items() if sent.frontend is frontend]:
            del self.open[number]

    def send(
        self,
        model: ServedModel,
        frontend: FrontendHost,
        step: SequenceStep | None = None,
        tenant: int = 0,
        report: ClientNetworkReport | None = None,
    ) -> Sent:
        """One request, now or as soon as its frontend looks."""
        sent = Sent(len(self.ledger), model, frontend, tenant=tenant, step=step, report=report)
        self.ledger.append(sent)
        self.world.enter(self.world.now_ns, lambda: self._open(sent), frontend.loop)
        return sent

    def _open(self, sent: Sent) -> None:
        model, world = sent.model, self.world
        encoded = model.read is not None
        if encoded:
            data = join_bytes([str(sent.number).encode()])
            tensor = RawTensor("input", "BYTES", (1,), data)
        else:
            tensor = RawTensor("input", "INT64", (1,), sent.number.to_bytes(8, "little"))
        slo_ns, limit_ns = model.slo_ns, model.hard_limit_ns
        if sent.number in self.patient:
            slo_ns = limit_ns = PATIENCE_NS
        terms = RequestTerms(
            *(model.router_name or model.name, slo_ns, limit_ns, 8),
            client=0 if sent.report is None else sent.report.client,
            tenant=sent.tenant,
            sequence=sent.step,
        )
        given = RequestInput(model, tensor, encoded, batched=False)
        sequence_id = "" if sent.step is None else str(sent.step.key)
        request = ParsedRequest("1", "", terms, given, report=sent.report, sequence_id=sequence_id)
        sent.sent_at_ns = world.now_ns
        sent.due_ns = world.now_ns + limit_ns + PROMISE_NS
        sent.held_ns = sent.frontend.loop.held_ns
        self.open[sent.number] = sent
        answer = sent.frontend.hub.driver.open(
            request, lambda _, outcome: self._close(sent, outcome)
        )
        if isinstance(answer, Refusal):
            self._close(sent, answer)
        else:
            sent.rid = answer

    def cancel(self, sent: Sent) -> None:
        """Its client leaves."""
        if sent.number in self.open and sent.rid >= 0 and sent.frontend.loop.alive:
            sent.cancelled = True
            call = sent.frontend.hub.driver.cancel
            self.world.enter(self.world.now_ns, lambda: call(sent.rid), sent.frontend.loop)

    def _close(self, sent: Sent, outcome: Outcome) -> None:
        sent.outcomes.append(outcome)
        sent.answered_at_ns = self.world.now_ns
        if len(sent.outcomes) > 1:
            self.broken(f"request {sent.number} was answered twice: {sent.outcomes}")
        self.open.pop(sent.number, None)
        if sent.model.pipeline is not None:
            self.judge_query(sent, outcome)
        elif isinstance(outcome, Result):
            value = int(np.frombuffer(outcome.tensors[0][3], np.int64)[0])
            if value != sent.number:
                self.broken(f"request {sent.number} got the answer of {value}")
        if isinstance(outcome, Refusal):
            self.on_refused(sent, outcome)
            if outcome.reason == RefusalReason.FAILED:
                self.on_failed(sent)

    def broken(self, what: str) -> None:
        """Said after this step: whoever answers survives what a client raises."""
        self.world.trouble.append(what)
