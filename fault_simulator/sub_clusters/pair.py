"""A pipeline of two of the applications, which live together wherever they move."""

from fermata.clients.pipeline_answers import PipelineAnswer
from fermata.clients.wire.tensors import split_bytes
from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.fault_simulator.clients import Sent, SimulatedClients
from fermata.fault_simulator.environment.world import InvariantViolationError
from fermata.fault_simulator.pipelines.stages import SPLIT, number_of, parts_of
from fermata.fault_simulator.processes import FrontendHost, RouterHost
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms
from fermata.router.core.events import DropReason

PAIR = "pair"
STAGES = ("red", "green")
# Frontends may be far from routers, and each stage is submitted on its own.
SLO_NS = ms(500)
PIPELINE: JsonObject = {
    "name": PAIR,
    "slo_ms": SLO_NS / 1e6,
    "stages": [{"application": STAGES[0]}, {"application": STAGES[1], "transform": SPLIT}],
}


def judge(clients: SimulatedClients, sent: Sent, outcome: Outcome) -> None:
    """Look at the answer of a query: it has the results of all that its first stage makes."""
    if isinstance(outcome, Refusal):
        if outcome.reason == DropReason.CANCELLED:
            clients.broken(f"query {sent.number} was cancelled by nobody")
        return
    ((_, _, _, data),) = outcome.tensors
    rows = PipelineAnswer.read(split_bytes(data)[0]).stages
    found = [sorted(map(number_of, rows[name])) for name in STAGES]
    if found != [[sent.number], parts_of(sent.number)]:
        clients.broken(f"query {sent.number} was answered with {found}")


def check_left(frontends: list[FrontendHost], routers: list[RouterHost]) -> None:
    """Nothing is left of queries that have ended, at whichever router they were."""
    for frontend in frontends:
        if frontend.hub.driver.queries.queries:
            raise InvariantViolationError(f"{frontend.loop.name} keeps queries")
    for router in routers:
        queries = None if router.live is None else router.live.queries
        if queries is not None:
            kept = queries.table.queries, queries.table.parts, queries.arrived, queries.waiting
            if any(kept):
                raise InvariantViolationError(f"{router.loop.name} keeps of queries: {kept}")
