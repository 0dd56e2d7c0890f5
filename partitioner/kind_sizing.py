"""The number of sub-clusters and backends that models need where there are several kinds."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fermata.foundation.errors import ConfigError
from fermata.partitioner.packing import in_parts
from fermata.partitioner.plan import (
    PlacedModel,
    Plan,
    Problem,
    SubCluster,
    fits,
    in_clusters,
)
from fermata.partitioner.sizing import SEARCH_S_MIN, Solve, like_all, sized
from fermata.partitioner.solution import PlacementSolution, describe
from fermata.partitioner.solver.balance import Balance
from fermata.partitioner.solver.infeasible import obstacles
from fermata.partitioner.solver.options import SEARCH

ANY_RPS, ANY_BYTES = 1e15, 1 << 60
"""Limits of a whole kind: it has as many sub-clusters as its models need."""


def sized_by_kind(
    problem: Problem, solve: Solve, time_limit_s: float, utilisation: float = 1.0
) -> tuple[Problem, PlacementSolution]:
    """As `sized`, for sub-clusters of several kinds. Models go to kinds first, so that each kind
    has its share of the work; then each kind has the fewest sub-clusters that do. Those of one
    kind must be alike."""
    kinds = _kinds(problem)
    if len(kinds) == 1 or not problem.models:
        return sized(problem, solve, time_limit_s, utilisation)
    until = time.monotonic() + time_limit_s
    models = [part for each in problem.models for part in _parts(each, kinds.values())]
    places = [like_all(own) for own in kinds.values()]
    if lines := obstacles(Problem(tuple(models), tuple(places * len(models)))):
        raise ConfigError(f"no plan is possible: {'; '.join(lines)}")
    upper = _upper(problem, models, kinds)
    top = solve(upper, max(SEARCH_S_MIN, SEARCH.top_share * time_limit_s))
    found: list[SubCluster] = []
    home: dict[str, int] = {}
    for number, place in enumerate(places):
        names = set(top.plan.models_of(number))
        own = tuple(each for each in models if each.name in names)
        if own:
            left_s = max(SEARCH_S_MIN, (until - time.monotonic()) / (len(places) - number))
            part = replace(problem, models=own, sub_clusters=(place,))
            asked, lower = sized(part, solve, left_s, utilisation)
            home |= {name: len(found) + at for name, at in lower.plan.home.items()}
            found += [
                replace(each, name=f"{place.kind}-{at}", share=1.0)
                for at, each in enumerate(asked.sub_clusters)
            ]
    whole = replace(
        problem,
        models=tuple(models),
        sub_clusters=in_clusters(found),
        by_backends=upper.by_backends,
    )
    seconds = time_limit_s - (until - time.monotonic())
    return whole, _described(whole, Plan(home), utilisation, seconds, top.solver)


def _kinds(problem: Problem) -> dict[str, list[SubCluster]]:
    found: dict[str, list[SubCluster]] = {}
    for each in problem.sub_clusters:
        found.setdefault(each.kind, []).append(each)
    return found


def _parts(model: PlacedModel, kinds: Iterable[Sequence[SubCluster]]) -> list[PlacedModel]:
    """The model, or its parts that any router it may live at can carry."""
    limits = [own[0].rate_rps_max for own in kinds if _may_live(model, own[0])]
    return in_parts(model, min(limits, default=math.inf))


def _may_live(model: PlacedModel, place: SubCluster) -> bool:
    return model.runs_on(place.kind) and fits([model], place.memory_bytes)


def _upper(
    problem: Problem, models: Sequence[PlacedModel], kinds: Mapping[str, Sequence[SubCluster]]
) -> Problem:
    """Kinds as sub-clusters without limits. Models go only to kinds that hold them."""
    places = tuple(
        SubCluster(kind, ANY_RPS, ANY_BYTES, sum(each.share for each in own), kind)
        for kind, own in kinds.items()
    )
    profiled = tuple(
        replace(
            model,
            profiles={
                kind: profile
                for kind, own in kinds.items()
                if _may_live(model, own[0]) and (profile := model.profile_on(kind)) is not None
            },
        )
        for model in models
    )
    known = all(each.profiles and each.slo_ns > 0 for each in profiled)
    return replace(
        problem, models=profiled, sub_clusters=places, memory_weight=0.0, by_backends=known
    )


def _described(
    problem: Problem, plan: Plan, utilisation: float, seconds: float, solver: str
) -> PlacementSolution:
    balance = Balance(problem)
    homes = np.array([plan.home[each.name] for each in problem.models], np.int64)
    objective, bound = balance.objective(homes), balance.bound()
    proven = objective <= bound
    return describe(balance, homes, bound, proven, objective, utilisation, seconds, solver)
