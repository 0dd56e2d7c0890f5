"""Tables for a range of loads, close enough that neighbours promise about the same."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.solve import TableSolution, solve

PROMISE_STEP = 0.01
"""Largest difference between neighbours in expected accuracy (RAMSIS section 6), and in expected
violations."""
RATE_STEP = 0.03
"""Loads that are further apart than this, relative to the higher, have to be twice as close in what
they promise: the table of the higher one serves all loads between them."""
RATE_STEP_MIN = 0.01
"""Closer than this no table is put between two."""
TABLES_MAX = 96


@dataclass(frozen=True, slots=True)
class GridPoint:
    """The table for one load."""

    rate_rps: float
    solution: TableSolution

    @property
    def good_rps(self) -> float:
        """Expected goodput."""
        return self.rate_rps * (1.0 - self.solution.violation)


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

    def promise(self, rate_rps: float) -> tuple[float, float]:
        """Expected accuracy and violation at this load, between its neighbours: the table in use
        is for a higher load, and does better at this one. Goodput is on the line between theirs:
        in overload it stays what it is, while violations do not rise evenly."""
        high = self.rung_for(rate_rps)
        below = [rung for rung in self.rungs if rung.rate_rps < rate_rps]
        if not below or rate_rps >= high.rate_rps:
            return high.solution.accuracy, high.solution.violation
        low = below[-1]
        part = (rate_rps - low.rate_rps) / (high.rate_rps - low.rate_rps)
        first, second = low.solution, high.solution
        accuracy = first.accuracy + part * (second.accuracy - first.accuracy)
        good_rps = (1.0 - part) * low.good_rps + part * high.good_rps
        return accuracy, max(0.0, 1.0 - good_rps / rate_rps)

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


def solve_point(problem: WorkerProblem, start: TableSolution | None = None) -> GridPoint:
    """The table for the problem's own load; see `solve`."""
    return GridPoint(problem.rate_rps, solve(problem, start))


def solve_grid(problem: WorkerProblem, low_rps: float, high_rps: float) -> LoadGrid:
    """Tables from the low load to the high one: the widest gap is halved until all are close."""
    rungs = [solve_point(problem.at_rate(low_rps))]
    if high_rps > low_rps:
        rungs.append(solve_point(problem.at_rate(high_rps)))
        while len(rungs) < TABLES_MAX:
            gaps = [_gap(low, high) for low, high in pairwise(rungs)]
            widest = max(gaps)
            if widest < PROMISE_STEP:
                break
            place = gaps.index(widest)
            low, high = rungs[place : place + 2]
            middle = problem.at_rate((low.rate_rps + high.rate_rps) / 2)
            rungs.insert(place + 1, solve_point(middle, high.solution))
    return LoadGrid(problem.slack_ns, tuple(rungs))


def _gap(low: GridPoint, high: GridPoint) -> float:
    """Difference of two neighbours' promises, as `PROMISE_STEP` has it; 0 where no table may
    come between them."""
    apart = 1.0 - low.rate_rps / high.rate_rps
    if apart < RATE_STEP_MIN:
        return 0.0
    first, second = low.solution, high.solution
    # Where goodput is the same, what `promise` says between them is right however far they are.
    goodput = abs(high.good_rps - low.good_rps) / high.rate_rps
    violation = min(goodput, abs(first.violation - second.violation))
    promise = max(violation, abs(first.accuracy - second.accuracy))
    return promise if apart < RATE_STEP else 2.0 * promise
