"""Appendix A's mixed integer linear program, in PuLP: exact, for all or a few sub-clusters."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulp

from fermata.partitioner.solver.balance import NOWHERE, Balance, Homes

SCALE = 1e3
"""Deviations are counted in thousandths: the solver's tolerances are absolute, 1e-6."""
ORDERED_MODELS = 40
"""Models whose place among like sub-clusters is ordered; more would only make the program dense."""
SOLVERS = ("highs", "cbc")
THREADS = os.cpu_count() or 1
"""One number for all: HiGHS fixes it at its first run and fails later ones that ask for another."""


@dataclass(frozen=True, slots=True)
class Exact:
    """A solver's answer for its part of the problem."""

    homes: Homes | None
    """None: no assignment was found."""
    bound: float | None
    """No assignment of this part can be better; None where the solver gives no bound."""
    proven: bool
    """Optimal, or infeasible where there is no assignment."""


def available_solvers() -> list[str]:
    """Those of `SOLVERS` that are installed, best first."""
    known = {"HiGHS": "highs", "PULP_CBC_CMD": "cbc"}
    there = {known[name] for name in pulp.listSolvers(onlyAvailable=True) if name in known}
    return [name for name in SOLVERS if name in there]


class _WarmHighs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS, which starts from the variables' initial values."""

    def callSolver(self, lp: Any) -> None:  # noqa: N802
        import highspy

        start = highspy.HighsSolution()
        start.col_value = [variable.varValue or 0.0 for variable in lp.variables()]
        lp.solverModel.setSolution(start)
        lp.solverModel.run()


