"""How long requests may have lain unread because their process did not run.

A frontend that was stopped for two seconds, or its machine, finds two seconds of requests in its
sockets and would take them for new. Nobody waits for most of them any more; served, they would
cost clients of other frontends their place.
"""

import asyncio

from fermata.foundation.units import NEVER, ms
from fermata.router.links.heartbeat import Clock

TICK_NS = ms(100)
STALL_NS = ms(300)
"""From here on it is no hiccup; links go by the same."""
DRAIN_SHARE = 4
DRAIN_NS_MAX = ms(100)
"""What it finds is read within a quarter of the time that it was away, or this."""


class StallDetector:
    """Ticks on the loop, and notices when that comes late."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.loop = loop
        self.clock = clock
        self.away_ns = 0
        """How long it was away the last time."""
        self.drained_at_ns = 0
        self.due_at_ns = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on; a process that is still starting keeps nobody waiting."""
        self._arm()

    def _arm(self) -> None:
        self.due_at_ns = self.clock() + TICK_NS
        self._timer = self.loop.call_later(TICK_NS / 1e9, self._on_tick)

    def _on_tick(self) -> None:
        now_ns = self.clock()
        away_ns = now_ns - self.due_at_ns
        if away_ns > STALL_NS:
            self.away_ns = away_ns
            self.drained_at_ns = now_ns + min(away_ns // DRAIN_SHARE, DRAIN_NS_MAX)
        self._arm()

    def unread_ns(self, now_ns: int) -> int:
        """How long a request that is read now may have lain there; 0 but after a stall."""
        away_ns = now_ns - self.due_at_ns
        if away_ns > STALL_NS:
            return away_ns
        return self.away_ns if now_ns < self.drained_at_ns else 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
