"""Reasons why there is no plan: every obstacle by name, with its figures and the way out."""

import numpy as np

from fermata.partitioner.plan import PlacedModel, Problem
from fermata.partitioner.solver.balance import NOWHERE, Balance, Homes
from fermata.partitioner.solver.milp import Program

MB = 2**20
FAMILIES = {
    "memory": "memory of every sub-cluster larger",
    "rate": "request rate of every RankThread higher",
    "disruption": "load cost bound higher",
}


def obstacles(problem: Problem) -> list[str]:
    """Obstacles that rule every plan out, one line each; empty: none is obvious."""
    if not problem.sub_clusters:
        return ["there is no sub-cluster; give at least one"]
    found = [line for model in problem.models for line in _of_model(problem, model)]
    if found:
        return found
    rate = sum(model.rate_rps for model in problem.models)
    rate_max = sum(place.rate_rps_max for place in problem.sub_clusters)
    if rate > rate_max:
        found.append(
            f"all models together have {rate:,.0f} req/s, all RankThreads {rate_max:,.0f}; "
            "add sub-clusters"
        )
    static = sum(model.static_bytes for model in problem.models)
    room = sum(place.memory_bytes for place in problem.sub_clusters)
    if static > room:
        found.append(
            f"all models together hold {_mb(static)}, all sub-clusters {_mb(room)}; "
            "add sub-clusters or leave models out"
        )
    return found + _forced_moves(problem)


def _of_model(problem: Problem, model: PlacedModel) -> list[str]:
    places = [place for place in problem.sub_clusters if model.runs_on(place.kind)]
    if not places:
        kinds = sorted({place.kind for place in problem.sub_clusters})
        return [f"model {model.name} runs on none of {', '.join(kinds)}; profile it on one"]
    found: list[str] = []
    need, room = model.static_bytes + model.dynamic_bytes, max(p.memory_bytes for p in places)
    if need > room:
        found.append(
            f"model {model.name} needs {_mb(need)}, the largest sub-cluster has {_mb(room)}; "
            "lower its batch size or give larger accelerators"
        )
    rate_max = max(place.rate_rps_max for place in places)
    if model.rate_rps > rate_max:
        found.append(
            f"model {model.name} has {model.rate_rps:,.0f} req/s, the fastest RankThread manages "
            f"{rate_max:,.0f}; split it into several"
        )
    return found


def _forced_moves(problem: Problem) -> list[str]:
    """Models whose home is gone, or cannot hold them, and what it costs to move them."""
    if problem.load_cost_max is None:
        return []
    balance = Balance(problem)
    placed = np.flatnonzero(balance.current != NOWHERE)
    forced = [int(each) for each in placed if not balance.allowed[each, balance.current[each]]]
    cost = sum(float(balance.move_cost[each].max()) for each in forced)
    if cost <= problem.load_cost_max:
        return []
    names = ", ".join(problem.models[each].name for each in forced[:5])
    return [
        f"{len(forced)} models must leave their sub-cluster ({names}) at a cost of {cost:g}, above "
        f"load_cost_max={problem.load_cost_max:g}; raise it"
    ]


def remedies(balance: Balance, homes: Homes, time_limit_s: float, solver: str) -> list[str]:
    """The least that each family of limits would have to give, alone, for there to be a plan."""
    found: list[str] = []
    for family, words in FAMILIES.items():
        if family == "disruption" and not np.isfinite(balance.cost_max):
            continue
        program = Program(balance, homes, range(balance.places))
        slack = program.least_slack(family, time_limit_s / len(FAMILIES), solver)
        if slack is not None:
            found.append(f"with the {words} by {100 * slack:.2g} % there is one")
    return found


def _mb(size: float) -> str:
    return f"{size / MB:,.0f} MB"
