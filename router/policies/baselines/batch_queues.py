"""Batch queues: the Clockwork-style baseline of Jellyfish (section VI-C)."""

from collections.abc import Sequence
from dataclasses import dataclass

from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, POOL_ONLY, Bid, Source, SourceContext


@dataclass(frozen=True, slots=True)
class BatchQueuesOptions:
    """Defaults are the best known."""

    size_weight_ns: int = 0
    """How many nanoseconds of urgency one more request in the batch is worth among models.
    0: the earliest latest start wins. A second or more: the largest full batch wins."""


class BatchQueues(Source):
    """The work-conserving source of one model: whenever a backend is free, the largest full batch.

    There is one EDF queue per batch size, with every request in each that it can still be on time
    in. All of them are views of one queue: that of size b is its tail from the first deadline that
    a batch of b would meet, and it is full if b-th from the end would meet it. It bids with the run
    times of the quickest kind of backends; a batch is formed with those of its own.
    """

    hears_kinds = True

    def __init__(self, variant: int, options: BatchQueuesOptions) -> None:
        self.variant = variant
        self.may_run = frozenset((variant,))
        self.options = options
        self.queue = DeadlineQueue()
        self.size = 0
        """Variant of the largest full batch, which the standing bid is for."""
        self.standing_bid = Bid()

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        self.cost = desk.costs.of(self.variant)
        self.plan_ns = self.cost.plan_ns

    def on_kinds(self, now_ns: int, kinds: tuple[int, ...]) -> Sequence[int]:
        """Bid with the run times of the quickest kind that is there."""
        known = [self.costs.of(self.variant, kind) for kind in kinds]
        quickest = min(known, key=lambda each: each.plan_ns[1])
        if quickest is self.cost:
            return NO_LANES
        self.cost, self.plan_ns = quickest, quickest.plan_ns
        self._rebuild(now_ns)
        return POOL_ONLY

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        queue = self.queue
        if queue.push(request):
            self._rebuild(now_ns)
            return POOL_ONLY
        size = self.size + 1
        if size > len(queue) or size > self.cost.size_max:
            return NO_LANES
        run_ns = self.lead.ns(size) + self.plan_ns[size]
        if queue.items[-size].deadline_ns < now_ns + run_ns:
            return NO_LANES
        self._stand(now_ns, size)
        return POOL_ONLY

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        if not self.queue.remove(request):
            return NO_LANES
        self._rebuild(now_ns)
        return POOL_ONLY

    # Bid and grant

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        if self.size > 0 and self.standing_bid.expires_at_ns < now_ns:
            self._rebuild(now_ns)
        return self.standing_bid if self.size > 0 else None

    def _rebuild(self, now_ns: int) -> None:
        """Drop who is hopeless, and bid for the largest full batch of the others."""
        queue = self.queue
        alone_ns = self.lead.ns(1) + self.plan_ns[1]
        while len(queue) > 0 and queue.first().deadline_ns < now_ns + alone_ns:
            late = queue.pop()
            self.drop_late(late, self.variant, late.deadline_ns)
        if len(queue) == 0:
            self.size = 0
        else:
            self._stand(now_ns, self._largest_full(now_ns, None))

    def _stand(self, now_ns: int, size: int) -> None:
        self.size = size
        lead_ns = self.lead.ns
        run_ns = lead_ns(size) + self.plan_ns[size]
        first = self.queue.items[self.queue.first_in_time(now_ns + run_ns, size)]
        latest_start_ns = first.deadline_ns - run_ns
        bid = self.standing_bid
        bid.size = size
        bid.ripe_at_ns = now_ns
        bid.key = latest_start_ns - size * self.options.size_weight_ns
        # Ask again when another batch is the largest, or the first request is hopeless.
        hopeless_at_ns = self.queue.first().deadline_ns - lead_ns(1) - self.plan_ns[1]
        bid.expires_at_ns = min(latest_start_ns, hopeless_at_ns)

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        size = self._largest_full(slot.start_at_ns, slot) if slot.runs(self.variant) else 0
        if size == 0:
            return None
        end_at_ns = slot.start_at_ns + slot.plan_ns(self.variant, size)
        taken = self.queue.pop_from(self.queue.first_in_time(end_at_ns, size), size)
        self._rebuild(now_ns)
        return Batch(self.variant, taken)

    def _largest_full(self, start_at_ns: int, slot: Slot | None) -> int:
        """Size of the largest batch that the queue can fill with requests in time; 0 if none.
        Without a slot it starts on any backend, its lead time after then."""
        if slot is not None:
            variant, offered = self.variant, slot
            size_max = offered.size_max(variant)
            return self.queue.largest_full(
                start_at_ns, lambda size: offered.plan_ns(variant, size), size_max
            )
        plan_ns, lead_ns = self.plan_ns, self.lead.ns
        return self.queue.largest_full(
            start_at_ns, lambda size: lead_ns(size) + plan_ns[size], self.cost.size_max
        )
