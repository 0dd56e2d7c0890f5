"""A single queue before all instances: the strongest baseline that needs no prediction."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, Source, SourceContext
from fermata.router.policies.family import Family
from fermata.router.policies.routing.instance import Instances
from fermata.router.policies.routing.mix import read_mix
from fermata.router.policies.unassigned import Unassigned


@dataclass(frozen=True, slots=True)
class SingleQueueOptions:
    """The instances behind the queue."""

    mix: str = ""
    """Instances of each variant, as in `routing`."""


class SingleQueue(Source):
    """First come, first served; of the idle instances the most accurate takes the next one."""

    owns_backends = True
    respects_client_limits = True

    def __init__(self, family: Family, options: SingleQueueOptions) -> None:
        self.family = family
        self.options = options
        self.accuracy = family.accuracy or (1.0,) * len(family.variants)
        self.queue: deque[Request] = deque()
        self.lanes: tuple[int, ...] = NO_LANES
        self.stranded = Unassigned(self)
        self.choosy = 0
        """Queued requests that not every variant may serve."""

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        speed = [desk.costs.of(variant).p50_ns[1] for variant in self.family.variants]
        self.instances = Instances(read_mix(self.options.mix, self.family, speed), speed)

    def _fastest(self) -> int:
        """The variant that takes least for one request."""
        tiers = {instance.tier for instance in self.instances.ordered} or range(len(self.accuracy))
        return self.family.variants[min(tiers, key=lambda tier: self.instances.speed[tier])]

    def _alone_ns(self) -> int:
        """Shortest run time of one request."""
        return self.lead.ns(1) + self.costs.of(self._fastest()).plan_ns[1]

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        if request.allowed is not None and not self._admitted(request):
            self.outbox.drop(request, DropReason.FLOOR)
            return NO_LANES
        if not self.lanes:
            self.stranded.add(request, self._alone_ns())
            return NO_LANES
        self.queue.append(request)
        self.choosy += request.allowed is not None
        # With others waiting no instance is idle, unless they are not for all.
        return self.lanes if len(self.queue) == 1 or self.choosy else NO_LANES

    def _admitted(self, request: Request) -> bool:
        """Whether any instance may serve it, of those that are up or of those to come."""
        there = {each.tier for each in self.instances.ordered} or self.instances.mixed
        return any(self.family.admits(request, tier) for tier in there)

    def _remove(self, request: Request) -> None:
        self.queue.remove(request)
        self.choosy -= request.allowed is not None

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        if request in self.queue:
            self._remove(request)
        return self.lanes

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        known = self.instances.get(backend) is not None
        if up and not known:
            self.instances.add(backend)
        elif not up and known:
            self.instances.remove(backend)
        self.lanes = tuple(
            instance.lane
            for instance in sorted(
                self.instances.ordered, key=lambda each: (-self.accuracy[each.tier], each.backend)
            )
        )
        waiting = [*self.queue, *self.stranded.take_all()]
        self.queue.clear()
        self.choosy = 0
        for request in waiting:
            self.on_request(now_ns, request)
        return self.lanes

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.stranded.drop_hopeless(now_ns)
        return NO_LANES

    # Bid and grant

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        instance = self.instances.of_lane(lane)
        if instance is None:
            return None
        alone_ns = self._alone_ns()
        while self.queue and self.queue[0].expires_at_ns < now_ns + alone_ns:
            request = self.queue[0]
            self._remove(request)
            self.drop_late(request, self._fastest(), request.expires_at_ns)
        if not self.queue:
            return None
        bid = instance.bid
        bid.size = 1
        bid.ripe_at_ns = now_ns
        # The first may not be for this instance, and the one behind it may be.
        bid.again = self.choosy > 0
        # The lane has one source, so the key decides nothing.
        bid.key = bid.expires_at_ns = self.queue[0].expires_at_ns - alone_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        instance = self.instances.get(slot.backend)
        if instance is None:
            return None
        variant = self.family.variants[instance.tier]
        ends_at_ns = slot.start_at_ns + slot.plan_ns(variant, 1)
        for request in self.queue:
            if ends_at_ns <= request.expires_at_ns and self.family.admits(request, instance.tier):
                self._remove(request)
                return Batch(variant, [request])
        return None
