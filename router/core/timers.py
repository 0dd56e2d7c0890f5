"""One timer heap for everything in the engine; stale entries never wake the driver."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from fermata.foundation.units import NEVER

COMPACT_FROM = 1024
"""Heaps smaller than this are not worth tidying."""


class Timer:
    """Something that wants to be called at a time; arming it again replaces the earlier time."""

    __slots__ = ("stamp",)

    def __init__(self) -> None:
        self.stamp = 0

    def fire(self, now_ns: int) -> None:
        raise NotImplementedError


class Timers:
    """The armed timers. A timer's stamp names its one valid entry, so re-arming is a push."""

    __slots__ = ("compact_at", "fired_at_ns", "heap", "stamp")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Timer]] = []
        self.stamp = 0
        self.fired_at_ns = 0
        self.compact_at = COMPACT_FROM
        """With so many entries the stale ones are taken out."""

    def arm(self, timer: Timer, at_ns: int) -> None:
        self.stamp += 1
        timer.stamp = self.stamp
        heappush(self.heap, (at_ns, self.stamp, timer))
        if len(self.heap) > self.compact_at:
            self._compact()

    def _compact(self) -> None:
        # In place: `fire_due` may be at work on this very list.
        self.heap[:] = [entry for entry in self.heap if entry[2].stamp == entry[1]]
        heapify(self.heap)
        self.compact_at = max(COMPACT_FROM, 2 * len(self.heap))

    def disarm(self, timer: Timer) -> None:
        timer.stamp = 0

    def disarm_all(self, belongs: Callable[[Timer], bool]) -> None:
        """Disarm those of somebody who goes."""
        for _, _, timer in self.heap:
            if belongs(timer):
                timer.stamp = 0

    def next_ns(self) -> int:
        """When the earliest valid timer is due; `NEVER` when none is armed."""
        heap = self.heap
        while heap:
            top = heap[0]
            if top[2].stamp == top[1]:
                return top[0]
            heappop(heap)
        return NEVER

    def fire_due(self, now_ns: int) -> None:
        """Fire every timer due by now, those armed by the firing included."""
        assert now_ns >= self.fired_at_ns, "time runs backwards"
        self.fired_at_ns = now_ns
        heap = self.heap
        while heap:
            top = heap[0]
            timer = top[2]
            if timer.stamp != top[1]:
                heappop(heap)
            elif top[0] <= now_ns:
                heappop(heap)
                timer.stamp = 0
                timer.fire(now_ns)
            else:
                return
