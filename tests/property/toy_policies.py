"""Two toy policies, to show that the seam holds what its description promises."""

from collections.abc import Sequence

from fermata.foundation.units import NEVER
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, POOL_ONLY, Bid, Source, own_lane
from fermata.router.policies.unassigned import Unassigned


class Lanes(Source):
    """A queue for each backend; requests join the shortest and leave by deadline."""

    owns_backends = True

    def __init__(self, variants: Sequence[int]) -> None:
        self.variants = variants
        self.queues: dict[int, DeadlineQueue] = {}
        self.stranded = Unassigned(self)
        self.bids: dict[int, Bid] = {}

    def _alone_ns(self, request: Request) -> int:
        variant = self.variants[request.application]
        return self.desk.lead_ns(1) + self.costs.of(variant).plan_ns[1]

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        if not self.queues:
            self.stranded.add(request, self._alone_ns(request))
            return NO_LANES
        backend = min(self.queues, key=lambda each: (len(self.queues[each]), each))
        self.queues[backend].push(request)
        return (own_lane(backend),)

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        for backend, queue in self.queues.items():
            if queue.remove(request):
                return (own_lane(backend),)
        return NO_LANES

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        if up:
            self.queues[backend] = DeadlineQueue()
            moved = self.stranded.take_all()
        else:
            queue = self.queues.pop(backend)
            moved = queue.pop_many(len(queue))
        lanes = [lane for request in moved for lane in self.on_request(now_ns, request)]
        return lanes

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.stranded.drop_hopeless(now_ns)
        return NO_LANES

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        queue = self.queues.get(lane - own_lane(0))
        if queue is None:
            return None
        while len(queue) and queue.first().deadline_ns < now_ns + self._alone_ns(queue.first()):
            self.outbox.drop(queue.pop(), DropReason.LATE)
        if not len(queue):
            return None
        bid = self.bids.setdefault(lane, Bid())
        bid.size = 1
        bid.ripe_at_ns = now_ns
        bid.key = bid.expires_at_ns = queue.first().deadline_ns - self._alone_ns(queue.first())
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        queue = self.queues[slot.backend]
        while len(queue):
            request = queue.pop()
            variant = self.variants[request.application]
            if slot.size_that_fits(variant, request.deadline_ns - slot.start_at_ns):
                return Batch(variant, [request])
            self.outbox.drop(request, DropReason.LATE)
        return None


class Swapper(Source):
    """One source for all applications of a pool whose backends hold one variant at a time."""

    def __init__(self, variants: Sequence[int]) -> None:
        self.variants = variants
        self.queues = [DeadlineQueue() for _ in variants]
        self.standing_bid = Bid()

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        self.queues[request.application].push(request)
        return POOL_ONLY

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        self.queues[request.application].remove(request)
        return POOL_ONLY

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        latest_start_ns = NEVER
        for queue, variant in zip(self.queues, self.variants, strict=True):
            alone_ns = self.desk.lead_ns(1) + self.costs.of(variant).plan_ns[1]
            while len(queue) and queue.first().deadline_ns < now_ns + alone_ns:
                self.outbox.drop(queue.pop(), DropReason.LATE)
            if len(queue):
                latest_start_ns = min(latest_start_ns, queue.first().deadline_ns - alone_ns)
        if latest_start_ns == NEVER:
            return None
        bid = self.standing_bid
        bid.size = 1
        bid.ripe_at_ns = now_ns
        bid.key = bid.expires_at_ns = latest_start_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        waiting = [application for application, queue in enumerate(self.queues) if len(queue)]
        # What is resident first, then whoever is most urgent; a swap may be too slow for all.
        waiting.sort(
            key=lambda each: (
                slot.swap_in_ns(self.variants[each]) > 0,
                self.queues[each].first().deadline_ns,
            )
        )
        for application in waiting:
            queue, variant = self.queues[application], self.variants[application]
            budget_ns = queue.first().deadline_ns - slot.start_at_ns
            size = min(slot.size_that_fits(variant, budget_ns), len(queue))
            if size > 0:
                return Batch(variant, queue.pop_many(size))
        return None
