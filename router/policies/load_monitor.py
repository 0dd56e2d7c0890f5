"""The load of the last moments, as RAMSIS and its baselines watch it."""

from collections import deque

from fermata.foundation.units import SECOND


class LoadMonitor:
    """Arrivals per second over a moving window (RAMSIS section 6: 500 ms)."""

    __slots__ = ("began_at_ns", "count", "slice_ns", "slices", "window_ns")

    def __init__(self, window_ns: int, steps: int = 50) -> None:
        """Arrivals are forgotten in steps, so many to a window."""
        self.window_ns = window_ns
        self.slice_ns = max(1, window_ns // steps)
        self.slices: deque[tuple[int, int]] = deque()
        """(number of the slice, arrivals in it), oldest first."""
        self.count = 0
        self.began_at_ns = -1

    def on_arrival(self, now_ns: int) -> bool:
        """Count one arrival; true when a new slice has begun, so the load is worth a look."""
        number = now_ns // self.slice_ns
        self.count += 1
        if self.slices and self.slices[-1][0] == number:
            self.slices[-1] = (number, self.slices[-1][1] + 1)
            return False
        if self.began_at_ns < 0:
            self.began_at_ns = now_ns
        self.slices.append((number, 1))
        self._forget(now_ns)
        return True

    def rps(self, now_ns: int) -> float:
        """Over the window, or since the first arrival where that is less."""
        self._forget(now_ns)
        seen_ns = min(self.window_ns, now_ns - self.began_at_ns) if self.count else 0
        return self.count * SECOND / max(seen_ns, self.slice_ns)

    def _forget(self, now_ns: int) -> None:
        oldest = (now_ns - self.window_ns) // self.slice_ns
        while self.slices and self.slices[0][0] <= oldest:
            self.count -= self.slices.popleft()[1]
