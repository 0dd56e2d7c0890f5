"""How many requests arrive in a span of time: the law that the tables are solved for.

A law is any function `law(rate_rps, times_s, count_max)` that gives, for each time, the logarithm
of the probability of 0, 1, ... `count_max` arrivals. Increments must be independent and stationary
(RAMSIS section 4.4.2). Where arrivals come one at a time the solution is exact; where several come
at the same instant it takes them to come one shortly after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
CountLaw = Callable[[float, Floats, int], Floats]


def poisson(rate_rps: float, times_s: Floats, count_max: int) -> Floats:
    """Independent arrivals."""
    times = np.asarray(times_s, np.float64)
    means = rate_rps * times[..., None]
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count_max + 1)))))
    # In place: the tables are made of millions of these.
    law: Floats = np.log(np.maximum(means, 1e-300)) * np.arange(count_max + 1)
    law -= means
    law -= log_factorial
    return _at_no_time(times, law)


def _at_no_time(times_s: Floats, law: Floats) -> Floats:
    """Nothing arrives in no time, whatever the formula makes of it."""
    none = times_s <= 0.0
    if none.any():
        law[none] = -np.inf
        law[none, 0] = 0.0
    return law


@dataclass(frozen=True, slots=True)
class Bursty:
    """Poisson arrivals whose clock runs unevenly: counts are negative binomial.

    The variance of the count in any span is `1 + rate * burst_s` times its mean.
    """

    burst_s: float
    """Length of the bursts, in effect: arrivals within it come together or not at all."""

    def __call__(self, rate_rps: float, times_s: Floats, count_max: int) -> Floats:
        times = np.asarray(times_s, np.float64)[..., None]
        successes = np.maximum(times, 1e-300) / self.burst_s
        chance = 1.0 / (1.0 + rate_rps * self.burst_s)
        counts = np.arange(count_max)
        steps = np.log(successes + counts) - np.log(counts + 1.0) + np.log1p(-chance)
        rise = np.concatenate((np.zeros_like(successes), np.cumsum(steps, axis=-1)), axis=-1)
        return _at_no_time(times[..., 0], successes * np.log(chance) + rise)
