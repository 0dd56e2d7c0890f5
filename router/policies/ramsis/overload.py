"""Queues that cannot run whole in time: which requests go, so that the others can.

The paper runs a late queue whole. Where nothing may run past its hard limit, it has to be parted. A
batch cut down to what its first request allows wastes the worker, and those behind it are late in
their turn. So the first are dropped, until the rest fits one batch.
"""

from collections.abc import Iterable

from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Request
from fermata.router.core.slot import Slot
from fermata.router.policies.hard_limit import size_within_limits, who_allow


def quickest(slot: Slot, variants: Iterable[int], waiting: int) -> int:
    """The variant that takes the least time for each request, of as many as it can take."""

    def each_ns(variant: int) -> float:
        size = min(waiting, slot.size_max(variant))
        return slot.plan_ns(variant, size) / size

    return min(variants, key=each_ns)


def in_part(
    queue: DeadlineQueue, slot: Slot, variant: int, arrivals_per_ns: float
) -> tuple[list[Request], Request | None]:
    """The batch of this variant for a queue, or the request to drop before trying again.

    The first few run on their own only where the rest, with those that come meanwhile, still fits
    one batch after them.
    """
    size_max = slot.size_max(variant)
    taken = who_allow(queue, variant, size_max)
    size = size_within_limits(taken, slot, variant, len(taken))
    rest = taken[size:]
    if not rest:
        return taken, None
    run_ns = slot.plan_ns(variant, size) if size else 0
    then = len(queue) - size + round(run_ns * arrivals_per_ns)
    if size > 0 and then <= size_max:
        end_ns = slot.start_at_ns + run_ns + slot.plan_ns(variant, then)
        if end_ns <= min(request.expires_at_ns for request in rest):
            return taken[:size], None
    return [], min(taken, key=lambda request: request.expires_at_ns)
