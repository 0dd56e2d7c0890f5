"""Batch sizes that an SLO allows."""

from collections.abc import Sequence

from fermata.foundation.units import SECOND


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
