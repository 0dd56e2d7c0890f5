"""Functions that users' files name as `module:function`; they import nothing of Fermata's."""

import math

import numpy as np


def lateness(late: float) -> float:
    """Cost of an answer that is late by this share of its time."""
    return min(1.0, late**0.5)


def poisson(rate_rps: float, times_s: np.ndarray, count_max: int) -> np.ndarray:
    """Logarithms of the probability of 0, 1, ... arrivals in each time."""
    counts = np.arange(count_max + 1)
    factorial = np.array([math.lgamma(count + 1) for count in counts])
    means = np.maximum(rate_rps * np.asarray(times_s, np.float64), 1e-300)[..., None]
    return np.log(means) * counts - means - factorial


def load():
    """A model of the user's own."""
    return lambda batch: batch.reshape(len(batch), -1)[:, :2]
