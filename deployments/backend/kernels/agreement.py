"""Comparison of another way's answers with the plain ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BOUND = 0.02
"""Largest difference of a score, relative to the largest score: fp16 rounds to 11 bits, and a
network of fifty layers adds up what it has rounded."""
BOUND_MAX = 0.1
"""Rounding that moves answers further than that would hide a wrong way."""
SLACK = 2.0
"""Two ways that are each as far from the exact answer may be on either side of it."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Difference between two sets of answers to the same inputs."""

    difference: float
    """The largest one of any score, relative to the largest plain score."""
    classes: int
    """Answers whose highest score is another one's, though its lead exceeds the bound."""
    bound: float = BOUND

    @property
    def holds(self) -> bool:
        return self.difference <= self.bound and not self.classes


def bound_of(plain: NDArray[Any], exact: NDArray[Any]) -> float:
    """The bound for a network whose plain answers are so far from those without rounding."""
    return min(BOUND_MAX, max(BOUND, SLACK * compare(exact, plain).difference))


def compare(plain: NDArray[Any], other: NDArray[Any], bound: float = BOUND) -> Agreement:
    """Compare answers row by row; a value that is no number agrees with nothing."""
    if plain.shape != other.shape:
        return Agreement(float("inf"), len(plain), bound)
    wanted = plain.reshape(len(plain), -1).astype(np.float64)
    found = other.reshape(len(other), -1).astype(np.float64)
    gap = np.abs(wanted - found)
    largest = float(np.abs(wanted).max(initial=0.0))
    if not np.isfinite(gap).all():
        return Agreement(float("inf"), len(plain), bound)
    scale = largest or 1.0
    classes = 0
    if wanted.shape[1] > 1:
        top = np.sort(wanted, axis=1)
        clear = top[:, -1] - top[:, -2] > 2 * bound * scale
        classes = int((clear & (wanted.argmax(axis=1) != found.argmax(axis=1))).sum())
    return Agreement(float(gap.max(initial=0.0)) / scale, classes, bound)
