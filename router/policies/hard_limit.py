"""For policies that answer late rather than never: nobody is kept past the hard limit."""

from collections.abc import Sequence

from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Request
from fermata.router.core.slot import Slot


def size_within_limits(requests: Sequence[Request], slot: Slot, variant: int, size_max: int) -> int:
    """The largest batch of the first of these that ends before any of them expires; 0 if not
    even the first would. Requests of one deadline may differ in their limit."""
    limits_ns: list[int] = []
    limit_ns = requests[0].expires_at_ns
    size_max = min(size_max, len(requests), slot.size_max(variant))
    for request in requests[:size_max]:
        limit_ns = min(limit_ns, request.expires_at_ns)
        limits_ns.append(limit_ns)
    for size in range(size_max, 0, -1):
        if slot.start_at_ns + slot.plan_ns(variant, size) <= limits_ns[size - 1]:
            return size
    return 0


def who_allow(queue: DeadlineQueue, variant: int, count_max: int) -> list[Request]:
    """The first so many of a queue whom this variant may serve."""
    found: list[Request] = []
    for index in range(queue.head, len(queue.items)):
        request = queue.items[index]
        if len(found) == count_max:
            break
        if request.allowed is None or variant in request.allowed:
            found.append(request)
    return found
