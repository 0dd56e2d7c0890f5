"""JPEG qualities that a camera may send at, and what each costs in bits."""

from collections.abc import Sequence
from itertools import pairwise

LADDER = (40, 50, 65, 80)
"""At 40, as many bits hold a frame 1.4 times as wide as at 80, in which detectors find more. Below
that, some find less again (`benchmarks/camera_quality.py`)."""
COSTS = (
    (30, 0.51),
    (40, 0.58),
    (50, 0.64),
    (60, 0.71),
    (70, 0.82),
    (80, 1.0),
    (90, 1.41),
    (100, 3.8),
)
"""Bits by quality, over those at 80: means of two clips and three sizes, from 40 to 90 each within
15 %."""


def cost(quality: int) -> float:
    """Bits of a JPEG of this quality, over those of one at 80."""
    for (low, cheaper), (high, dearer) in pairwise(COSTS):
        if quality <= high:
            return max(0.1, cheaper + (dearer - cheaper) * (quality - low) / (high - low))
    return COSTS[-1][1]


def steps(lowest: int, best: int) -> Sequence[int]:
    """Qualities from the lowest to the best; the best alone where it is not above the lowest."""
    if lowest >= best:
        return (best,)
    return (lowest, *(each for each in LADDER if lowest < each < best), best)
