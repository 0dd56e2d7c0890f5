"""The price of backend time, from how far behind the queue is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from fermata.router.policies.central.accuracy_hull import Point, price


@dataclass(frozen=True, slots=True)
class PriceRules:
    """The shape of the curve."""

    log_step: float = 2.0
    """Beyond the hull's ends the price falls and rises by this much, as a logarithm, where there is
    no further edge to take the price of."""
    log_span: float = 3.0
    edge_tilt: float = 0.5
    """Rise of the price, as a logarithm, on the cheapest edge: from a calm wait to a strained
    one."""
    lull: float = 4.0
    """The wait falls by so many times the calm one from one edge's price to the next dearer's."""
    distance: float = 0.5
    """Power of the ratio of two edges' prices by which the queue keeps away from the steeper
    one."""
    own_safe: float = 0.5
    """Whatever runs, requests that wait this share of the cheapest batch's room count as a
    calm wait."""
    own_danger: float = 0.9
    """The same for a strained one."""


class PriceCurve:
    """The price of backend time, in accuracy for each nanosecond, by the wait of the queue.

    At the price of an edge of the hull its two ends are equally good, so a queue that hovers around
    the edge's wait mixes them, and the mixture settles where it uses just the time there is. The
    further behind the queue, the steeper the edge whose price is asked, and the cheaper the
    variant.
    """

    rules: ClassVar[PriceRules] = PriceRules()

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
        self.lull_ns = self.rules.lull * usual_ns
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
        return math.exp(-self.rules.distance * steeper * (1.0 - min(1.0, max(0.0, along))))

    def at(self, wait_ns: float, queued_ns: float) -> float:
        """The price if the queue is that far behind, counting what is under way, of which it has
        itself waited `queued_ns`."""
        safe, danger, span = self.rules.own_safe, self.rules.own_danger, self.rules.log_span
        own = (queued_ns / self.room_ns - safe) / (danger - safe)
        behind_ns = max(wait_ns, self.calm_ns + own * (self.strained_ns - self.calm_ns))
        if not self.logs:
            return self.only
        log = self._log(behind_ns)
        return math.exp(min(self.logs[0] + span, max(self.logs[-1] - span, log)))

    def _log(self, wait_ns: float) -> float:
        logs, edge = self.logs, self.edge
        if wait_ns >= self.strained_ns:
            return logs[0] + self.rules.log_span * (wait_ns / self.strained_ns - 1.0) / 0.3
        if wait_ns >= self.calm_ns:
            strain = (wait_ns - self.calm_ns) / (self.strained_ns - self.calm_ns)
            if edge == 0:
                return logs[0] + self.rules.edge_tilt * strain
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
        beyond = max(0, edge - last)
        return self.logs[edge - beyond] - self.rules.log_step * beyond
