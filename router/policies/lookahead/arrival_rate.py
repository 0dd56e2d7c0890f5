"""The rate at which requests arrive now, from as many of the last ones as still speak for it."""

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ArrivalRules:
    """Windows of a rate, and when two rates differ."""

    block: int = 16
    """Arrivals that are counted together."""
    doublings: int = 10
    """The longest window has this many doublings of a block."""
    differs: float = 3.5
    """Rates this many standard deviations apart are two rates."""
    memory: float = 0.03
    """Weight of the newest block in the dispersion."""
    dispersion: tuple[float, float] = (0.05, 1000.0)
    """The lowest and the highest that is believed."""
    sure: float = 0.2
    """Windows are compared as if arrivals were at least so dispersed."""


class ArrivalRate:
    """Keeps when each block of arrivals ended.

    The rate is that of the longest window that no shorter one contradicts. So it follows a step
    within some dozens of arrivals, and averages over thousands where nothing changes.
    """

    __slots__ = (
        "blocks",
        "count",
        "dispersion",
        "ends_ns",
        "gap_ns",
        "least_ns",
        "mean_ns",
        "square_ns2",
    )
    rules: ClassVar[ArrivalRules] = ArrivalRules()

    def __init__(self) -> None:
        self.least_ns = 0
        """Windows are at least so long. Shorter bursts are the queue's to absorb."""
        self.gap_ns = 0.0
        """Mean time between arrivals; 0 while unknown."""
        self.dispersion = 1.0
        """Variance of a count over its mean: 1 for Poisson arrivals, more for bursts."""
        self.count = 0
        """Arrivals in the current block."""
        self.blocks = 0
        self.ends_ns: list[int] = []
        self.mean_ns = 0.0
        """Mean length of a block."""
        self.square_ns2 = 0.0
        """Half the mean squared difference of neighbouring blocks: their variance, whatever the
        trend."""

    def on_arrival(self, now_ns: int) -> bool:
        """Count one; true where the rate has been looked at anew."""
        if not self.ends_ns:
            self.ends_ns.append(now_ns)
            return False
        self.count += 1
        if self.count == self.rules.block:
            self.count = 0
            self._close(now_ns)
            return True
        if len(self.ends_ns) > 1:
            return False
        # So few have come that each counts; twice as many are worth another look.
        self.gap_ns = max(1, now_ns - self.ends_ns[0]) / self.count
        return self.count & (self.count - 1) == 0

    def fall_silent(self) -> None:
        """Forget it all: nothing has come for so long that it tells of the past alone."""
        self.gap_ns = 0.0
        self.count = self.blocks = 0
        self.ends_ns.clear()

    def _close(self, now_ns: int) -> None:
        rules, ends_ns = self.rules, self.ends_ns
        ends_ns.append(now_ns)
        longest = 1 << rules.doublings
        if len(ends_ns) > 3 * longest:
            del ends_ns[: len(ends_ns) - longest - 1]
        if len(ends_ns) >= 3:
            self._disperse(ends_ns[-1] - ends_ns[-2], ends_ns[-2] - ends_ns[-3])
        self.gap_ns = self._length_ns() / rules.block

    def _disperse(self, block_ns: int, before_ns: int) -> None:
        rules = self.rules
        self.blocks += 1
        weight = max(rules.memory, 1.0 / (self.blocks + 1))
        self.mean_ns += weight * (block_ns - self.mean_ns)
        self.square_ns2 += weight * ((block_ns - before_ns) ** 2 / 2.0 - self.square_ns2)
        low, high = rules.dispersion
        found = rules.block * self.square_ns2 / max(1.0, self.mean_ns**2)
        self.dispersion = min(high, max(low, found))

    def _length_ns(self) -> float:
        """Mean length of a block over the longest window that agrees with all shorter ones."""
        rules, ends_ns = self.rules, self.ends_ns
        low_ns, high_ns = 0.0, math.inf
        mean_ns = 0.0
        blocks = 1
        most = min(len(ends_ns) - 1, 1 << rules.doublings)
        while blocks <= most:
            length_ns = ends_ns[-1] - ends_ns[-1 - blocks]
            if length_ns >= self.least_ns or 2 * blocks > most:
                found_ns = max(1, length_ns) / blocks
                if mean_ns > 0.0 and not low_ns <= found_ns <= high_ns:
                    break
                mean_ns = found_ns
                noise = max(rules.sure, self.dispersion) / (blocks * rules.block)
                band = 1.0 + rules.differs * math.sqrt(noise)
                low_ns, high_ns = max(low_ns, found_ns / band), min(high_ns, found_ns * band)
            blocks *= 2
        return mean_ns
