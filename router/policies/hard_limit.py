"""For policies that answer late rather than never: nobody is kept past the hard limit."""

from router.core.deadline_queue import DeadlineQueue
from router.core.source import Slot


def size_within_limits(queue: DeadlineQueue, slot: Slot, variant: int, size_max: int) -> int:
    """The largest batch of a queue's first requests that ends before any of them expires; 0 if not
    even the first would. Requests of one deadline may differ in their limit."""
    limits_ns: list[int] = []
    limit_ns = queue.first().expires_at_ns
    size_max = min(size_max, len(queue), slot.costs.of(variant, slot.kind).size_max)
    for request in queue.items[queue.head : queue.head + size_max]:
        limit_ns = min(limit_ns, request.expires_at_ns)
        limits_ns.append(limit_ns)
    for size in range(size_max, 0, -1):
        if slot.start_at_ns + slot.plan_ns(variant, size) <= limits_ns[size - 1]:
            return size
    return 0
