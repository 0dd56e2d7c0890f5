"""Instances: backends that run one variant each, with a bounded buffer of their own."""

from bisect import bisect_right
from collections.abc import Sequence

from fermata.router.core.events import Request
from fermata.router.core.source import Bid, own_lane
from fermata.router.core.timers import Timer
from fermata.router.policies.routing.mix import allot


def _deadline(request: Request) -> int:
    return request.deadline_ns


class Instance:
    """One backend as routing sees it, with a buffer in order of deadline."""

    __slots__ = (
        "backend",
        "bid",
        "due_at_ns",
        "ends_at_ns",
        "kind",
        "lane",
        "place",
        "queue",
        "sent",
        "started_at_ns",
        "tier",
        "watch",
    )

    def __init__(self, backend: int) -> None:
        self.backend = backend
        self.lane = own_lane(backend)
        self.kind = 0
        """Kind of backend; known from its first slot on."""
        self.tier = 0
        """Which of the family's variants it runs."""
        self.place = 0
        """Its place among the instances that are up, in order of tier and backend."""
        self.queue: list[Request] = []
        self.sent: list[Request] = []
        """Requests that its backend has, running or ahead."""
        self.started_at_ns = 0
        """When the running ones started."""
        self.due_at_ns = 0
        """Expected end of the running ones."""
        self.ends_at_ns = 0
        """Expected end of all of them."""
        self.bid = Bid()
        self.watch: Timer | None = None
        """Fires when those who wait should look elsewhere."""

    def __len__(self) -> int:
        """Requests in its buffer, the running ones included."""
        return len(self.queue) + len(self.sent)

    def free_at_ns(self, now_ns: int, doubt_ns: float) -> float:
        """When it has ended all that was sent. One that is overdue has stalled for nobody knows how
        long: as long again as it is late by now, and no less than the doubt."""
        late_ns = now_ns - self.due_at_ns
        if not self.sent or late_ns <= 0:
            return self.ends_at_ns
        return self.ends_at_ns + late_ns + max(late_ns, doubt_ns)

    def place_of(self, request: Request) -> int:
        """How many of its queue would go before this request."""
        queue = self.queue
        if not queue or queue[-1].deadline_ns <= request.deadline_ns:
            return len(queue)
        return bisect_right(queue, request.deadline_ns, key=_deadline)

    def join(self, request: Request) -> bool:
        """Queue a request; true if it is the first now."""
        place = self.place_of(request)
        self.queue.insert(place, request)
        return place == 0

    def on_sent(self, requests: list[Request], start_at_ns: int, expect_ns: float) -> None:
        self.ends_at_ns = int(start_at_ns + expect_ns)
        if not self.sent:
            self.started_at_ns, self.due_at_ns = start_at_ns, self.ends_at_ns
        self.sent.extend(requests)

    def on_done(self, now_ns: int, count: int, expect_ns: float) -> None:
        """`expect_ns`: how long one more batch takes, should one be there already."""
        del self.sent[:count]
        self.started_at_ns = now_ns
        self.due_at_ns = self.ends_at_ns = int(now_ns + expect_ns) if self.sent else now_ns


class Instances:
    """The instances of one application; each runs the variant that the mix is short of."""

    def __init__(self, weights: Sequence[int], speed: Sequence[int]) -> None:
        self.weights = weights
        self.speed = speed
        """Run time of one request, by tier."""
        self.mixed = [tier for tier, weight in enumerate(weights) if weight]
        """Tiers that have instances, with enough backends."""
        self.by_backend: dict[int, Instance] = {}
        self.tiers: list[list[Instance]] = [[] for _ in weights]
        self.ordered: list[Instance] = []

    def get(self, backend: int) -> Instance | None:
        return self.by_backend.get(backend)

    def of_lane(self, lane: int) -> Instance | None:
        return self.by_backend.get(lane - own_lane(0))

    def add(self, backend: int) -> list[Instance]:
        """A backend is up; returns the instances that change their variant for it."""
        instance = self.by_backend[backend] = Instance(backend)
        counts = [len(tier) for tier in self.tiers]
        wanted = allot(self.weights, len(self.by_backend), self.speed)
        short = [wanted[tier] - counts[tier] for tier in range(len(wanted))]
        instance.tier = max(range(len(wanted)), key=lambda tier: short[tier])
        return self._settle()

    def remove(self, backend: int) -> tuple[Instance, list[Instance]]:
        """A backend has gone: its instance, and those that now change their variant."""
        return self.by_backend.pop(backend), self._settle()

    def _settle(self) -> list[Instance]:
        """Make the mix true again, moving as few instances as can be, the emptiest first."""
        wanted = allot(self.weights, len(self.by_backend), self.speed)
        tiers: list[list[Instance]] = [[] for _ in wanted]
        for instance in self.by_backend.values():
            tiers[instance.tier].append(instance)
        missing = [count - len(members) for count, members in zip(wanted, tiers, strict=True)]
        spare: list[Instance] = []
        for tier, members in enumerate(tiers):
            if missing[tier] < 0:
                members.sort(key=lambda each: (len(each), each.backend))
                spare.extend(members[: -missing[tier]])
        for instance in spare:
            instance.tier = next(tier for tier, count in enumerate(missing) if count > 0)
            missing[instance.tier] -= 1
        self._order()
        return spare

    def _order(self) -> None:
        self.ordered = sorted(self.by_backend.values(), key=lambda each: (each.tier, each.backend))
        self.tiers = [[] for _ in self.weights]
        for place, instance in enumerate(self.ordered):
            instance.place = place
            self.tiers[instance.tier].append(instance)
