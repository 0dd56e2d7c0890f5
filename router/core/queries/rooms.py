"""Room for target batches: how much of the SLO they take, and how much is left for waits.

Larger batches need less backend time for each request. Smaller ones leave a query time to wait
while more than usual is to be done: arrivals come at random, and so do fan-outs. The room is the
one with which the most queries can be served while few are lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1
from typing import Final

from fermata.foundation.units import NEVER
from fermata.router.core.engine import Engine
from fermata.router.core.queries.budgets import StageBudget, fit, groups_of
from fermata.router.core.queries.flow import Flow
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.queries.speeds import StageSpeeds


@dataclass(frozen=True, slots=True)
class RoomRules:
    """How the room is chosen."""

    step: float = 0.05
    room_min: float = 0.4
    room_max: float = 0.95
    backends_min: int = 4
    """With fewer, a backlog is not worked off by all together, and the room stays as it is."""
    better: float = 1.002
    """Times the rate that can be served: for less, the room stays as it is."""
    lost: float = 0.01
    """Share of the queries that may be lost at that rate; as many as are, where those are more."""


RULES: Final = RoomRules()
HALVINGS: Final = 20
"""Steps in which the load that may be served is found."""
UNMATCHED: Final = 500.0
"""Beyond it, nothing is lost by chance."""


class Rooms:
    """Chooses the room of each group of pipelines that share stages, a step at a time."""

    __slots__ = ("at", "budgets", "engine", "flows", "groups", "rules", "speeds", "steps")

    def __init__(
        self,
        engine: Engine,
        flows: Sequence[Flow],
        budgets: Mapping[int, StageBudget],
        speeds: StageSpeeds,
        rules: RoomRules = RULES,
    ) -> None:
        self.engine = engine
        self.flows = flows
        self.budgets = budgets
        self.speeds = speeds
        self.rules = rules
        self.groups = groups_of([each.pipeline for each in flows])
        self.steps = [rules.step] * len(self.groups)
        """By group: the step that is tried next."""
        self.at = 0
        """The group whose turn comes next."""

    def look(self) -> None:
        """Try another room for the group whose turn it is, and take it if more can be served."""
        at, rules = self.at, self.rules
        self.at = (at + 1) % len(self.groups)
        flows = [self.flows[place] for place in self.groups[at]]
        if any(len(self.speeds.there.get(each, ())) > 1 for each in self.budgets):
            # A query needs another time on each kind, and batches have another size there.
            return
        if self._backends(self.budgets) < rules.backends_min:
            return
        sizes = {application: each.size for application, each in self.budgets.items()}
        room = flows[0].room
        other = min(rules.room_max, max(rules.room_min, room + self.steps[at]))
        if self.served(flows, other) > rules.better * self.served(flows, room):
            for flow in flows:
                flow.room = other
        else:
            self.steps[at] = -self.steps[at]
        for application, size in sizes.items():
            self.budgets[application].size = size

    def served(self, flows: Sequence[Flow], room: float) -> float:
        """Queries that can be served in a given time, in terms that depend on the room alone.

        What waits is taken for a backlog that all backends work off together, which queries add to
        at random. Lost is whoever finds more of it than the time that batches leave.
        """
        timed = [(each.planned, int(room * each.pipeline.slo_ns)) for each in flows]
        applications = sorted({each for flow in flows for each in flow.pipeline.applications})
        budgets = {each: self.budgets[each] for each in applications}
        fit(timed, budgets)
        backends = max(1, self._backends(budgets))
        work_ns = {application: each.each_ns for application, each in budgets.items()}
        rates = [each.rate.rps or 1.0 for each in flows]
        mean_ns = square_ns = 0.0
        left_ns = NEVER
        for flow, rate in zip(flows, rates, strict=True):
            mean, square = flow.work(work_ns)
            mean_ns += rate * mean
            square_ns += rate * square
            left_ns = min(
                left_ns, flow.pipeline.slo_ns - _needs_ns(flow.planned, budgets, backends)
            )
        lump_ns = square_ns / (mean_ns * backends)
        # In overload some are lost anyway, and less has to be left for those who come at random.
        lost = max(self.rules.lost, *(each.missed for each in flows))
        return load_of(left_ns / lump_ns, lost) / mean_ns

    def _backends(self, applications: Mapping[int, StageBudget]) -> int:
        pools = {self.engine.sources[each].pool for each in applications}
        return sum(pool.backends for pool in pools)


def _needs_ns(pipeline: Pipeline, budgets: Mapping[int, StageBudget], backends: int) -> int:
    """Time that a query needs where nothing waits: its batches, their company, and backends that
    end one after the other."""

    def each_ns(application: int) -> int:
        budget = budgets[application]
        return budget.needs_ns(budget.size) + budget.run_ns // backends

    return pipeline.longest_ns(each_ns)[0]


def load_of(lumps: float, lost: float) -> float:
    """How busy backends may be, where a backlog has room for so many times the work that comes at
    once, and so much may find none (a random walk with a drift, between two walls)."""
    if lumps <= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        load = 0.5 * (low + high)
        depth = 2.0 * lumps * (1.0 - load) / load
        found = (1.0 - load) * (exp(-depth) if depth > UNMATCHED else 1.0 / expm1(depth))
        low, high = (load, high) if found <= lost else (low, load)
    return low
