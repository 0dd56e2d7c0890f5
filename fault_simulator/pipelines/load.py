"""Clients that send queries, and what must be left of them: nothing."""

import random

from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.environment.world import InvariantViolationError
from fermata.fault_simulator.pipelines.stages import fault_of, query_models
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import SECOND, ms
from fermata.router.core.events import DropReason

LEAVES = 0.05
"""Share of the clients that leave before their answer."""


class QueryClients:
    """Sends queries to a deployment with pipelines, beside the load of others."""

    def __init__(self, system: SimulatedDeployment, rng: random.Random) -> None:
        self.system = system
        self.rng = rng
        self.models = list(query_models(system.deployment).values())
        system.clients.judge_query = self.judge

    def load(self, from_ns: int, to_ns: int, rate: float) -> None:
        """Queries at random; some of their clients leave, at any stage."""
        at_ns = from_ns + int(self.rng.expovariate(rate) * SECOND)
        while at_ns < to_ns:
            self.system.world.enter(at_ns, self._send)
            at_ns += int(self.rng.expovariate(rate) * SECOND)

    def _send(self) -> None:
        system, rng = self.system, self.rng
        up = [each for each in system.frontends if each.up and not each.draining]
        if up:
            sent = system.clients.send(rng.choice(self.models), rng.choice(up))
            if rng.random() < LEAVES:
                system.world.after(rng.randrange(ms(100)), lambda: system.clients.cancel(sent))

    def probe(self) -> list[Sent]:
        """One query of each pipeline on each frontend."""
        return [
            self.system.clients.send(model, frontend)
            for model in self.models
            for frontend in self.system.frontends
        ]

    def judge(self, sent: Sent, outcome: Outcome) -> None:
        """Look at one answer."""
        if isinstance(outcome, Refusal):
            if outcome.reason == DropReason.CANCELLED and not sent.cancelled:
                self.system.clients.broken(f"query {sent.number} was cancelled by nobody")
        elif fault := fault_of(sent.model.name, sent.number, outcome):
            self.system.clients.broken(f"query {sent.number}: {fault}")

    def check_clean(self) -> None:
        """Nothing is left of queries that have ended."""
        for frontend in self.system.frontends:
            if frontend.hub.driver.queries.queries:
                raise InvariantViolationError(f"{frontend.loop.name} keeps queries")
        router = self.system.router
        assert router is not None
        assert router.live is not None
        queries = router.live.queries
        assert queries is not None
        table = queries.table
        kept = table.queries, table.parts, queries.arrived, queries.doubts
        more = queries.waiting, table.given_up, queries.calling, queries.handed, queries.ran_last
        left = [len(each) for each in (*kept, *more)]
        counted = [(*flow.open, *flow.called, flow.running) for flow in table.flows]
        if any(left) or any(map(any, counted)):
            raise InvariantViolationError(f"{router.loop.name} keeps of queries: {left}")
