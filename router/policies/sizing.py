"""Batch sizes that an SLO allows."""

from collections.abc import Sequence


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
