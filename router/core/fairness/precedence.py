"""Order of applications where not everyone can be served, whichever policies serve them.

Bids of one policy compare by their latest starts. Those of two do not: one names the start of a
whole batch, the other that of its first request, and the loser loses nearly everything. So an
application that loses is brought forward by the share of its requests that it has lately lost,
over the backend time that each of them takes (proportional fairness, Kelly 1998). Those of one
cost then lose alike, and of two that lose alike the cheaper one goes first.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from fermata.router.core.deadline_queue import DeadlineQueue


@dataclass(frozen=True, slots=True)
class PrecedenceRules:
    """How far an application that loses is brought forward."""

    losing: float = 0.05
    """Share lost from which the cheapest application is; others the later the more they cost."""
    strength: float = 2.0
    """Times the shortest SLO for each factor of e that it loses more."""


RULES: Final = PrecedenceRules()


class Precedence:
    """The applications of one pool, by their queues.

    Where all bids are of one sort, their latest starts alone decide.
    """

    __slots__ = ("least_ns", "members", "mixed", "needs", "rules", "shortest_ns")

    def __init__(self, rules: PrecedenceRules = RULES) -> None:
        self.rules = rules
        self.members: dict[DeadlineQueue, bool] = {}
        """Applications, and whether their bids name the latest start of one request."""
        self.mixed = False
        """Some do, and some name that of a whole batch."""
        self.needs: dict[DeadlineQueue, tuple[int, float]] = {}
        """SLO, and backend time of a request in the largest batch that the SLO allows."""
        self.least_ns = 0.0
        """Backend time of the cheapest request."""
        self.shortest_ns = 0

    def join(self, queue: DeadlineQueue, of_request: bool) -> None:
        """An application bids from now on; `of_request`: with the latest start of one request."""
        self.members[queue] = of_request
        self._sort()

    def _sort(self) -> None:
        self.mixed = len(set(self.members.values())) > 1

    def tell(self, queue: DeadlineQueue, slo_ns: int, plan_ns: Sequence[int]) -> None:
        """Say what requests need, from the run times by batch size, for all to compare."""
        slo_ns = max(1, slo_ns)
        size = max(1, bisect_right(plan_ns, slo_ns) - 1)
        each_ns = plan_ns[size] / size
        before_ns = self.needs.get(queue)
        if before_ns == (slo_ns, each_ns):
            return
        self.needs[queue] = (slo_ns, each_ns)
        if len(self.needs) == 1 or (before_ns is not None and self._is_least(*before_ns)):
            self._compare()
        else:
            self.least_ns = min(self.least_ns, each_ns)
            self.shortest_ns = min(self.shortest_ns, slo_ns)

    def leave(self, queue: DeadlineQueue) -> None:
        """The application bids no more."""
        self.members.pop(queue, None)
        self._sort()
        needs_ns = self.needs.pop(queue, None)
        if needs_ns is not None and self._is_least(*needs_ns):
            self._compare()

    def _is_least(self, slo_ns: int, each_ns: float) -> bool:
        return slo_ns == self.shortest_ns or each_ns == self.least_ns

    def _compare(self) -> None:
        self.shortest_ns = min([slo_ns for slo_ns, _ in self.needs.values()], default=0)
        self.least_ns = min([each_ns for _, each_ns in self.needs.values()], default=0.0)

    def ahead_ns(self, queue: DeadlineQueue) -> int:
        """How much earlier its bid counts than its latest start says."""
        needs_ns = self.needs.get(queue) if self.mixed else None
        if needs_ns is None:
            return 0
        lost = queue.lost / self.rules.losing * self.least_ns / needs_ns[1]
        if lost <= 1.0:
            return 0
        return int(self.rules.strength * self.shortest_ns * log(lost))
