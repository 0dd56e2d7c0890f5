"""Detects that a frontend stood still, so that requests lay unread in its sockets.

A frontend that was stopped for two seconds, or its machine, finds two seconds of requests and
would take them for new. Most of their clients have given up; serving them would delay others.
"""

import asyncio
from dataclasses import dataclass

from fermata.deployments.frontend.outcomes import RETRY_AFTER_NS, Refusal
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.foundation.units import NEVER, ms
from fermata.router.links.heartbeat import Clock


@dataclass(frozen=True, slots=True)
class StallOptions:
    """Times of a stall detector."""

    tick_ns: int = ms(100)
    stall_ns: int = ms(300)
    """The shortest delay that counts as a stall; links use the same."""
    drain_share: int = 4
    """Unread requests are read within this fraction of the stall, and `drain_ns_max`."""
    drain_ns_max: int = ms(100)


class StallDetector:
    """Ticks on the loop, and notices late ticks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        options: StallOptions | None = None,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.options = options or StallOptions()
        self.away_ns = 0
        """Length of the last stall."""
        self.drained_at_ns = 0
        self.due_at_ns = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start ticking; while a process starts, it has no clients that wait."""
        self._arm()

    def _arm(self) -> None:
        tick_ns = self.options.tick_ns
        self.due_at_ns = self.clock() + tick_ns
        self._timer = self.loop.call_later(tick_ns / 1e9, self._on_tick)

    def _on_tick(self) -> None:
        now_ns = self.clock()
        away_ns = now_ns - self.due_at_ns
        options = self.options
        if away_ns > options.stall_ns:
            self.away_ns = away_ns
            drain_ns = min(away_ns // options.drain_share, options.drain_ns_max)
            self.drained_at_ns = now_ns + drain_ns
        self._arm()

    def unread_ns(self, now_ns: int) -> int:
        """The longest time that a request read now may have lain unread; 0 except after a stall."""
        away_ns = now_ns - self.due_at_ns
        if away_ns > self.options.stall_ns:
            return away_ns
        return self.away_ns if now_ns < self.drained_at_ns else 0

    def refusal(self, now_ns: int, terms: RequestTerms) -> Refusal | None:
        """A refusal for a request that may have lain unread for all the time that it has."""
        unread_ns = self.unread_ns(now_ns)
        if not unread_ns or unread_ns < min(terms.hard_limit_ns, terms.left_ns):
            return None
        message = f"stalled: the frontend did not run for {unread_ns / 1e6:.0f} ms"
        return Refusal("UNAVAILABLE", RefusalReason.STALLED, message, RETRY_AFTER_NS)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
