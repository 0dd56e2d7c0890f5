"""Pieces of work that were begun together: what follows them is told together, too."""

import asyncio
from collections.abc import Callable
from typing import Final

from fermata.foundation.units import ms

AWAITED_NS_MAX: Final = ms(2)
"""The longest time for which those that have ended wait for others."""


class BegunTogether:
    """Work on results of one batch. The router makes a batch of what comes to it at once: one that
    comes alone would be run alone, or wait for the end of that batch.

    Those that have ended wait for the others as long as the first one took, and never for long.
    """

    __slots__ = ("began_at_ns", "clock", "ended", "left", "loop", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> None:
        self.loop = loop
        self.clock = clock
        self.began_at_ns = clock()
        self.left = 0
        self.ended: list[Callable[[], None]] = []
        """Calls that follow jobs that have ended, until they are made."""
        self.timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """One more has begun."""
        self.left += 1

    def end(self, then: Callable[[], None]) -> None:
        """One has ended, and this follows it."""
        self.left -= 1
        self.ended.append(then)
        if not self.left:
            self.tell()
        elif self.timer is None:
            wait_ns = min(AWAITED_NS_MAX, self.clock() - self.began_at_ns)
            self.timer = self.loop.call_later(wait_ns / 1e9, self.tell)

    def tell(self) -> None:
        """Have all that have ended be followed by what is to come."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        ended, self.ended = self.ended, []
        for then in ended:
            # By the loop: an error of one is none of the others'.
            self.loop.call_soon(then)
