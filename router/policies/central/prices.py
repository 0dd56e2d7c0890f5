"""The price of backend time, from how far behind the queue is."""

import math
from collections.abc import Sequence
from itertools import pairwise

from fermata.router.policies.central.hull import Point, price

LOG_STEP = 2.0
"""Beyond the hull's ends the price falls and rises by this much, as a logarithm, where there is no
further edge to take the price of."""
LOG_SPAN = 3.0
EDGE_TILT = 0.5
"""Rise of the price, as a logarithm, on the cheapest edge from a calm wait to a strained one."""
LULL = 4.0
"""The wait falls by so many times the calm one from one edge's price to the next dearer's."""
DISTANCE = 0.5
"""Power of the ratio of two edges' prices by which the queue keeps away from the steeper one."""
OWN_SAFE, OWN_DANGER = 0.5, 0.9
"""Whatever runs, requests that wait this share of the cheapest batch's room count as a
calm wait, and as a strained one."""


class PriceCurve:
    """The price of backend time, in accuracy for each nanosecond, by the wait of the queue.

    At the price of an edge of the hull its two ends are equally good, so a queue that hovers around
    the edge's wait mixes them, and the mixture settles where it uses just the time there is. The
    further behind the queue, the steeper the edge whose price is asked, and the cheaper the
    variant.
    """

    def __init__(
        self,
        hull: Sequence[Point],
        each_ns: float,
        rooms_ns: Sequence[int],
        calm: float,
        strained: float,
    ) -> None:
        """`each_ns` is the backend time there is for each request, `rooms_ns` what the SLO leaves
        beside efficient batches of each of the hull's points."""
        self.logs = [math.log(price(*edge)) for edge in pairwise(hull)]
        self.only = 1.0 / hull[0].each_ns
        """Where there is nothing to choose but the batch's size, any price will do."""
        self.edge = 0
        """The one on which the load lies."""
        while self.edge + 2 < len(hull) and hull[self.edge + 1].each_ns <= each_ns:
            self.edge += 1
        ends = rooms_ns[self.edge : self.edge + 2]
        usual_ns = calm * max(1, min(ends))
        self.lull_ns = LULL * usual_ns
        self.calm_ns = usual_ns * self._closeness(hull, each_ns)
        self.strained_ns = max(1.25 * self.calm_ns, strained * rooms_ns[0])
        self.room_ns = max(1, rooms_ns[0])

    def _closeness(self, hull: Sequence[Point], each_ns: float) -> float:
        """The part of the usual wait that a load at the cheap end of its edge should stay at.

        Such a load hardly ever leaves time for the dear end, but a small excursion takes it to the
        next steeper edge, where the same time costs many times the accuracy. So it keeps its
        queue shorter, the more so the steeper that edge is; at the dear end nothing changes.
        """
        if self.edge == 0:
            return 1.0
        cheap, dear = hull[self.edge], hull[self.edge + 1]
        along = (each_ns - cheap.each_ns) / (dear.each_ns - cheap.each_ns)
        steeper = self.logs[self.edge - 1] - self.logs[self.edge]
        return math.exp(-DISTANCE * steeper * (1.0 - min(1.0, max(0.0, along))))

    def at(self, wait_ns: float, queued_ns: float) -> float:
        """The price if the queue is that far behind, counting what is under way, of which it has
        itself waited `queued_ns`."""
        own = (queued_ns / self.room_ns - OWN_SAFE) / (OWN_DANGER - OWN_SAFE)
        behind_ns = max(wait_ns, self.calm_ns + own * (self.strained_ns - self.calm_ns))
        if not self.logs:
            return self.only
        log = self._log(behind_ns)
        return math.exp(min(self.logs[0] + LOG_SPAN, max(self.logs[-1] - LOG_SPAN, log)))

    def _log(self, wait_ns: float) -> float:
        logs, edge = self.logs, self.edge
        if wait_ns >= self.strained_ns:
            return logs[0] + LOG_SPAN * (wait_ns / self.strained_ns - 1.0) / 0.3
        if wait_ns >= self.calm_ns:
            strain = (wait_ns - self.calm_ns) / (self.strained_ns - self.calm_ns)
            if edge == 0:
                return logs[0] + EDGE_TILT * strain
            steps = edge * strain
            down = min(edge - 1, int(steps))
            cheap, dear = logs[edge - down - 1], logs[edge - down]
            return dear + (steps - down) * (cheap - dear)
        steps = (self.calm_ns - wait_ns) / self.lull_ns
        up = int(steps)
        near, far = self._dear(edge + up), self._dear(edge + up + 1)
        return near + (steps - up) * (far - near)

    def _dear(self, edge: int) -> float:
        last = len(self.logs) - 1
        return self.logs[edge] if edge <= last else self.logs[last] - LOG_STEP * (edge - last)
