"""A mean accuracy to hold: the backends that it takes, and whether the answers have it.

A policy that chooses variants by load spends idle time on accuracy. So its backends are always
busy, and busy time says nothing of how many are needed. The planner says it instead.
"""

from dataclasses import dataclass, replace

from fermata.autoscaler.evidence import faded
from fermata.partitioner.backends import backends_for
from fermata.partitioner.plan import PlacedModel

STEP = 0.01
"""Difference of accuracy over which its price in backends is taken."""
KEPT = 0.98
"""Share of the answers that still counts after a window."""
WINDOWS_MIN = 3
"""Windows before answers are judged: within one the load may have been high by chance."""
DOUBT = 0.01
"""Accuracy that may be missing by chance in one window; in n windows the n-th part of it."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of the applications of a pool that have an accuracy to hold; old ones count less."""

    lacking: tuple[float, ...] = ()
    """Right answers that each application is short of; below 0: it has more than it needs."""
    counts: tuple[float, ...] = ()
    prices: tuple[float, ...] = ()
    """Backends for each unit of accuracy, at the rate of the newest window."""
    windows: int = 0

    def and_then(self, newer: "Answers") -> "Answers":
        if len(self.counts) != len(newer.counts):
            return newer
        return Answers(
            faded(KEPT, self.lacking, newer.lacking),
            faded(KEPT, self.counts, newer.counts),
            newer.prices,
            self.windows + newer.windows,
        )

    def missing(self) -> float:
        """Backends that are missing for the accuracy to hold; 0 where none are."""
        if self.windows < WINDOWS_MIN:
            return 0.0
        found = 0.0
        for lacking, count, price in zip(self.lacking, self.counts, self.prices, strict=True):
            if count > 0.0 and lacking > DOUBT / self.windows * count:
                found += max(1.0, price * lacking / count)
        return found


def need(model: PlacedModel, rate_rps: float) -> float:
    """Backends that the model's accuracy takes at this rate."""
    return backends_for(replace(model, rate_rps=rate_rps)) or 0.0


def price(model: PlacedModel, rate_rps: float) -> float:
    """Backends for each unit of accuracy more, at this rate."""
    assert model.accuracy is not None
    less = replace(model, accuracy=model.accuracy - STEP)
    return (need(model, rate_rps) - need(less, rate_rps)) / STEP
