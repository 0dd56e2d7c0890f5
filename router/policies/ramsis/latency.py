"""Latency tables as RAMSIS reads profiles, and the variants worth choosing from."""

from collections.abc import Sequence

from fermata.foundation.units import NEVER


def fill_sizes(sizes: Sequence[int], values: Sequence[float], size_max: int) -> list[float]:
    """Latencies of sizes 1 to `size_max`: the measured ones, the others on their least-squares
    line."""
    known = dict(zip(sizes, values, strict=True))
    count = len(known)
    mean_size = sum(known) / count
    mean = sum(known.values()) / count
    spread = sum((size - mean_size) ** 2 for size in known)
    slope = 0.0
    if spread > 0.0:
        slope = sum((size - mean_size) * (known[size] - mean) for size in known) / spread
    return [known.get(size, mean + slope * (size - mean_size)) for size in range(1, size_max + 1)]


def monotone_from_right(values: Sequence[float]) -> list[float]:
    """No size slower than a larger one: an outlier at a small size is pulled down.

    The authors' way. Ours (`fermata.profiles.monotone`) raises the larger size, to be
    on the safe side.
    """
    lowered = list(values)
    for index in range(len(lowered) - 2, -1, -1):
        lowered[index] = min(lowered[index], lowered[index + 1])
    return lowered


def pareto_front(alone: Sequence[float], accuracy: Sequence[float]) -> list[int]:
    """Variants that no other beats in latency at batch size 1 and in accuracy; fastest first
    (RAMSIS section 4.3.3).

    It suits profiles whose order is the same at every batch size. Tables keep what `undominated`
    keeps.
    """
    order = sorted(range(len(alone)), key=lambda each: (alone[each], -accuracy[each]))
    front: list[int] = []
    for each in order:
        if not front or accuracy[each] > accuracy[front[-1]]:
            front.append(each)
    return front


def undominated(latency_ns: Sequence[Sequence[int]], accuracy: Sequence[float]) -> list[int]:
    """Variants that no other matches in accuracy and in latency at every size; fastest first.

    The paper compares batches of 1. A variant that is slower there may be the only one that
    carries the load in large batches.
    """
    longest = max(len(row) for row in latency_ns)
    rows = [(*row, *[NEVER] * (longest - len(row))) for row in latency_ns]
    # Whatever dominates a variant stands before it.
    order = sorted(range(len(rows)), key=lambda each: (rows[each], -accuracy[each]))
    kept: list[int] = []
    for each in order:
        if not any(
            accuracy[other] >= accuracy[each]
            and all(quick <= slow for quick, slow in zip(rows[other], rows[each], strict=True))
            for other in kept
        ):
            kept.append(each)
    return kept
