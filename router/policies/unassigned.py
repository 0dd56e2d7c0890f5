"""Requests that no backend could take yet."""

from heapq import heappop, heappush

from fermata.router.core.events import DropReason, Request
from fermata.router.core.source import Source, SourceTimer


class Unassigned:
    """Requests that came while no backend was up; dropped once they are hopeless."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.timer = SourceTimer(source)
        self.heap: list[tuple[int, int, Request]] = []
        self.arrivals = 0

    def add(self, request: Request, plan_ns: int) -> None:
        """Keep a request that needs that long to run."""
        self.arrivals += 1
        until_ns = request.expires_at_ns - plan_ns
        heappush(self.heap, (until_ns, self.arrivals, request))
        if self.heap[0][2] is request:
            self.source.timers.arm(self.timer, until_ns + 1)

    def drop_hopeless(self, now_ns: int) -> list[Request]:
        """Drop those that have waited for too long; returns them."""
        heap = self.heap
        dropped: list[Request] = []
        while heap and heap[0][0] < now_ns:
            request = heappop(heap)[2]
            if self._waits(request):
                self.source.outbox.drop(request, DropReason.LATE)
                dropped.append(request)
        if heap:
            self.source.timers.arm(self.timer, heap[0][0] + 1)
        return dropped

    def take_all(self) -> list[Request]:
        """Everyone who still waits, in order of arrival."""
        self.source.timers.disarm(self.timer)
        taken = [entry[2] for entry in sorted(self.heap, key=lambda entry: entry[1])]
        self.heap.clear()
        return [request for request in taken if self._waits(request)]

    def _waits(self, request: Request) -> bool:
        # Cancelled requests stay in the heap until their time; the outbox knows who is queued.
        return self.source.outbox.queued.get(request.rid) is request
