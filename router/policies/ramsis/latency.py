"""Latency tables as RAMSIS reads profiles, and the variants worth choosing from."""

from collections.abc import Sequence


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
    """Which variants no other beats in latency at batch size 1 and in accuracy; fastest first
    (RAMSIS section 4.3.3)."""
    order = sorted(range(len(alone)), key=lambda each: (alone[each], -accuracy[each]))
    front: list[int] = []
    for each in order:
        if not front or accuracy[each] > accuracy[front[-1]]:
            front.append(each)
    return front
