"""What the figures on random arrivals are made of: settings, runs and rows."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.ramsis_data import Task, served
from fermata.router.policies.central.accuracy_hull import concave_hull, fluid_accuracy, reachable
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario

Value = float | tuple[float, str]
"""A figure's value, and what is to be said beside its name."""
Measured = Callable[[], list[Value]]


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement that fills one or more figures."""

    figures: tuple[Figure, ...]
    measure: Measured


@dataclass(frozen=True, slots=True)
class Setting:
    """A task, its SLO, and the workers that serve it."""

    task: Task
    slo_ms: float = 150.0
    workers: int = 60

    def under(self, policy: str, late: bool = False, **values: object) -> Scenario:
        """A scenario; `late` answers after the deadline too, as the paper does."""
        return served(self.task, self.slo_ms, self.workers, policy, late=late, **values)

    def fluid_bound(self, rate_rps: float) -> float:
        """In percent: what backends that never idle could reach with nobody waiting."""
        tables = [(0, *row) for row in self.task.latency_ns()]
        points = reachable(tables, self.task.accuracy(), round(1e6 * self.slo_ms), rate_rps)
        bound = fluid_accuracy(concave_hull(points), self.workers * 1e9 / rate_rps)
        assert bound is not None, "more load than any batch sustains"
        return 100.0 * bound


def outcome(scenario: Scenario) -> RunReport:
    return report(scenario, simulate(scenario))


def percent(result: RunReport) -> tuple[float, float]:
    """Accuracy of requests in time, and share of the others."""
    return 100.0 * (result.accuracy or 0.0), 100.0 * result.bad_rate
