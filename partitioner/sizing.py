"""The number of sub-clusters that models need, each with a router and backends that are alike."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fermata.foundation.errors import ConfigError
from fermata.partitioner.packing import first_fit, in_parts
from fermata.partitioner.plan import PlacedModel, Problem, SubCluster, in_clusters
from fermata.partitioner.solution import PlacementSolution, describe
from fermata.partitioner.solver.balance import Balance
from fermata.partitioner.solver.infeasible import obstacles

SEARCH_S_MIN = 0.1
"""Time below which a search for a plan is not begun."""
Solve = Callable[[Problem, float], PlacementSolution]
"""Finds the plan of a problem within so many seconds, or raises ConfigError."""


def sized(
    problem: Problem, solve: Solve, time_limit_s: float, utilisation: float = 1.0
) -> tuple[Problem, PlacementSolution]:
    """The same models on the fewest sub-clusters for which a plan is found, and that plan.

    A model whose rate is above that of one router is split among as many as carry it. Sub-clusters
    of the problem say what each is like, and must be alike. With more time fewer may do.
    """
    until = time.monotonic() + time_limit_s
    if not problem.models:
        raise ConfigError("models: there are none to find sub-clusters for; give at least one")
    place = like_all(problem.sub_clusters)
    models = [part for each in problem.models for part in in_parts(each, place.rate_rps_max)]
    alone = replace(problem, models=tuple(models))
    if lines := obstacles(Problem(tuple(models), (place,) * len(models))):
        raise ConfigError(f"no plan is possible: {'; '.join(lines)}")
    packed = first_fit(models, place)
    last = len(packed)
    for count in range(min(last, _fewest(models, place)), last):
        asked = replace(alone, sub_clusters=_numbered(place, count))
        # Half, since a solver may take as long again to tell why there is no plan.
        limit_s = (until - time.monotonic()) / (last + 1 - count) / 2
        if limit_s < SEARCH_S_MIN:
            break
        try:
            found = solve(asked, limit_s)
        except ConfigError:
            # No plan, or none within the time. With one more there may be.
            continue
        return asked, _improved(asked, solve, found, until)
    asked = replace(alone, sub_clusters=_numbered(place, last))
    return asked, _improved(asked, solve, _described(asked, packed, utilisation), until)


def _improved(
    asked: Problem, solve: Solve, found: PlacementSolution, until: float
) -> PlacementSolution:
    """A better plan if there is time for one, else the one that was found."""
    left_s = until - time.monotonic()
    if found.proven or left_s < SEARCH_S_MIN:
        return found
    try:
        return min(solve(asked, left_s), found, key=lambda each: each.objective)
    except ConfigError:
        return found


def _described(
    problem: Problem, packed: Sequence[Sequence[PlacedModel]], utilisation: float
) -> PlacementSolution:
    """The plan that has each of these groups in a sub-cluster."""
    balance = Balance(problem)
    place = {model.name: number for number, held in enumerate(packed) for model in held}
    homes = np.array([place[model.name] for model in problem.models], np.int64)
    objective, bound = balance.objective(homes), balance.bound()
    proven = objective <= bound
    return describe(balance, homes, bound, proven, objective, utilisation, 0.0, "first fit")


def like_all(places: Sequence[SubCluster]) -> SubCluster:
    """One of these sub-clusters, or a ConfigError where they differ."""
    place, *others = places
    for each in others:
        if replace(each, name=place.name, cluster=place.cluster) != place:
            raise ConfigError(
                f"sub_clusters: {place.name} and {each.name} differ; their number can be asked "
                "for where all are alike"
            )
    return place


def _numbered(place: SubCluster, count: int) -> tuple[SubCluster, ...]:
    return in_clusters([replace(place, name=str(number)) for number in range(count)])


def _fewest(models: Sequence[PlacedModel], place: SubCluster) -> int:
    """No plan can do with fewer: all together need as many, and no two large ones share one."""
    rate_rps = sum(each.rate_rps for each in models)
    static = sum(each.static_bytes for each in models)
    return max(
        1,
        math.ceil(rate_rps / place.rate_rps_max),
        math.ceil(static / max(1, place.memory_bytes)),
        sum(2 * each.rate_rps > place.rate_rps_max for each in models),
        sum(2 * each.static_bytes + each.dynamic_bytes > place.memory_bytes for each in models),
    )
