"""A load that does not follow the noise of its own measurement."""

import math

BUCKETS = 50.0
"""Readings averaged: five seconds' worth of `RateMeter`'s."""
NOISE_RPS = 0.53
"""Variance of a `RateMeter` reading over the rate, for Poisson arrivals: its newest bucket of
100 ms weighs a tenth, so 0.1 / 1.9 of a bucket's variance is left."""
DOUBT = 3.0
"""Readings this many standard deviations off are a change of load."""


class LoadFilter:
    """Averages readings while they differ by chance alone; follows at once when they do not."""

    __slots__ = ("count", "rps")

    def __init__(self) -> None:
        self.rps = 0.0
        self.count = 0.0

    def read(self, rps: float) -> float:
        """The load, given one more reading."""
        if abs(rps - self.rps) > DOUBT * math.sqrt(NOISE_RPS * max(rps, self.rps)):
            self.rps, self.count = rps, 1.0
        else:
            self.count = min(BUCKETS, self.count + 1.0)
            self.rps += (rps - self.rps) / self.count
        return self.rps
