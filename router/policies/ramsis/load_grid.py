"""Tables for a range of loads, close enough that neighbours promise about the same accuracy."""

from bisect import bisect_left
from dataclasses import dataclass

from fermata.router.policies.ramsis.problem import WorkerProblem
from fermata.router.policies.ramsis.solve import TableSolution, solve

ACCURACY_STEP = 0.01
"""Largest difference in expected accuracy between neighbours (RAMSIS section 6)."""
RATE_STEP_MIN = 0.01
"""Closer than this, relative to the load, no table is put between two: accuracy falls in a cliff
where even the fastest variant begins to be too slow."""


@dataclass(frozen=True, slots=True)
class GridPoint:
    """The table for one load."""

    rate_rps: float
    solution: TableSolution


@dataclass(frozen=True, slots=True)
class LoadGrid:
    """Tables by load, ascending."""

    slack_ns: tuple[int, ...]
    rungs: tuple[GridPoint, ...]

    def covers(self, rate_rps: float) -> bool:
        return rate_rps <= self.rungs[-1].rate_rps

    def rung_for(self, rate_rps: float) -> GridPoint:
        """The lowest load that covers this one; the highest there is where none does."""
        rates = [rung.rate_rps for rung in self.rungs]
        return self.rungs[min(bisect_left(rates, rate_rps), len(rates) - 1)]

    def extended(self, rung: GridPoint) -> "LoadGrid":
        """With one more table; in place of the one for the same load."""
        others = [each for each in self.rungs if each.rate_rps != rung.rate_rps]
        ordered = sorted([*others, rung], key=lambda each: each.rate_rps)
        return LoadGrid(self.slack_ns, tuple(ordered))


def peak_rps(problem: WorkerProblem) -> float:
    """The workers' capacity with the cheapest batches that meet the SLO."""
    cheapest_ns = min(
        run_ns / size
        for row in problem.latency_ns
        for size, run_ns in enumerate(row[: problem.queue_max], 1)
        if run_ns <= problem.slo_ns or size == 1
    )
    return problem.workers * 1e9 / cheapest_ns


def solve_point(problem: WorkerProblem) -> GridPoint:
    """The table for the problem's own load."""
    return GridPoint(problem.rate_rps, solve(problem))


def solve_grid(problem: WorkerProblem, low_rps: float, high_rps: float) -> LoadGrid:
    """Tables from the low load to the high one, halved until neighbours are close."""
    rungs = [solve_point(problem.at_rate(low_rps))]
    if high_rps > low_rps:
        top = solve_point(problem.at_rate(high_rps))
        _between(problem, rungs, rungs[0], top)
        rungs.append(top)
    return LoadGrid(problem.slack_ns, tuple(rungs))


def _between(
    problem: WorkerProblem, rungs: list[GridPoint], low: GridPoint, high: GridPoint
) -> None:
    """Append what is needed between two tables, in order."""
    apart = abs(low.solution.accuracy - high.solution.accuracy)
    if apart < ACCURACY_STEP or high.rate_rps - low.rate_rps < RATE_STEP_MIN * high.rate_rps:
        return
    middle = solve_point(problem.at_rate((low.rate_rps + high.rate_rps) / 2))
    _between(problem, rungs, low, middle)
    rungs.append(middle)
    _between(problem, rungs, middle, high)
