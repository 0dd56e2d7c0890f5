"""The hierarchical form: models to clusters first, then to each cluster's sub-clusters (4.7)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import PlacedModel, Plan, Problem, SubCluster
from fermata.partitioner.solution import PlacementSolution, describe
from fermata.partitioner.solver.balance import NOWHERE, Balance
from fermata.partitioner.solver.options import SEARCH
from fermata.partitioner.solver.solve import Tell, solve


def clusters_of(problem: Problem) -> dict[str, list[int]]:
    """Indices of sub-clusters by the cluster they are part of, in order."""
    found: dict[str, list[int]] = {}
    for index, each in enumerate(problem.sub_clusters):
        found.setdefault(each.cluster, []).append(index)
    return found


def solve_two_level(
    problem: Problem,
    time_limit_s: float = 10.0,
    seed: int = 0,
    solver: str = "",
    utilisation: float = 1.0,
    tell: Tell | None = None,
) -> PlacementSolution:
    """As `solve`, but a router sees only the models of its own cluster. With one cluster there is
    no upper level. Objective, bound and imbalance are those of the whole."""
    clusters = clusters_of(problem)
    if len(clusters) == 1:
        return solve(problem, time_limit_s, seed, solver, utilisation, tell)
    top = solve(_upper(problem, clusters), SEARCH.top_share * time_limit_s, seed, solver)
    home: dict[str, int] = {}
    seconds = top.seconds
    left_s = time_limit_s - top.seconds
    for number, (cluster, members) in enumerate(clusters.items()):
        part = _lower(problem, members, top.plan.models_of(number), top.cost)
        limit_s = max(0.1, left_s / (len(clusters) - number))
        try:
            lower = solve(part, limit_s, seed, solver, utilisation, tell)
        except ConfigError as error:
            raise ConfigError(f"cluster {cluster or 'without a name'}: {error}") from None
        home |= {name: members[inner] for name, inner in lower.plan.home.items()}
        seconds += lower.seconds
        left_s -= lower.seconds
    balance = Balance(problem)
    homes = np.array([home[model.name] for model in problem.models], np.int64)
    current = balance.current
    if (current != NOWHERE).all() and balance.feasible(current):
        # Not by the worst sub-cluster of the whole: where that one cannot be helped, or pays a
        # little for others, nothing would ever move.
        homes = min(homes, current, key=balance.unevenness)
    bound, start = balance.bound(), top.start_objective
    proven = balance.objective(homes) <= bound
    return describe(balance, homes, bound, proven, start, utilisation, seconds, top.solver)


def _upper(problem: Problem, clusters: Mapping[str, Sequence[int]]) -> Problem:
    """Clusters as sub-clusters. A batch needs its working memory in one sub-cluster only, so each
    of the others is counted as smaller by the largest there is."""
    peak = max((model.dynamic_bytes for model in problem.models), default=0)
    members = {
        cluster: [problem.sub_clusters[index] for index in indices]
        for cluster, indices in clusters.items()
    }
    whole = tuple(
        SubCluster(
            cluster,
            sum(each.rate_rps_max for each in own),
            max(0, sum(each.memory_bytes for each in own) - peak * (len(own) - 1)),
            sum(each.share for each in own),
            kind=cluster,
        )
        for cluster, own in members.items()
    )
    cluster_of = {index: number for number, own in enumerate(clusters.values()) for index in own}
    current = Plan({model: cluster_of[home] for model, home in problem.current.home.items()})
    models = tuple(_for_clusters(model, members) for model in problem.models)
    return replace(problem, models=models, sub_clusters=whole, current=current)


def _for_clusters(model: PlacedModel, clusters: Mapping[str, Sequence[SubCluster]]) -> PlacedModel:
    """The model with clusters in place of accelerator types: it runs where any member runs it."""
    profiles = {
        cluster: profile
        for cluster, members in clusters.items()
        for member in members[::-1]
        if (profile := model.profile_on(member.kind)) is not None
    }
    return replace(model, profiles=profiles)


def _lower(problem: Problem, members: Sequence[int], names: Sequence[str], spent: float) -> Problem:
    """The problem of one cluster; it may spend its share of the load cost that the top left."""
    own = set(names)
    models = tuple(model for model in problem.models if model.name in own)
    inner = {index: number for number, index in enumerate(members)}
    current = Plan(
        {
            name: inner[home]
            for name, home in problem.current.home.items()
            if home in inner and name in own
        }
    )
    cost_max = problem.load_cost_max
    if cost_max is not None:
        whole = sum(model.load_cost for model in problem.models) or 1.0
        cost_max = (cost_max - spent) * sum(model.load_cost for model in models) / whole
    places = tuple(problem.sub_clusters[index] for index in members)
    return replace(
        problem, models=models, sub_clusters=places, current=current, load_cost_max=cost_max
    )
