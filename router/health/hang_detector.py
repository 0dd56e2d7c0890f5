"""Backends that do not end their batches: a kernel that hangs, a driver that waits for ever.

Pure. Their processes live and their heartbeats go on, so that only the plan tells that they hang.
"""

from fermata.foundation.units import NEVER, ms

GRACE_NS = ms(300)
"""Beyond any delay that a batch may have for the sake of its inputs; as long as a peer may be
silent."""
PLANS = 2
"""Planned run times on top of that."""
SWAP_NS = ms(60_000)
"""For a batch that brings its model in: how long that takes is known only afterwards."""
LOOKS = 4
"""Within the grace."""


class HangDetector:
    """When the running batch of each backend should have ended at the latest."""

    def __init__(self, grace_ns: int = GRACE_NS) -> None:
        self.grace_ns = grace_ns
        self.limits: dict[int, int] = {}
        """By backend that runs something."""
        self.look_at_ns = NEVER

    def begin(
        self, now_ns: int, backend: int, start_at_ns: int, plan_ns: int, swaps: bool = False
    ) -> None:
        """A batch is the next to run there."""
        allowed_ns = self.grace_ns + PLANS * plan_ns + (SWAP_NS if swaps else 0)
        self.limits[backend] = max(now_ns, start_at_ns) + allowed_ns
        if self.look_at_ns == NEVER:
            self.look_at_ns = now_ns + self.grace_ns // LOOKS

    def end(self, backend: int) -> None:
        """It has ended, or the backend is gone."""
        self.limits.pop(backend, None)

    def overdue(self, now_ns: int) -> list[int]:
        """Backends that hang; to be asked at `look_at_ns`.

        Who asks late was itself not listening: the ends of batches may lie in the socket, so that
        everyone gets some more time.
        """
        if now_ns < self.look_at_ns:
            return []
        if now_ns - self.look_at_ns > self.grace_ns // LOOKS:
            least_ns = now_ns + self.grace_ns // 2
            for backend, limit_ns in self.limits.items():
                self.limits[backend] = max(limit_ns, least_ns)
        self.look_at_ns = now_ns + self.grace_ns // LOOKS if self.limits else NEVER
        return [backend for backend, limit_ns in self.limits.items() if limit_ns <= now_ns]
