"""The loads that a policy was trained for, and whether arrivals are still of one of them."""

from collections import deque
from collections.abc import Sequence
from math import sqrt

from fermata.foundation.units import SECOND

SIGMAS = 2.5
"""Deviations of a Poisson count within which arrivals are those of a load."""
TOLERANCE = 0.1
"""Or this share of the load, where that is more."""
WINDOW_NS = SECOND
"""Arrivals are counted over so long, or over one slot: fewer say too little."""


class LoadRange:
    """Counts the arrivals of the last slots.

    A workload that changes its state passes through loads that it never stays at. So a load is
    foreign once arrivals have been unlike all known ones for more than one window.
    """

    __slots__ = ("counts", "expected", "outside")

    def __init__(self, rates_rps: Sequence[float], slot_ns: int) -> None:
        slots = max(1, -(-WINDOW_NS // slot_ns))
        self.expected = [rate_rps * slots * slot_ns / SECOND for rate_rps in rates_rps]
        """Arrivals in a window, by load."""
        self.counts: deque[int] = deque(maxlen=slots)
        """The latest slots'."""
        self.outside = 0
        """Slots in a row whose window was unlike every load."""

    @property
    def foreign(self) -> bool:
        return self.outside > len(self.counts)

    def note(self, arrivals: int, slots: int = 1) -> None:
        """So many slots have ended, with so many arrivals each."""
        for _ in range(min(slots, 2 * (self.counts.maxlen or 1) + 1)):
            self.counts.append(arrivals)
            full = len(self.counts) == self.counts.maxlen
            self.outside = self.outside + 1 if full and not self._known() else 0

    def _known(self) -> bool:
        seen = sum(self.counts)
        return not self.expected or any(
            abs(seen - expected) <= max(SIGMAS * sqrt(expected), TOLERANCE * expected)
            for expected in self.expected
        )
