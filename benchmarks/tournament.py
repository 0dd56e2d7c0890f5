"""Tournament: policies on workloads drawn at random, held out from every tuning."""

import os
from collections.abc import Iterator

from benchmarks.figures import Figure, run
from fermata.simulator.tournament.standings import play_all, standings

FIRST = 1_000_000
"""Policies are tuned on seeds below."""
DRAWS, QUICK_DRAWS = 500, 60
SEVERAL = "lookahead"
"""Default for several variants, and for a single one."""
SINGLE = "deferred"


def measure(quick: bool) -> Iterator[Figure]:
    draws = QUICK_DRAWS if quick else DRAWS
    seeds = range(FIRST, FIRST + draws)
    yield from _field(seeds, "several", SEVERAL, (0.1, 0.5, 0.1, 1.0))
    yield from _field(seeds, "single", SINGLE, (0.05, 0.5, 0.1, 1.0))


def _field(
    seeds: range, field: str, default: str, goals: tuple[float, float, float, float]
) -> Iterator[Figure]:
    matches = list(play_all(seeds, field, processes=os.cpu_count() or 1))
    standing = next(each for each in standings(matches) if each.policy == default)
    name = f"{default}, {len(matches)} draws, {field} variants"
    found = (
        ("mean regret", standing.regret_mean),
        ("worst regret", standing.regret_worst),
        ("violations above the best policy's, mean", standing.violations_mean),
        ("violations above the best policy's, worst", standing.violations_worst),
    )
    for (figure, value), goal in zip(found, goals, strict=True):
        yield Figure(f"{name}: {figure}", value, "points", goal, at_most=True)
    if standing.bound_mean is not None:
        figure = f"{name}: mean regret to the fluid bound, 8 backends and more"
        yield Figure(figure, standing.bound_mean, "points", 0.5, at_most=True)


if __name__ == "__main__":
    run("Tournament", measure)
