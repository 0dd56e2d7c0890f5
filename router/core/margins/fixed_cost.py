"""The part of a run time that does not grow with the batch."""


def fixed_cost_ns(p50_ns: list[int]) -> int:
    """Beta of l(b) = alpha b + beta by least squares; never negative."""
    count = len(p50_ns)
    if count == 1:
        return p50_ns[0]
    mean_size = (count + 1) / 2
    mean_ns = sum(p50_ns) / count
    spread = sum((size - mean_size) ** 2 for size in range(1, count + 1))
    slope = (
        sum((size - mean_size) * (p50_ns[size - 1] - mean_ns) for size in range(1, count + 1))
        / spread
    )
    return max(0, round(mean_ns - slope * mean_size))
