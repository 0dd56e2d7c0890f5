"""Backends for a mean accuracy: the cheapest mix of variants that reaches it.

Time on backends buys accuracy. Of all mixes that reach the mean, the one with the least backend
time for each request needs the fewest backends; it has two variants at most.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fermata.foundation.units import SECOND
from fermata.profiles.profile import Profile

BATCH_SIZE_MAX = 1024
"""Where a linear profile has no end of its own."""
PRECISION = 1e-3
"""Backends to which the number is exact."""


@dataclass(frozen=True, slots=True)
class RatedProfile:
    """One of the variants that a policy chooses among."""

    profile: Profile
    accuracy: float
    batch_size_max: int = 0
    """Its largest batch; 0: the profile's."""

    def run_ns(self) -> list[int]:
        """Run times by batch size; [0] is a batch of nobody."""
        sizes = [each for each in (self.batch_size_max, self.profile.batch_size_max) if each]
        return [0, *self.profile.table_ns(min(sizes, default=BATCH_SIZE_MAX))]


def backends_at_accuracy(
    variants: Sequence[RatedProfile], slo_ns: int, rate_rps: float, accuracy: float
) -> float | None:
    """Backends, in fractions, that keep up with the rate at this mean accuracy, in batches as
    large as the SLO allows; None where no variant within the SLO is as accurate."""
    tables = [each.run_ns() for each in variants]
    accuracies = [each.accuracy for each in variants]

    def needed(backends: float) -> float:
        """Backends for all requests, where batches are as large as so many backends allow."""
        costs = [_cost_ns(table, slo_ns, rate_rps, backends) for table in tables]
        return rate_rps * _least_cost_ns(costs, accuracies, accuracy) / SECOND

    if needed(math.inf) == math.inf:
        return None
    alone = needed(1.0)
    if alone <= 1.0:
        return alone
    low = high = 1.0
    while needed(high) > high:
        low, high = high, 2.0 * high
    # More backends allow larger batches, which need fewer: the two meet once.
    while high - low > PRECISION:
        middle = (low + high) / 2.0
        low, high = (middle, high) if needed(middle) > middle else (low, middle)
    return high


def _cost_ns(table: Sequence[int], slo_ns: int, rate_rps: float, backends: float) -> float:
    """Backend time for each request, in the largest batches that the SLO allows; infinite where
    it allows none.

    A request waits for its backend's turn, l(b) / n with n backends (Symphony Eqns 2 and 3). With
    one or fewer it waits until its batch is full.
    """
    if backends > 1.0:
        size = bisect_right(table, slo_ns / (1.0 + 1.0 / backends)) - 1
    else:
        size = 0
        while size + 1 < len(table) and table[size + 1] + size * SECOND / rate_rps <= slo_ns:
            size += 1
    return table[size] / size if size else math.inf


def _least_cost_ns(
    costs_ns: Sequence[float], accuracies: Sequence[float], accuracy: float
) -> float:
    """Backend time for each request of the cheapest mix with this mean accuracy."""
    points = [
        (cost, each) for cost, each in zip(costs_ns, accuracies, strict=True) if cost < math.inf
    ]
    least = min((cost for cost, each in points if each >= accuracy), default=math.inf)
    for cheap, low in points:
        for dear, high in points:
            if low < accuracy < high:
                share = (accuracy - low) / (high - low)
                least = min(least, cheap + share * (dear - cheap))
    return least
