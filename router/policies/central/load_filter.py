"""A load that does not follow the noise of its own measurement."""

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class LoadFilterRules:
    """How readings are averaged, and which are a change."""

    readings: float = 50.0
    """Readings averaged: five seconds' worth of `RateMeter`'s."""
    noise_rps: float = 0.53
    """Variance of a `RateMeter` reading over the rate, for Poisson arrivals: its newest bucket of
    100 ms weighs a tenth, so 0.1 / 1.9 of a bucket's variance is left."""
    change: float = 3.0
    """Readings this many standard deviations off are a change of load."""


class LoadFilter:
    """Averages readings while they differ by chance alone; follows at once when they do not."""

    __slots__ = ("count", "rps")
    rules: ClassVar[LoadFilterRules] = LoadFilterRules()

    def __init__(self) -> None:
        self.rps = 0.0
        self.count = 0.0

    def read(self, rps: float) -> float:
        """The load, given one more reading."""
        noise_rps = math.sqrt(self.rules.noise_rps * max(rps, self.rps))
        if abs(rps - self.rps) > self.rules.change * noise_rps:
            self.rps, self.count = rps, 1.0
        else:
            self.count = min(self.rules.readings, self.count + 1.0)
            self.rps += (rps - self.rps) / self.count
        return self.rps
