"""One timer heap for everything in the engine; stale entries never wake the driver."""

from heapq import heappop, heappush

from router.core.units import NEVER


class Timer:
    """Something that wants to be called at a time; arming it again replaces the earlier time."""

    __slots__ = ("stamp",)

    def __init__(self) -> None:
        self.stamp = 0

    def fire(self, now_ns: int) -> None:
        raise NotImplementedError


class Timers:
    """The armed timers. A timer's stamp names its one valid entry, so re-arming is a push."""

    __slots__ = ("heap", "stamp")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Timer]] = []
        self.stamp = 0

    def arm(self, timer: Timer, at_ns: int) -> None:
        self.stamp += 1
        timer.stamp = self.stamp
        heappush(self.heap, (at_ns, self.stamp, timer))

    def disarm(self, timer: Timer) -> None:
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
