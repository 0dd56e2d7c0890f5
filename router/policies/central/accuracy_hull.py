"""The concave hull of what a family offers: accuracy against backend time for each request."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run a request: a variant in batches of one size."""

    variant: int
    """Index within the family."""
    size: int
    run_ns: int
    accuracy: float

    @property
    def each_ns(self) -> float:
        """Backend time for each request."""
        return self.run_ns / self.size


def concave_hull(points: Sequence[Point]) -> list[Point]:
    """The points that no mixture of others beats, cheapest first.

    Along it accuracy rises ever more slowly, so any time per request between two neighbours is
    best spent on a mixture of just these two.
    """
    hull: list[Point] = []
    for point in sorted(points, key=lambda each: (each.each_ns, -each.accuracy)):
        if hull and point.accuracy <= hull[-1].accuracy:
            continue
        while len(hull) >= 2 and price(hull[-2], point) >= price(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return hull


def price(cheap: Point, dear: Point) -> float:
    """Accuracy that one nanosecond more for each request buys from one point to the other."""
    return (dear.accuracy - cheap.accuracy) / (dear.each_ns - cheap.each_ns)


def reachable(
    tables: Sequence[Sequence[int]], accuracy: Sequence[float], slo_ns: int, rate_rps: float
) -> list[Point]:
    """Every batch that can gather at this rate and still meet the SLO; run times by variant, then
    by size with size 0 unused."""
    gap_ns = 1e9 / rate_rps if rate_rps > 0.0 else float("inf")
    points: list[Point] = []
    for variant, run_ns in enumerate(tables):
        for size in range(1, len(run_ns)):
            if run_ns[size] + (gap_ns * (size - 1) if size > 1 else 0.0) <= slo_ns:
                points.append(Point(variant, size, run_ns[size], accuracy[variant]))
    return points


def fluid_accuracy(hull: Sequence[Point], each_ns: float) -> float | None:
    """Accuracy of the best mixture that takes that long for each request; None if all are dearer.

    With the backends' time for each request it bounds what any policy can reach: nothing waits,
    nothing idles.
    """
    if not hull or each_ns < hull[0].each_ns:
        return None
    best = hull[-1].accuracy
    for cheap, dear in pairwise(hull):
        if each_ns <= dear.each_ns:
            return cheap.accuracy + price(cheap, dear) * (each_ns - cheap.each_ns)
    return best
