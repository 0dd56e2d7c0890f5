"""Evidence against a number of backends: applications that fare badly, and what was too few.

One application may be starved among others whose requests are many: the bad rate of all hides it.
Its own counts of one window are small, so that they are summed over some windows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 0.75
"""Share of the counts that is left after a window."""
DOUBT_MIN = 1.0
"""Standard deviations above the limit that are chance, with few applications."""
SPARE_MAX = 3.0
"""Backends beside the load that bad requests may teach to keep, whatever the idleness."""
LESS_LOAD = 0.8
"""Share of the requests for which a number was too few: with less it says nothing any more."""


def faded(kept: float, older: Sequence[float], newer: Sequence[float]) -> tuple[float, ...]:
    """Sums over windows of which `kept` is left after each."""
    return tuple(kept * a + b for a, b in zip(older, newer, strict=True))


@dataclass(frozen=True, slots=True)
class Ended:
    """Requests that ended, by application, and the bad among them; old ones count less."""

    requests: tuple[float, ...] = ()
    bad: tuple[float, ...] = ()

    def and_then(self, newer: "Ended") -> "Ended":
        if len(self.requests) != len(newer.requests):
            return newer
        return Ended(
            faded(KEPT, self.requests, newer.requests),
            faded(KEPT, self.bad, newer.bad),
        )

    def is_bad(self, bad_rate_max: float) -> bool:
        """Whether some application has more bad requests than the limit and chance explain."""
        # Among many applications some are unlucky at any time.
        doubt = max(DOUBT_MIN, math.sqrt(2.0 * math.log(max(1, len(self.requests)))))
        for requests, bad in zip(self.requests, self.bad, strict=True):
            limit = bad_rate_max * requests
            if bad > limit + doubt * math.sqrt(limit):
                return True
        return False


@dataclass(frozen=True, slots=True)
class TooFew:
    """A number of backends that has proved too few for one pool; 0: none has."""

    count: int = 0
    requests: int = 0
    """Requests of that window."""

    def after(
        self, bad: bool, count: int, demand: float, requests: int, spare: float = SPARE_MAX
    ) -> "TooFew":
        """The lesson of one more window with so many backends, and so much to do for them."""
        if bad and count >= self.count and count < demand + spare:
            return TooFew(count, requests)
        return self if requests >= LESS_LOAD * self.requests else TooFew()


def at(lessons: Sequence[TooFew], pool: int) -> TooFew:
    return lessons[pool] if pool < len(lessons) else TooFew()
