"""The margin that a profile's own 99th percentiles give, before any batch has run."""

from collections.abc import Sequence

from fermata.router.core.margins.ratios import CostRules


def seed_of(p50_ns: Sequence[int], p99_ns: Sequence[int] | None, rules: CostRules) -> float:
    """The worst ratio of a percentile to its median that is believed.

    One percentile that was measured far too high says nothing of other sizes. Profiles never fall,
    so it stands for larger sizes too: where a percentile does not rise, nothing is known of that
    size alone. All sizes start with one margin, the cautious one, until their own runs tell.
    """
    if p99_ns is None:
        return 1.0
    ratios: list[float] = []
    below_ns = 0
    for high_ns, low_ns in zip(p99_ns, p50_ns, strict=True):
        if high_ns > below_ns:
            ratios.append(high_ns / low_ns)
        below_ns = high_ns
    ratios.sort()
    limit = rules.believed * ratios[(len(ratios) - 1) // 3]
    return max(1.0, *(ratio for ratio in ratios if ratio <= limit))
