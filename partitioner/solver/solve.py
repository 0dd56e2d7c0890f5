"""From a problem to a plan within a time limit: greedy, local search, exact re-solves."""

import random
import time
from collections.abc import Callable

import numpy as np

from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import Problem
from fermata.partitioner.solution import PlacementSolution, describe
from fermata.partitioner.solver.balance import NOWHERE, Balance, Homes
from fermata.partitioner.solver.infeasible import obstacles, remedies
from fermata.partitioner.solver.milp import Program, available_solvers
from fermata.partitioner.solver.options import SEARCH
from fermata.partitioner.solver.search import LocalSearch, greedy
from fermata.partitioner.solver.thrift import with_fewer_moves

ROUNDING = 1e-12
"""Difference of objectives that says nothing."""
Tell = Callable[[str, float], None]
"""Hears of every better assignment: the part of the search that found it, and its objective."""


class _Best:
    """The best feasible assignment so far."""

    def __init__(self, balance: Balance, tell: Tell | None) -> None:
        self.balance = balance
        self.tell = tell
        self.homes: Homes | None = None
        self.objective = self.unevenness = np.inf

    def offer(self, homes: Homes | None, found_by: str) -> bool:
        if homes is None or not self.balance.feasible(homes):
            return False
        objective, unevenness = self.balance.objective(homes), self.balance.unevenness(homes)
        if self.homes is not None and not self._is_better(objective, unevenness):
            return False
        self.homes, self.objective, self.unevenness = homes.copy(), objective, unevenness
        if self.tell is not None:
            self.tell(found_by, objective)
        return True

    def _is_better(self, objective: float, unevenness: float) -> bool:
        """Where one sub-cluster cannot be helped, all plans are as good as it is bad: the others
        tell them apart."""
        gain = self.objective - objective
        if abs(gain) > ROUNDING:
            return gain > 0.0
        return unevenness < self.unevenness - ROUNDING


def solve(
    problem: Problem,
    time_limit_s: float = 10.0,
    seed: int = 0,
    solver: str = "",
    utilisation: float = 1.0,
    tell: Tell | None = None,
) -> PlacementSolution:
    """The best plan found within the limit; never worse than the greedy start or the current
    plan, but for the slack that the problem gives to fewer moves. Raises `ConfigError` with every
    obstacle by name where there is none."""
    began = time.monotonic()
    until = began + time_limit_s
    _refuse(obstacles(problem))
    solver = _solver(solver)
    balance = Balance(problem)
    best = _Best(balance, tell)
    start = greedy(balance)
    best.offer(start, "greedy")
    if (balance.current != NOWHERE).all():
        best.offer(balance.current, "current plan")
    start_objective = best.objective
    exact = balance.count * balance.places <= SEARCH.exact_binaries_max
    share = SEARCH.search_share_exact if exact else SEARCH.search_share
    search_until = began + time_limit_s * share
    nearest = _search(balance, best, start, search_until, seed)
    bound, proven = balance.bound(), False
    if best.homes is None or (exact and best.objective > bound):
        bound, proven = _solve_whole(balance, best, nearest, until, solver, bound)
    elif best.objective > bound:
        _resolve_parts(balance, best, until, solver, seed)
    assert best.homes is not None
    proven = proven or best.objective <= bound
    homes = best.homes
    if problem.slack > 0.0 and (balance.current != NOWHERE).any():
        limit_s = max(SEARCH.thrift_s_min, SEARCH.thrift_share * time_limit_s)
        homes = with_fewer_moves(
            balance, homes, start, time.monotonic() + limit_s, random.Random(seed)
        )
        proven = proven and homes is best.homes
    seconds = time.monotonic() - began
    return describe(balance, homes, bound, proven, start_objective, utilisation, seconds, solver)


def _refuse(lines: list[str]) -> None:
    if lines:
        raise ConfigError(f"no plan is possible: {'; '.join(lines)}")


def _solver(wished: str) -> str:
    there = available_solvers()
    if wished and wished not in there:
        known = ", ".join(there) or "none"
        raise ConfigError(f"solver={wished!r} is not installed; installed: {known}")
    if not there:
        raise ConfigError("no MILP solver is installed; pip install highspy")
    return wished or there[0]


def _search(balance: Balance, best: _Best, start: Homes, until: float, seed: int) -> Homes:
    """Local search from the start; under a bound of the load cost with several prices of it.
    Returns the assignment that breaks the limits least."""
    rng = random.Random(seed)
    bounded = np.isfinite(balance.cost_max)
    prices = SEARCH.cost_prices if bounded else (0.0,)
    nearest = homes = start
    began = time.monotonic()
    for turn, price in enumerate(prices):
        turn_until = began + (until - began) * (turn + 1) / len(prices)
        per_cost = price / max(balance.cost_max, 1e-12) if bounded else 0.0
        homes = LocalSearch(balance, homes, rng, per_cost).run(turn_until)
        best.offer(homes, "local search")
        if balance.violation(homes) < balance.violation(nearest):
            nearest = homes
    return nearest


def _solve_whole(
    balance: Balance, best: _Best, nearest: Homes, until: float, solver: str, bound: float
) -> tuple[float, bool]:
    """The whole program, started from the best so far; (bound, whether proven optimal)."""
    left_s = max(0.1, until - time.monotonic())
    start = nearest if best.homes is None else best.homes
    program = Program(balance, start, range(balance.places))
    found = program.solve(left_s, solver)
    best.offer(found.homes, "exact")
    if best.homes is None:
        if found.proven:
            told = remedies(balance, start, min(3.0, left_s), solver)
            _refuse(["the limits contradict one another", *told])
        raise ConfigError(
            f"time_limit_s={left_s:.3g}: no plan found, nor that there is none; raise it"
        )
    if found.bound is not None:
        bound = max(bound, min(found.bound, best.objective))
    # A solver that proves the optimum proves it up to its tolerance.
    return bound, found.proven and best.objective <= bound + 1e-6


def _resolve_parts(balance: Balance, best: _Best, until: float, solver: str, seed: int) -> None:
    """Solve the worst sub-cluster anew with a few others, exactly, and let local search follow."""
    rng = random.Random(f"{seed} parts")
    while time.monotonic() < until - 0.05 and best.objective > balance.bound():
        assert best.homes is not None
        places = _neighbourhood(balance, best.homes, rng)
        limit_s = min(SEARCH.resolve_s, until - time.monotonic())
        found = Program(balance, best.homes, places).solve(limit_s, solver)
        if found.homes is not None and balance.feasible(found.homes):
            best.offer(found.homes, "exact re-solve")
            homes = LocalSearch(balance, found.homes, rng).run(min(until, time.monotonic() + 0.5))
            best.offer(homes, "local search")


def _neighbourhood(balance: Balance, homes: Homes, rng: random.Random) -> list[int]:
    """The sub-cluster that is furthest off, and others that are off to the other side."""
    load = balance.loads(homes) / balance.load_target - 1.0
    static = balance.weight * (balance.statics(homes) / balance.static_target - 1.0)
    worst = int(np.argmax(np.maximum(np.abs(load), np.abs(static))))
    opposite = -(load * load[worst] + static * static[worst])
    others = [place for place in range(balance.places) if place != worst]
    others.sort(key=lambda place: -opposite[place] * rng.uniform(0.5, 1.5))
    held = np.bincount(homes, minlength=balance.places)
    chosen, models = [worst], int(held[worst])
    for place in others[:3]:
        if len(chosen) < 2 or models + held[place] <= SEARCH.resolved_models_max:
            chosen.append(place)
            models += int(held[place])
    return sorted(chosen)
