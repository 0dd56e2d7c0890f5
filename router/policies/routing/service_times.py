"""The time an instance really takes for a request: its mean and its spread, learnt."""

from math import sqrt

from fermata.router.core.costs import VariantCost

MEMORY = 256
"""Requests over which mean and spread are averaged."""
PRIOR = 16
"""Requests that the profile's own word counts for."""
SPREAD_UNKNOWN = 0.1
"""Relative spread where the profile has no 99th percentile: rather a reserve than a miss."""
SIGMAS_OF_P99 = 2.33
RATIO_MIN = 0.5
"""A run that ends sooner has failed, or is not worth being optimistic for."""


class ServiceTimes:
    """Ratio of actual to profiled time of one variant.

    Unlike the planned time of `Costs`, which is a quantile of one run, this adds up: the time of
    k requests has k times the mean and sqrt(k) times the spread.
    """

    __slots__ = ("count", "mean", "variance")

    def __init__(self, cost: VariantCost) -> None:
        self.count = PRIOR
        self.mean = 1.0
        spread = max(SPREAD_UNKNOWN, (cost.seed - 1.0) / SIGMAS_OF_P99)
        self.variance = spread * spread

    @property
    def spread(self) -> float:
        return sqrt(self.variance)

    def observe(self, ratio: float) -> None:
        """A batch took so many times what its profile says."""
        if ratio < RATIO_MIN:
            return
        self.count = min(MEMORY, self.count + 1)
        weight = 1.0 / self.count
        off = ratio - self.mean
        self.mean += weight * off
        self.variance = (1.0 - weight) * (self.variance + weight * off * off)
