"""Batch sizes that an SLO allows, and those that overload asks for."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fermata.foundation.units import SECOND
from fermata.router.core.deadline_queue import DeadlineQueue


@dataclass(frozen=True, slots=True)
class LossRules:
    """When a queue counts as in overload."""

    losing: float = 0.05
    """It has lately lost more than this share of its requests."""
    heavy: float = 0.2
    """More than this is an overload that does not pass by itself."""
    memory: float = 0.01
    """Weight of the newest request in that share."""


LOSSES: Final = LossRules()


def size_for_half(plan_ns: Sequence[int], slo_ns: int) -> int:
    """The largest batch that runs in half the SLO, and at least 1 (Symphony section 3.2)."""
    size = 1
    while size + 1 < len(plan_ns) and 2 * plan_ns[size + 1] <= slo_ns:
        size += 1
    return size


def learn_slo_ns(known_ns: int, slo_ns: int) -> int:
    """The SLO that an application's requests have lately had, given one more; 0 is unknown."""
    if known_ns == 0:
        return slo_ns
    # The last few nanoseconds in one step, so that the average settles on a steady SLO.
    return known_ns + ((slo_ns - known_ns) // 8 or slo_ns - known_ns)


def sustains(plan_ns: Sequence[int], size: int, slo_ns: int, rps: float, awaited: int) -> bool:
    """Whether batches of this size keep up with the rate and meet the SLO (Symphony Eqns 2, 3).

    With n backends in turn a request waits l(b) / n for its batch; below one backend it waits for
    the batch to fill, for so many more requests.
    """
    run_ns = plan_ns[size]
    backends = rps * run_ns / (size * SECOND)
    if backends <= 1.0:
        return run_ns + awaited * SECOND / rps <= slo_ns
    return run_ns * (1.0 + 1.0 / backends) <= slo_ns


def target_size(plan_ns: Sequence[int], slo_ns: int, rps: float, guess: int = 1) -> int:
    """The largest batch that the rate and the SLO sustain, and at least 1; near the guess."""
    size_max = len(plan_ns) - 1
    size = min(guess, size_max)
    while size < size_max and sustains(plan_ns, size + 1, slo_ns, rps, size + 1):
        size += 1
    while size > 1 and not sustains(plan_ns, size, slo_ns, rps, size):
        size -= 1
    return size


def full_size(plan_ns: Sequence[int], slo_ns: int, rps: float, guess: int = 1) -> int:
    """The same for a model that starts to wait when the first request is there, as deferred ones
    do: with few requests a second that one makes much of the batch. It tells how many backends
    are enough when all of them are busy."""
    size_max = len(plan_ns) - 1
    size = min(guess, size_max)
    while size < size_max and sustains(plan_ns, size + 1, slo_ns, rps, size):
        size += 1
    while size > 1 and not sustains(plan_ns, size, slo_ns, rps, size - 1):
        size -= 1
    return size


def after_loss(lost: float, count: int = 1) -> float:
    """The share of requests lost, once so many more are."""
    return 1.0 - (1.0 - lost) * (1.0 - LOSSES.memory) ** count


def after_batch(lost: float, count: int) -> float:
    """The share of requests lost, once so many are served."""
    return lost * (1.0 - LOSSES.memory) ** count


def overload_window(
    queue: DeadlineQueue,
    plan_ns: Sequence[int],
    start_at_ns: int,
    backends: float,
    least: int = 1,
) -> int:
    """The batch that a head must leave room for where some have to go anyway: the largest that
    can be filled. It is less, down to that size, where the next backend comes so soon that a head
    which is passed over could still run there."""
    largest = queue.largest_full_rows if queue.extra else queue.largest_full
    full = largest(start_at_ns, plan_ns.__getitem__, len(plan_ns) - 1)
    next_ns = plan_ns[full] / max(1.0, backends)
    return min(full, max(least, bisect_right(plan_ns, next_ns + plan_ns[1]) - 1))
