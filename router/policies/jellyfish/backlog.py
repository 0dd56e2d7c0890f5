"""A smaller DNN for one batch, where frames have piled up.

A plan loads a worker up to its throughput, and Eq. (5) bounds the wait by one batch for frames that
come evenly. Where the phases of clients meet, or frames of two plans do, the worker's own DNN would
answer some of them too late; a smaller one for a batch or two makes up for it.
"""

from collections.abc import Callable, Sequence

from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Request
from fermata.router.core.slot import Slot

FRAMES_MAX = 64
"""Frames, by deadline, that the choice goes by: those behind wait for several batches in any case,
and a grant must not take longer the more of them there are."""


def first_of(queue: DeadlineQueue) -> list[Request]:
    """The frames that the choice goes by."""
    return queue.items[queue.head : queue.head + FRAMES_MAX]


def dnn_in_time(
    slot: Slot,
    variants: Sequence[int],
    own: int,
    waiting: Sequence[Request],
    allows: Callable[[Request, int], bool],
) -> int:
    """The worker's own DNN, or the most accurate below it with which fewer of those waiting, by
    deadline, will be late."""
    chosen, fewest = own, _late(slot, variants[own], variants[own], waiting)
    for dnn in reversed(range(own)):
        if fewest == 0:
            break
        variant = variants[dnn]
        # A swap would cost more than it gains, there and back.
        ready = slot.runs(variant) and slot.swap_in_ns(variant) == 0
        if not ready or not all(allows(request, dnn) for request in waiting):
            continue
        late = _late(slot, variant, variants[own], waiting)
        if late < fewest:
            chosen, fewest = dnn, late
    return chosen


def _late(slot: Slot, first: int, later: int, waiting: Sequence[Request]) -> int:
    """How many will be late if the next batch runs on one variant and the others on another."""
    variant, start_at_ns = first, slot.start_at_ns
    late = taken = 0
    while taken < len(waiting):
        fits = slot.size_that_fits(variant, waiting[taken].deadline_ns - start_at_ns)
        size = min(fits, len(waiting) - taken)
        if size > 0:
            start_at_ns += slot.plan_ns(variant, size)
            variant = later
        else:
            late += 1
        taken += max(1, size)
    return late
