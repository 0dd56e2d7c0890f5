"""Detects backends that do not end their batches: a hung kernel, a driver that waits for ever.

Pure. Their processes live and their heartbeats go on, so that only the plan tells that they hang.
"""

from dataclasses import dataclass

from fermata.foundation.units import NEVER, ms


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Times after which a batch hangs."""

    grace_ns: int = ms(300)
    """Beyond any delay that a batch may have for its inputs; as long as a peer may be silent."""
    plans: int = 2
    """Planned run times on top of that."""
    swap_ns: int = ms(60_000)
    """For a batch that brings its model in: how long that takes is known only afterwards."""
    checks: int = 4
    """Checks within the grace."""

    @property
    def every_ns(self) -> int:
        return self.grace_ns // self.checks


class HangDetector:
    """The latest end of the running batch of each backend."""

    def __init__(self, limits: HangLimits | None = None) -> None:
        self.limits = limits or HangLimits()
        self.ends_at_ns: dict[int, int] = {}
        """By backend that runs a batch."""
        self.check_at_ns = NEVER

    def begin(
        self, now_ns: int, backend: int, start_at_ns: int, plan_ns: int, swaps: bool = False
    ) -> None:
        """Expect the end of the batch that runs there next."""
        limits = self.limits
        allowed_ns = limits.grace_ns + limits.plans * plan_ns + (limits.swap_ns if swaps else 0)
        self.ends_at_ns[backend] = max(now_ns, start_at_ns) + allowed_ns
        if self.check_at_ns == NEVER:
            self.check_at_ns = now_ns + limits.every_ns

    def end(self, backend: int) -> None:
        """Expect nothing: the batch has ended, or the backend is gone."""
        self.ends_at_ns.pop(backend, None)

    def overdue(self, now_ns: int) -> list[int]:
        """Backends that hang; to be asked at `check_at_ns`.

        A router that asks late was itself not running: ends of batches may lie in its sockets, so
        that every backend gets some more time.
        """
        if now_ns < self.check_at_ns:
            return []
        limits, ends_at_ns = self.limits, self.ends_at_ns
        if now_ns - self.check_at_ns > limits.every_ns:
            least_ns = now_ns + limits.grace_ns // 2
            for backend, end_at_ns in ends_at_ns.items():
                ends_at_ns[backend] = max(end_at_ns, least_ns)
        self.check_at_ns = now_ns + limits.every_ns if ends_at_ns else NEVER
        return [backend for backend, end_at_ns in ends_at_ns.items() if end_at_ns <= now_ns]
