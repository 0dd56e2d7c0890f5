"""Clients that send one sequence after the other, and judge the answers."""

import random
from collections import deque

import numpy as np

from fermata.deployments.frontend.outcomes import Outcome
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.fault_simulator.clients import Sent, SimulatedClients
from fermata.fault_simulator.processes import FrontendHost
from fermata.fault_simulator.sequences.steps import STEPS, next_total
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import SECOND
from fermata.router.core.events import DropReason, SequenceStep
from fermata.router.links.messages import Result

SKIPPED = frozenset(
    (
        *(DropReason.LATE, DropReason.SHED, DropReason.WINDOW, DropReason.FULL),
        *(DropReason.NO_BACKEND, DropReason.NO_SEQUENCE, DropReason.QUARANTINED),
        *(RefusalReason.MEMORY, RefusalReason.TOO_MANY, RefusalReason.DRAINING),
        RefusalReason.STALLED,
    )
)
"""Refusals of steps that no backend has run."""
OPEN_MAX = 2
"""Steps of a sequence that are sent without an answer to the one before."""


class SequenceClient:
    """One client that sends one sequence after the other, and judges the answers."""

    def __init__(self, clients: SimulatedClients, key: int, rng: random.Random) -> None:
        self.clients = clients
        self.key = key
        self.rng = rng
        self.frontend: FrontendHost | None = None
        self.started = False
        """The next step goes on with the sequence; else it starts one."""
        self.open: deque[tuple[Sent, bool]] = deque()
        """Steps without an answer that has been judged, each with whether it starts."""
        self.totals: set[int] = set()
        """States that the sequence may have; none: no step of it may be answered."""
        self.told = False
        """It has been told that its state is gone."""

    def send(self, up: list[FrontendHost]) -> None:
        """One more step, unless enough are open."""
        if self.frontend not in up:
            # Its connection has ended, and what it asked for with it.
            self.frontend, self.started = self.rng.choice(up), False
            self.open.clear()
        self.judge()
        if len(self.open) >= OPEN_MAX:
            return
        start = not self.started
        end = self.rng.random() < 0.1
        self.started = not end
        step = SequenceStep(self.key, start, end)
        assert self.frontend is not None
        self.open.append((self.clients.send(STEPS, self.frontend, step), start))

    def judge(self) -> None:
        """Look at the answers in the order of the steps."""
        while self.open and self.open[0][0].outcomes:
            sent, start = self.open.popleft()
            if start:
                self.totals, self.told = {0}, False
            self._judge_one(sent, sent.outcomes[0], start)

    def _judge_one(self, sent: Sent, outcome: Outcome, start: bool) -> None:
        after = {next_total(each, sent.number) for each in self.totals}
        if isinstance(outcome, Result):
            total = _total_of(outcome)
            if total not in after:
                self.clients.broken(f"step {sent.number} ran on another state: {total}")
            self.totals = {total}
            return
        if outcome.reason == DropReason.SEQUENCE_LOST:
            if self.told:
                self.clients.broken(f"sequence {self.key} was told twice")
            self.told = True
        if outcome.reason in SKIPPED:
            after = set() if start else self.totals
        elif not start:
            after |= self.totals
        self.totals = after
        if outcome.reason not in SKIPPED or start or outcome.reason == DropReason.NO_SEQUENCE:
            self.started = False


class SequenceClients:
    """Clients with sequences, beside the load of others."""

    def __init__(self, system: SimulatedDeployment, rng: random.Random, count: int) -> None:
        self.system = system
        self.rng = rng
        self.each = [SequenceClient(system.clients, 1 + key, rng) for key in range(count)]

    def load(self, from_ns: int, to_ns: int, rate: float) -> None:
        """Steps at random."""
        at_ns = from_ns + int(self.rng.expovariate(rate) * SECOND)
        while at_ns < to_ns:
            self.system.world.enter(at_ns, self._send)
            at_ns += int(self.rng.expovariate(rate) * SECOND)

    def _send(self) -> None:
        up = [each for each in self.system.frontends if each.up and not each.draining]
        if up:
            self.rng.choice(self.each).send(up)

    def probe(self) -> list[Sent]:
        """A whole sequence of each client, and of one more on each frontend."""
        self.judge()
        found: list[Sent] = []
        clients, frontends = self.system.clients, self.system.frontends
        for key in range(1, len(self.each) + 2):
            frontend = frontends[key % len(frontends)]
            for place in range(3):
                step = SequenceStep(key, place == 0, place == 2)
                found.append(clients.send(STEPS, frontend, step))
        return found

    def judge(self) -> None:
        """Look at all answers that have come."""
        for each in self.each:
            each.judge()
            each.started = False


def _total_of(result: Result) -> int:
    (data,) = [each[3] for each in result.tensors if each[0] == "total"]
    return int(np.frombuffer(data, np.int64)[0])
