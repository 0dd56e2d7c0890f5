"""The fluid bound: the utility that no policy can exceed on given arrivals.

A request that is answered in time runs within one SLO of its arrival. So what arrives in one window
of the longest SLO runs in this window or in the next, and each window has so much backend time.
Every request costs what it costs in the best batch that it has company for (`company`). Jitter
makes batches longer, by its mean, and those that need most of the SLO late, by chance: no policy
knows which ones.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, zip_longest

import numpy as np
import numpy.typing as npt

from fermata.applications.application import Application
from fermata.applications.backends import BackendGroup
from fermata.applications.variant import Variant
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER
from fermata.router.policies.central.accuracy_hull import Point, concave_hull, price
from fermata.simulator.arrivals import Arrivals
from fermata.simulator.assembly import batch_size_max, profile_on
from fermata.simulator.scenario.scenario import Scenario
from fermata.simulator.tournament.company import Counts, largest_batches

NOTHING = Point(-1, 1, 0, 0.0)
"""A request that is dropped: it takes no time and earns nothing."""
COMPANY_STEPS = 48
"""Sizes that batches are told apart by, to bound the linear program."""
Segments = list[tuple[float, float]]
"""(accuracy for a nanosecond, nanoseconds), for one request of an application, best first."""


def fluid_bound(
    scenario: Scenario,
    arrivals: Arrivals,
    with_accuracy: bool = True,
    rows: Sequence[int] | None = None,
) -> float:
    """Sum of accuracy over answers in time, over all requests, at best.

    Without accuracy every answer counts as one. `rows` are those of each request, which run in one
    batch.
    """
    measured = arrivals.at_ns >= scenario.warmup_ns
    window_ns = max(application.slo_ns_max for application in scenario.applications)
    windows = (arrivals.at_ns[measured] - scenario.warmup_ns) // window_ns
    if len(windows) == 0:
        return 0.0
    fleet = _Fleet(scenario)
    own = np.ones(len(arrivals.at_ns), np.int64) if rows is None else np.array(rows)
    kinds: dict[tuple[tuple[float, float], ...], int] = {}
    kind_of = np.zeros(len(own), np.int64)
    for number, application in enumerate(scenario.applications):
        here = np.flatnonzero(arrivals.application == number)
        ways = _ways(application, fleet, with_accuracy)
        company = _company(application, fleet, arrivals.at_ns[here], own[here])
        alike, like = np.unique(np.stack([own[here], *company]), axis=1, return_inverse=True)
        found = [
            kinds.setdefault(_segments(ways, count, largest), len(kinds))
            for count, *largest in alike.T.tolist()
        ]
        kind_of[here] = np.array(found, np.int64)[like.ravel()] if len(here) else 0
    arrived = np.zeros((int(windows.max()) + 1, len(kinds)))
    np.add.at(arrived, (windows, kind_of[measured]), 1.0)
    capacity_ns = fleet.backends * window_ns
    return _solve(arrived, [list(kind) for kind in kinds], capacity_ns) / len(windows)


class _Jitter:
    """Chances of run times: profiled ones times one plus the size of a normal number."""

    def __init__(self, scenario: Scenario) -> None:
        self.known = scenario.variation == 0.0 and scenario.draw == "median"
        """Whether no batch runs for less than its profiled time."""
        self.spread = min(spread for _, spread in scenario.jitter) if self.known else 0.0
        self.mean = 1.0 + self.spread * math.sqrt(2.0 / math.pi)

    def in_time(self, room: float) -> float:
        """The chance that a batch ends within so many times its profiled run time."""
        if room < 1.0 or self.spread == 0.0:
            return float(room >= 1.0)
        return math.erf((room - 1.0) / (self.spread * math.sqrt(2.0)))


class _Fleet:
    """Backends of several kinds, counted as backends of the fastest kind."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.jitter = _Jitter(scenario)
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

    def reference_ns(self, variant: Variant, slo_ns: int) -> list[int]:
        """Run times of batches on the fastest kind."""
        return self.tables(variant, slo_ns, self.reference)[1]

    def least_ns(self, variant: Variant, slo_ns: int) -> list[int]:
        """Run times of batches on whichever kind runs them fastest."""
        by_kind = [self.tables(variant, slo_ns, kind)[0] for kind in self.scenario.kinds]
        return [min(each) for each in zip_longest(*by_kind, fillvalue=NEVER)]

    def tables(
        self, variant: Variant, slo_ns: int, kind: BackendGroup
    ) -> tuple[list[int], list[int]]:
        """Run times of the same batches on a kind, and on the fastest."""
        size_max = max(batch_size_max(variant, slo_ns, each) for each in self.scenario.kinds)
        return (
            profile_on(variant, kind).table_ns(size_max),
            profile_on(variant, self.reference).table_ns(size_max),
        )


def _ways(application: Application, fleet: _Fleet, with_accuracy: bool) -> list[Point]:
    """Every batch that may end in time, with the worth of each of its requests on average."""
    slo_ns, found = application.slo_ns_max, []
    for number, variant in enumerate(application.variants):
        accuracy = (variant.accuracy or 0.0) if with_accuracy else 1.0
        times_ns = zip(
            fleet.reference_ns(variant, slo_ns), fleet.least_ns(variant, slo_ns), strict=False
        )
        for size, (reference_ns, least_ns) in enumerate(times_ns, 1):
            in_time = fleet.jitter.in_time(slo_ns / least_ns)
            if in_time > 0.0:
                run_ns = int(reference_ns * fleet.jitter.mean)
                found.append(Point(number, size, run_ns, accuracy * in_time))
    return found


def _company(application: Application, fleet: _Fleet, at_ns: Counts, rows: Counts) -> list[Counts]:
    """By variant and request: the largest batch, rounded up so that few differ."""
    slo_ns, found = application.slo_ns_max, []
    for variant in application.variants:
        least_ns = fleet.least_ns(variant, slo_ns)
        if fleet.jitter.known:
            largest = largest_batches(at_ns, rows, slo_ns, least_ns)
            steps = np.unique(np.geomspace(1, len(least_ns), COMPANY_STEPS).round())
            largest = np.concatenate([[0], steps]).astype(np.int64)[
                np.searchsorted(steps, largest) + (largest > 0)
            ]
        else:
            largest = np.full(len(at_ns), len(least_ns))
        found.append(largest)
    return found


def _segments(
    ways: Sequence[Point], rows: int, largest: Sequence[int]
) -> tuple[tuple[float, float], ...]:
    """Each step along the hull of what a request of so many rows can be given, from nothing to the
    best, in batches up to those sizes by variant."""
    points = [each for each in ways if rows <= each.size <= largest[each.variant]]
    hull = concave_hull([NOTHING, *points])
    return tuple(
        (price(cheap, dear) / rows, rows * (dear.each_ns - cheap.each_ns))
        for cheap, dear in pairwise(hull)
    )


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
