"""The highest rate that a server still serves, found by trying."""

from collections.abc import Callable

STEP = 1.3

Good = Callable[[float], bool]


def highest(
    good: Good, guess_rps: float, precision: float, probes: int = 16, step: float = STEP
) -> float:
    """The highest rate that is served, to that precision; 0 where none of so many rates was."""
    low, high, rate = 0.0, 0.0, guess_rps
    for _ in range(probes):
        if good(rate):
            low = rate
        else:
            high = rate
        if low and high:
            if high <= low * (1 + precision):
                break
            rate = (low * high) ** 0.5
        else:
            rate = low * step if low else high / step
    return low
