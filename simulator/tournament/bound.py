"""The fluid bound: the utility that no policy can exceed on given arrivals.

A request that is answered in time runs within one SLO of its arrival. So what arrives in one window
of the longest SLO runs in this window or in the next, and each window has so much backend time. In
the bound nothing idles for want of company: every request costs what a full batch costs it.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fermata.applications.application import Application
from fermata.applications.backends import BackendGroup
from fermata.applications.variant import Variant
from fermata.foundation.errors import ConfigError
from fermata.router.policies.central.accuracy_hull import Point, concave_hull, price
from fermata.simulator.arrivals import Arrivals
from fermata.simulator.assembly import batch_size_max, profile_on
from fermata.simulator.scenario.scenario import Scenario

NOTHING = Point(-1, 1, 0, 0.0)
"""A request that is dropped: it takes no time and earns nothing."""
Segments = list[tuple[float, float]]
"""(accuracy for a nanosecond, nanoseconds), for one request of an application, best first."""


def fluid_bound(
    scenario: Scenario,
    arrivals: Arrivals,
    with_accuracy: bool = True,
    rows: Sequence[int] | None = None,
) -> float:
    """Sum of accuracy over answers in time, over all requests, at best.

    Without accuracy every answer counts as one. `rows` are those of each request; each row costs
    what it costs in a full batch.
    """
    measured = arrivals.at_ns >= scenario.warmup_ns
    window_ns = max(application.slo_ns_max for application in scenario.applications)
    windows = (arrivals.at_ns[measured] - scenario.warmup_ns) // window_ns
    applications = arrivals.application[measured]
    total = len(windows)
    if total == 0:
        return 0.0
    fleet = _Fleet(scenario)
    segments = [_segments(each, fleet, with_accuracy) for each in scenario.applications]
    own = np.ones(len(arrivals.at_ns), np.int64) if rows is None else np.array(rows)
    alike, like = np.unique(np.stack([applications, own[measured]]), axis=1, return_inverse=True)
    kinds: dict[tuple[tuple[float, float], ...], int] = {}
    kind_of = [
        kinds.setdefault(_of_rows(segments[application], count), len(kinds))
        for application, count in alike.T.tolist()
    ]
    count = int(windows.max()) + 1
    arrived = np.zeros((count, len(kinds)))
    np.add.at(arrived, (windows, np.array(kind_of)[like.ravel()]), 1.0)
    capacity_ns = fleet.backends * window_ns
    return _solve(arrived, [list(kind) for kind in kinds], capacity_ns) / total


class _Fleet:
    """Backends of several kinds, counted as backends of the fastest kind."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        kinds = scenario.kinds
        self.reference = min(kinds, key=lambda kind: sum(self._alone_ns(kind)))
        counts = [scenario.kind_of.count(number) for number in range(len(kinds))]
        # A kind counts by the batch that it runs best, so that none is worth less than it is.
        self.backends = sum(
            count / self._ratio(kind) for count, kind in zip(counts, kinds, strict=True)
        )

    def _alone_ns(self, kind: BackendGroup) -> list[int]:
        return [profile_on(each, kind).latency_ns(1) for each in self._variants()]

    def _variants(self) -> list[Variant]:
        return [variant for each in self.scenario.applications for variant in each.variants]

    def _ratio(self, kind: BackendGroup) -> float:
        """Run times on a kind over those on the fastest, at the least."""
        if kind.same_as == self.reference.same_as:
            return 1.0
        ratios: list[float] = []
        for application in self.scenario.applications:
            for variant in application.variants:
                here, there = self.tables(variant, application.slo_ns_max, kind)
                ratios += [mine / theirs for mine, theirs in zip(here, there, strict=False)]
        return min(ratios)

    def tables(
        self, variant: Variant, slo_ns: int, kind: BackendGroup
    ) -> tuple[list[int], list[int]]:
        """Run times of the same batches on a kind, and on the fastest."""
        size_max = max(batch_size_max(variant, slo_ns, each) for each in self.scenario.kinds)
        return (
            profile_on(variant, kind).table_ns(size_max),
            profile_on(variant, self.reference).table_ns(size_max),
        )


def _segments(application: Application, fleet: _Fleet, with_accuracy: bool) -> Segments:
    """Each step along the hull of what a request can be given, from nothing to the best."""
    points = [NOTHING]
    for number, variant in enumerate(application.variants):
        accuracy = (variant.accuracy or 0.0) if with_accuracy else 1.0
        slo_ns = application.slo_ns_max
        tables = [fleet.tables(variant, slo_ns, kind) for kind in fleet.scenario.kinds]
        points += [
            Point(number, size, tables[0][1][size - 1], accuracy)
            for size in range(1, len(tables[0][1]) + 1)
            if any(size <= len(here) and here[size - 1] <= slo_ns for here, _ in tables)
        ]
    hull = concave_hull(points)
    return [(price(cheap, dear), dear.each_ns - cheap.each_ns) for cheap, dear in pairwise(hull)]


def _of_rows(segments: Segments, rows: int) -> tuple[tuple[float, float], ...]:
    """The same for a request of so many rows: it earns as much, and takes so many times as long."""
    return tuple((worth / rows, rows * time_ns) for worth, time_ns in segments)


def _solve(arrived: npt.NDArray[np.float64], kinds: list[Segments], capacity_ns: float) -> float:
    """The linear program: time of each segment of each window's requests, here or in the next."""
    try:
        import highspy
    except ImportError:
        raise ConfigError("no LP solver is installed; pip install highspy") from None
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    windows = len(arrived)
    # In units of a window's capacity, so that the solver sees numbers near one.
    here = solver.addVariables(windows, lb=0.0, ub=1.0)
    later = solver.addVariables(windows, lb=0.0, ub=1.0)
    worth = []
    for window in range(windows):
        used = []
        steps = defaultdict[float, float](float)
        for kind, segments in enumerate(kinds):
            for worth_each, time_ns in segments:
                steps[worth_each] += float(arrived[window, kind]) * time_ns / capacity_ns
        for worth_each, room in steps.items():
            if room > 0.0:
                used.append(solver.addVariable(lb=0.0, ub=room))
                worth.append(worth_each * capacity_ns * used[-1])
        if used:
            solver.addConstr(solver.qsum(used) <= here[window] + later[window])
        spill = later[window - 1] if window > 0 else 0.0
        solver.addConstr(here[window] + spill <= 1.0)
    solver.maximize(solver.qsum(worth))
    return float(solver.getObjectiveValue())
