"""A problem as arrays, and how good an assignment is: what the search and the MILP share."""

import numpy as np
import numpy.typing as npt

from fermata.partitioner.backends import work_of
from fermata.partitioner.plan import Plan, Problem

Floats = npt.NDArray[np.float64]
Homes = npt.NDArray[np.int64]
"""The sub-cluster of each model, by index."""
NOWHERE = -1
TOLERANCE = 1e-9
"""Tolerance of limits, relative: the arrays are floats."""


class Balance:
    """Load and static memory as shares of a sub-cluster's target: 1 is just its share of all.

    The paper's deviations are absolute and its averages the same for all; relative to the target
    they are the same up to a constant, weigh alike, and hold for unequal sub-clusters too.
    """

    def __init__(self, problem: Problem) -> None:
        models, places = problem.models, problem.sub_clusters
        self.problem = problem
        self.count, self.places = len(models), len(places)
        self.weight = problem.memory_weight
        shares = np.array([place.share for place in places], float)
        target = held = shares / shares.sum()
        self.rate_rps = np.array([model.rate_rps for model in models], float)
        self.static_bytes = np.array([model.static_bytes for model in models], float)
        self.dynamic_bytes = np.array([model.dynamic_bytes for model in models], float)
        self.load = self.rate_rps
        """The load that is balanced beside memory: rates, or the backends that they need."""
        if problem.by_backends:
            work, slowness = work_of(models, [place.kind for place in places])
            self.load = np.array(work, float)
            target = shares / [slowness[place.kind] for place in places]
            target = target / target.sum()
            # Every backend holds all models of its sub-cluster, however many backends there are.
            rooms = np.array([place.memory_bytes for place in places], float)
            held = rooms / (rooms.sum() or 1.0)
        self.load_target = target * (float(self.load.sum()) or 1.0)
        self.static_target = held * (float(self.static_bytes.sum()) or 1.0)
        # Nothing is unbalanced where there is nothing.
        self.load_counts = float(self.load.sum() > 0.0)
        self.static_counts = float(self.static_bytes.sum() > 0.0)
        self.rate_max = np.array([place.rate_rps_max for place in places], float)
        self.memory_max = np.array([place.memory_bytes for place in places], float)
        self.allowed = np.array(
            [[model.runs_on(place.kind) for place in places] for model in models], bool
        ).reshape(self.count, self.places)
        self.current = self._current()
        self.move_cost = self._move_cost()
        self.cost_max = np.inf if problem.load_cost_max is None else problem.load_cost_max

    def _current(self) -> Homes:
        home = self.problem.current.home
        return np.array([home.get(model.name, NOWHERE) for model in self.problem.models], np.int64)

    def _move_cost(self) -> Floats:
        """Cost of having each model on each sub-cluster, against where it is now."""
        costs = np.array([model.load_cost for model in self.problem.models], float)
        table = np.repeat(2 * costs[:, None], self.places, axis=1)
        table[self.current == NOWHERE] = 0.0
        placed = np.flatnonzero(self.current != NOWHERE)
        table[placed, self.current[placed]] = 0.0
        return table

    # Figures of an assignment

    def rates(self, homes: Homes) -> Floats:
        return np.bincount(homes, self.rate_rps, self.places).astype(np.float64)

    def loads(self, homes: Homes) -> Floats:
        return np.bincount(homes, self.load, self.places).astype(np.float64)

    def statics(self, homes: Homes) -> Floats:
        return np.bincount(homes, self.static_bytes, self.places).astype(np.float64)

    def largest_dynamic(self, homes: Homes) -> Floats:
        largest = np.zeros(self.places)
        np.maximum.at(largest, homes, self.dynamic_bytes)
        return largest

    def cost(self, homes: Homes) -> float:
        return float(self.move_cost[np.arange(self.count), homes].sum())

    def deviations(self, homes: Homes) -> tuple[float, float]:
        """Delta R and Delta S: the largest distances from the target, as shares of it."""
        load = np.abs(self.loads(homes) / self.load_target - 1.0).max()
        static = np.abs(self.statics(homes) / self.static_target - 1.0).max()
        return self.load_counts * float(load), self.static_counts * float(static)

    def off(self, homes: Homes) -> Floats:
        """[load, memory][sub-cluster]: distances from the target, as shares of it, in the weight
        that they have."""
        load = self.load_counts * np.abs(self.loads(homes) / self.load_target - 1.0)
        static = self.static_counts * np.abs(self.statics(homes) / self.static_target - 1.0)
        return np.stack((load, self.weight * static))

    def unevenness(self, homes: Homes) -> float:
        """Squares of all distances. It tells plans apart whose worst sub-cluster is the same."""
        return float((self.off(homes) ** 2).sum())

    def objective(self, homes: Homes) -> float:
        """Eqn 4."""
        load, static = self.deviations(homes)
        return load + self.weight * static

    def imbalance(self, homes: Homes) -> tuple[float, float]:
        """(max - min) / avg of load and of static memory, each sub-cluster against its share."""
        loads = self.loads(homes) / self.load_target
        statics = self.statics(homes) / self.static_target
        return float(np.ptp(loads)), float(np.ptp(statics))

    def violation(self, homes: Homes) -> float:
        """By how much the limits are broken, each relative to itself; 0 when feasible."""
        memory = self.statics(homes) + self.largest_dynamic(homes)
        broken = over(self.rates(homes), self.rate_max).sum() + over(memory, self.memory_max).sum()
        broken += np.count_nonzero(~self.allowed[np.arange(self.count), homes])
        if np.isfinite(self.cost_max):
            scale = max(self.cost_max, 1e-12)
            broken += max(0.0, self.cost(homes) / scale - 1.0 - TOLERANCE)
        return float(broken)

    def feasible(self, homes: Homes) -> bool:
        return self.violation(homes) == 0.0

    def bound(self) -> float:
        """A lower bound of Eqn 4 that needs no solver: one model above its largest target."""
        if not self.count:
            return 0.0
        reach = np.where(self.allowed, self.load_target, 0.0).max(axis=1)
        load = float((self.load / np.maximum(reach, 1e-12)).max()) - 1.0
        reach = np.where(self.allowed, self.static_target, 0.0).max(axis=1)
        static = float((self.static_bytes / np.maximum(reach, 1e-12)).max()) - 1.0
        if self.count < self.places:
            # Some sub-cluster stays empty.
            load, static = max(load, self.load_counts), max(static, self.static_counts)
        return max(0.0, load) + self.weight * max(0.0, static)

    def plan(self, homes: Homes) -> Plan:
        """The assignment by the names of its models."""
        names = [model.name for model in self.problem.models]
        return Plan(dict(zip(names, homes.tolist(), strict=True)))


def over(values: Floats, limits: Floats) -> Floats:
    """How far values exceed their limits, as shares of the limits."""
    scale = np.maximum(limits, 1e-12)
    return np.maximum(0.0, (values - limits) / scale - TOLERANCE)
