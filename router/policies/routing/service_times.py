"""The time an instance really takes for a request: its mean and its spread, learnt."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from fermata.router.core.costs import VariantCost


@dataclass(frozen=True, slots=True)
class ServiceTimeRules:
    """How fast mean and spread are learnt."""

    memory: int = 256
    """Requests over which mean and spread are averaged."""
    prior: int = 16
    """Requests that the profile's own word counts for."""
    spread_unknown: float = 0.1
    """Relative spread where the profile has no 99th percentile: rather a reserve than a miss."""
    sigmas_of_p99: float = 2.33
    ratio_min: float = 0.5
    """A run that ends sooner has failed, or is not worth being optimistic for."""
    outlier: float = 4.0
    """So many deviations above the mean, or above twice the mean, a run counts as no longer: a
    stall of one instance says little of the next run."""


class ServiceTimes:
    """Ratio of actual to profiled time of one variant.

    Unlike the planned time of `Costs`, which is a quantile of one run, this adds up: the time of
    k requests has k times the mean and sqrt(k) times the spread.
    """

    __slots__ = ("cost", "count", "mean", "seed", "variance")
    rules: ClassVar[ServiceTimeRules] = ServiceTimeRules()

    def __init__(self, cost: VariantCost) -> None:
        self.cost = cost
        self._begin()

    def _begin(self) -> None:
        """Start from what the profile says."""
        self.count = self.rules.prior
        self.mean = 1.0
        self.seed = self.cost.seed
        spread = max(self.rules.spread_unknown, (self.seed - 1.0) / self.rules.sigmas_of_p99)
        self.variance = spread * spread

    @property
    def spread(self) -> float:
        return sqrt(self.variance)

    def observe(self, ratio: float) -> None:
        """A batch took so many times what its profile says."""
        if ratio < self.rules.ratio_min:
            return
        if self.cost.seed < self.seed:
            # Runs have belied the profile's 99th percentile.
            self._begin()
        self.count = min(self.rules.memory, self.count + 1)
        weight = 1.0 / self.count
        off = min(ratio - self.mean, max(self.mean, self.rules.outlier * self.spread))
        self.mean += weight * off
        self.variance = (1.0 - weight) * (self.variance + weight * off * off)