class Program:
    """The program over some sub-clusters and the models that are on them now."""

    def __init__(self, balance: Balance, homes: Homes, places: Sequence[int]) -> None:
        self.balance = balance
        self.homes = homes
        self.places = list(places)
        self.models = [int(each) for each in np.flatnonzero(np.isin(homes, self.places))]
        size = balance.load / balance.load_target.max()
        size = np.maximum(size, balance.static_bytes / balance.static_target.max())
        self.models.sort(key=lambda model: -size[model])
        self.lp = pulp.LpProblem("placement", pulp.LpMinimize)
        self.x = {
            (model, place): self.lp.add_variable(f"x_{model}_{place}", cat=pulp.LpBinary)
            for model in self.models
            for place in self.places
            if balance.allowed[model, place]
        }
        self.load_off = self.lp.add_variable("load_off", 0)
        self.static_off = self.lp.add_variable("static_off", 0)
        self.peaks = {place: self.lp.add_variable(f"peak_{place}", 0) for place in self.places}
        self.slack = {
            family: self.lp.add_variable(f"slack_{family}", 0, 0)
            for family in ("rate", "memory", "disruption")
        }
        """By how much a family of limits may be broken, as a share of the limit: not at all."""
        self.lp += self.load_off + balance.weight * self.static_off
        self._add_balance()
        self._add_limits()
        self._add_disruption()
        self._break_symmetry()

    def _sum(self, values: Any, place: int, scale: float) -> Any:
        return pulp.LpAffineExpression(
            [
                (self.x[model, place], float(values[model]) / scale)
                for model in self.models
                if (model, place) in self.x
            ]
        )

    def _add_balance(self) -> None:
        balance = self.balance
        for model in self.models:
            homes = [self.x[model, place] for place in self.places if (model, place) in self.x]
            self.lp += pulp.lpSum(homes) == 1  # Eqns 9 and 10
        for values, targets, off, counts in (
            (balance.load, balance.load_target, self.load_off, balance.load_counts),
            (balance.static_bytes, balance.static_target, self.static_off, balance.static_counts),
        ):
            for place in self.places if counts else ():
                load = self._sum(values, place, targets[place] / SCALE)
                self.lp += load - SCALE <= off  # Eqns 7 and 8
                self.lp += SCALE - load <= off

    def _add_limits(self) -> None:
        balance, models = self.balance, self.models
        rate, static = balance.rate_rps[models].sum(), balance.static_bytes[models].sum()
        peak = balance.dynamic_bytes[models].max(initial=0.0)
        for place in self.places:
            limit = float(balance.rate_max[place])
            if rate > limit:
                load = self._sum(balance.rate_rps, place, limit)
                self.lp += load <= 1 + self.slack["rate"]  # Eqn 5
            limit = float(balance.memory_max[place])
            if static + peak > limit:
                for model in models:
                    if (model, place) in self.x:
                        held = float(balance.dynamic_bytes[model]) / limit
                        self.lp += held * self.x[model, place] <= self.peaks[place]
                load = self._sum(balance.static_bytes, place, limit)
                self.lp += load + self.peaks[place] <= 1 + self.slack["memory"]  # Eqn 6

    def _add_disruption(self) -> None:
        balance = self.balance
        if not np.isfinite(balance.cost_max):
            return
        here = self.models
        elsewhere = balance.cost(self.homes) - balance.move_cost[here, self.homes[here]].sum()
        limit = max(balance.cost_max, 1e-9)
        cost = pulp.LpAffineExpression(
            [(var, float(balance.move_cost[key]) / limit) for key, var in self.x.items()]
        )
        self.lp += cost <= 1 - float(elsewhere) / limit + self.slack["disruption"]  # Eqn 11

    def _break_symmetry(self) -> None:
        """Give like sub-clusters an order: without a current plan any renumbering is the same plan.

        A later one holds a model only if the one before it holds a larger one.
        """
        balance = self.balance
        if (balance.current != NOWHERE).any():
            return
        for before, after in self._like_neighbours():
            earlier: list[Any] = []
            for model in self.models[:ORDERED_MODELS]:
                if (model, after) in self.x:
                    self.lp += self.x[model, after] <= pulp.lpSum(earlier)
                    earlier.append(self.x[model, before])

    def _like_neighbours(self) -> list[tuple[int, int]]:
        last: dict[tuple[float, float, float, str], int] = {}
        pairs: list[tuple[int, int]] = []
        for place in self.places:
            each = self.balance.problem.sub_clusters[place]
            key = (each.rate_rps_max, each.memory_bytes, each.share, each.kind)
            if key in last:
                pairs.append((last[key], place))
            last[key] = place
        return pairs

    def _canonical(self) -> Homes:
        """The start with like sub-clusters renumbered as the symmetry breaking wants it."""
        homes = self.homes.copy()
        if (self.balance.current != NOWHERE).any():
            return homes
        first = {place: len(self.models) for place in self.places}
        for order, model in reversed(list(enumerate(self.models))):
            first[int(homes[model])] = order
        groups: dict[int, list[int]] = {}
        leader: dict[int, int] = {}
        for place in self.places:
            leader.setdefault(place, place)
        for before, after in self._like_neighbours():
            leader[after] = leader[before]
        for place in self.places:
            groups.setdefault(leader[place], []).append(place)
        for group in groups.values():
            ordered = sorted(group, key=lambda place: first[place])
            for old, new in zip(ordered, group, strict=True):
                homes[self.homes == old] = new
        return homes

    def _start(self) -> None:
        balance, homes = self.balance, self._canonical()
        for (model, place), variable in self.x.items():
            variable.setInitialValue(int(homes[model] == place))
        loads = balance.loads(homes)[self.places] / balance.load_target[self.places]
        statics = balance.statics(homes)[self.places] / balance.static_target[self.places]
        self.load_off.setInitialValue(SCALE * float(np.abs(loads - 1.0).max()))
        self.static_off.setInitialValue(SCALE * float(np.abs(statics - 1.0).max()))
        dynamic = balance.largest_dynamic(homes) / balance.memory_max
        for place, peak in self.peaks.items():
            peak.setInitialValue(float(dynamic[place]))
        for slack in self.slack.values():
            slack.setInitialValue(0.0)

    def solve(self, time_limit_s: float, solver: str) -> Exact:
        """The best assignment found in that time, starting from the one it was made with."""
        self._start()
        status = self._run(time_limit_s, solver)
        if status == pulp.LpSolutionInfeasible:
            return Exact(None, None, True)
        # PuLP calls what a time limit left behind "Optimal"; only `sol_status` is right.
        proven = status == pulp.LpSolutionOptimal
        if not proven and status != pulp.LpSolutionIntegerFeasible:
            return Exact(None, None, False)
        return Exact(self._found(), self._bound(solver, proven), proven)

    def least_slack(self, family: str, time_limit_s: float, solver: str) -> float | None:
        """The least by which a family of limits must give for there to be an assignment, as a
        share of the limit; None where none was found."""
        self.slack[family].upBound = None
        self.lp.setObjective(self.slack[family] + 0)
        self._start()
        status = self._run(time_limit_s, solver)
        if status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return None
        return float(self.slack[family].varValue)

    def _run(self, time_limit_s: float, solver: str) -> int:
        options = {
            "msg": False,
            "timeLimit": max(0.05, time_limit_s),
            "gapRel": 0.0,
            "threads": THREADS,
        }
        if solver == "cbc":
            with warnings.catch_warnings():
                # PuLP 4 takes CBC from a package of its own; the versions we pin bundle it.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.lp.solve(pulp.PULP_CBC_CMD(warmStart=True, **options))
        else:
            self.lp.solve(_WarmHighs(gapAbs=1e-6, **options))
        return int(self.lp.sol_status)

    def _found(self) -> Homes | None:
        homes = self.homes.copy()
        for (model, place), variable in self.x.items():
            if variable.varValue is None:
                return None
            if variable.varValue > 0.5:
                homes[model] = place
        return homes

    def _bound(self, solver: str, proven: bool) -> float | None:
        if solver == "highs":
            return max(0.0, float(self.lp.solverModel.getInfo().mip_dual_bound) / SCALE)
        return float(pulp.value(self.lp.objective)) / SCALE if proven else None
