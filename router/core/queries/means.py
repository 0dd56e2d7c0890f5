"""Mean run times of a stage's batches, by which batch sizes are compared."""

from typing import Final

from fermata.router.core.costs import VariantCost

PRIOR: Final = 64
"""Batches for which the mean of all sizes counts beside those of an octave's own."""


def mean_times(cost: VariantCost) -> list[float]:
    """Mean run times by batch size; index 0 is unused.

    Margins are not in it: a few slow runs make them, so sizes that have hardly run would seem the
    cheapest of all. Neither is a mean of a few runs believed. A stage that is aimed at such a size
    may run larger ones than that, which tell nothing of it, and would keep to it for long.
    """
    rules = cost.rules
    known: dict[int, tuple[int, float]] = {}
    for octave in cost.octaves:
        count = len(octave.raw.ordered)
        if count >= rules.ratio_window_min:
            limit = rules.hang * octave.raw.quantile(rules.common)
            known[octave.first] = count, octave.raw.mean(limit)
    batches = sum(count for count, _ in known.values())
    usual = sum(count * mean for count, mean in known.values()) / batches if known else 1.0
    found = [float(each) for each in cost.plan_ns]
    for octave in cost.octaves:
        count, mean = known.get(octave.first, (0, usual))
        ratio = (count * mean + PRIOR * usual) / (count + PRIOR)
        # What memory has no room for stays as it is planned.
        for size in range(octave.first, min(octave.last, cost.room or cost.size_max) + 1):
            found[size] = ratio * cost.p50_ns[size]
    return found
