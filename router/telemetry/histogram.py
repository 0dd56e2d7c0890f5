"""Counts of values by bucket, at the cost of a list's append: buckets are filled when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from fermata.foundation.units import ms

LATENCY_NS = tuple(
    ms(each)
    for each in (1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000)
)
SLACK_NS = tuple(
    ms(each)
    for each in (-500, -100, -50, -20, -10, -5, -2, 0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
)
"""Below zero: too late by that much."""
SHORT_NS = tuple(
    1000 * each for each in (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
)
"""For links and timers."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram at one moment."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    """By bucket; the last one is for values above every bound."""
    sum: int


class Histogram:
    """Number of values up to each bound, and their sum."""

    __slots__ = ("_counts", "_pending", "_sum", "bounds", "pending_max")

    def __init__(self, bounds: Sequence[int], pending_max: int = 8192) -> None:
        """`pending_max` values are kept as they came; more are put into buckets at once."""
        self.bounds = tuple(bounds)
        self.pending_max = pending_max
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0
        self._pending: list[int] = []

    def add(self, value: int) -> None:
        self._pending.append(value)
        if len(self._pending) > self.pending_max:
            self._settle()

    def add_all(self, values: list[int]) -> None:
        self._pending += values
        if len(self._pending) > self.pending_max:
            self._settle()

    def merge(self, counts: Sequence[int], total: int) -> None:
        """Add the counts of another one with the same bounds."""
        self._counts = [mine + more for mine, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    def _settle(self) -> None:
        if self._pending:
            # Not above: a router that starts anew has no time for it.
            import numpy as np

            values = np.array(self._pending, np.int64)
            places = np.searchsorted(self.bounds, values)
            found = np.bincount(places, minlength=len(self._counts))
            self._pending.clear()
            self.merge(found.tolist(), int(values.sum()))

    @property
    def counts(self) -> list[int]:
        """By bucket; the last one is for what is above every bound."""
        self._settle()
        return self._counts

    @property
    def sum(self) -> int:
        self._settle()
        return self._sum

    def take(self) -> tuple[tuple[int, ...], int]:
        """Counts and sum since the last call."""
        self._settle()
        taken = tuple(self._counts), self._sum
        self._counts = [0] * len(self._counts)
        self._sum = 0
        return taken

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self.bounds, tuple(self.counts), self.sum)


def quantile(bounds: Sequence[int], counts: Sequence[int], share: float) -> float | None:
    """Below which that share of the values lies, read off buckets; None where there are none.
    Within a bucket values are taken to be spread evenly, as Prometheus does."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted = share * total
    below = 0
    for place, bound in enumerate(bounds):
        if counts[place] and below + counts[place] >= wanted:
            start = bounds[place - 1] if place else min(0, bound)
            return start + (bound - start) * (wanted - below) / counts[place]
        below += counts[place]
    return float(bounds[-1])
