"""Placement: balance within ten seconds, proven optima, few moves (Symphony appendix A)."""

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.figures import Figure, run
from fermata.partitioner.plan import PlacedModel, Problem, SubCluster
from fermata.partitioner.solution import PlacementSolution
from fermata.partitioner.solver.balance import Balance
from fermata.partitioner.solver.search import greedy
from fermata.partitioner.solver.solve import solve
from fermata.profiles.store import load_table

MEAN_RATE_RPS = 100.0
RATE_MAX_RPS = 1e6
MEMORY_BYTES = 80 * 2**30
REDRAWN = 0.1
"""Share of models whose rate has changed at the next epoch."""
COST_SHARE = 0.05
"""C_max, as a share of what loading every model once would cost."""


def instance(models: int, places: int, seed: int) -> Problem:
    """Models drawn from the H200 profiles, specialised copies among them, exponential rates."""
    rng = random.Random(f"{seed} {models} {places}")
    zoo = load_table("h200-eager").profiles
    drawn: list[PlacedModel] = []
    for number in range(models):
        profile = rng.choice(zoo)
        drawn.append(
            PlacedModel(
                f"{profile.name}-{number}",
                rng.expovariate(1 / MEAN_RATE_RPS),
                profile.static_bytes,
                profile.dynamic_bytes_at(profile.batches[-1]),
                profile.load_ns / 1e6,
            )
        )
    sub_clusters = tuple(
        SubCluster(f"sub-{number}", RATE_MAX_RPS, MEMORY_BYTES) for number in range(places)
    )
    return Problem(tuple(drawn), sub_clusters)


def redrawn(problem: Problem, solution: PlacementSolution, seed: int) -> Problem:
    """The problem an epoch later: some rates are new, and what runs may not be disrupted much."""
    rng = random.Random(seed)
    models = list(problem.models)
    for index in rng.sample(range(len(models)), int(REDRAWN * len(models))):
        models[index] = replace(models[index], rate_rps=rng.expovariate(1 / MEAN_RATE_RPS))
    cost_max = COST_SHARE * sum(model.load_cost for model in models)
    return replace(problem, models=tuple(models), current=solution.plan, load_cost_max=cost_max)


def random_search(problem: Problem, seconds: float) -> tuple[float, float]:
    """Imbalance of rate and memory of the best of random assignments (appendix A.2)."""
    balance = Balance(problem)
    rng = np.random.default_rng(0)
    best, found = np.inf, (np.inf, np.inf)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        homes = rng.integers(0, balance.places, balance.count)
        objective = balance.objective(homes)
        if objective < best and balance.feasible(homes):
            best, found = objective, balance.imbalance(homes)
    return found


def brute_force(problem: Problem) -> float:
    """The least objective of all assignments; the first model may as well stay where it is."""
    balance = Balance(problem)
    rate = balance.load / balance.load_target[0]
    static = balance.static_bytes / balance.static_target[0]
    choices = np.array(list(itertools.product(range(balance.places), repeat=balance.count - 1)))
    homes = np.concatenate([np.zeros((len(choices), 1), np.int64), choices], axis=1)
    off = [np.zeros(len(homes)), np.zeros(len(homes))]
    for place in range(balance.places):
        for values, worst in ((rate, off[0]), (static, off[1])):
            np.maximum(worst, np.abs((homes == place) @ values - 1.0), out=worst)
    return float((off[0] + balance.weight * off[1]).min())


def balanced(models: int, places: int, goal: float, seconds: float, seeds: int) -> Iterator[Figure]:
    """The worst over some redraws."""
    rate, memory, least = [], [], []
    for seed in range(seeds):
        problem = instance(models, places, seed)
        found = solve(problem, seconds, seed=seed)
        rate.append(found.rate_imbalance)
        memory.append(found.memory_imbalance)
        if goal > 0.1:
            others = random_search(problem, seconds)
            pairs = zip(others, (found.rate_imbalance, found.memory_imbalance), strict=True)
            least.append(min(other / mine for other, mine in pairs))
    name = f"{models} models into {places}, {seconds:g} s, worst of {seeds}: imbalance of"
    yield Figure(f"{name} rate", 100 * max(rate), "%", goal, at_most=True)
    yield Figure(f"{name} memory", 100 * max(memory), "%", goal, at_most=True)
    if least:
        yield Figure("random search in the same time: how much worse", min(least), "x", 20)


def proven(seeds: int) -> Iterator[Figure]:
    worst, optima = 0.0, 0
    for seed in range(seeds):
        problem = instance(12, 3, seed)
        found = solve(problem, 10.0)
        optima += found.proven
        worst = max(worst, abs(found.objective - brute_force(problem)))
    yield Figure(f"12 models into 3: optima proven, of {seeds}", optima, "", seeds)
    yield Figure("12 models into 3: furthest from brute force", worst, "", 1e-6, at_most=True)


def small(seconds: float) -> Iterator[Figure]:
    problem = instance(50, 4, 0)
    found = solve(problem, seconds)
    start = Balance(problem).objective(greedy(Balance(problem)))
    worst = 100 * max(found.rate_imbalance, found.memory_imbalance)
    yield Figure("50 models into 4: worse of both imbalances", worst, "%", 0.5, at_most=True)
    yield Figure(
        "50 models into 4: objective of the start over ours", start / found.objective, "x", 1
    )
    name = f"50 models into 4: absolute gap (bound {found.bound:.3g})"
    yield Figure(name, found.gap, "", found.objective, at_most=True)


def replanned(seconds: float, seeds: int) -> Iterator[Figure]:
    spent, rate, memory = [], [], []
    for seed in range(seeds):
        problem = instance(800, 20, seed)
        first = solve(problem, seconds, seed=seed)
        later = redrawn(problem, first, seed)
        found = solve(later, seconds, seed=seed)
        assert later.load_cost_max is not None
        spent.append(found.cost / later.load_cost_max)
        rate.append(found.rate_imbalance)
        memory.append(found.memory_imbalance)
    name = f"re-plan of 800 into 20 after 10 % of the rates changed, worst of {seeds}:"
    yield Figure(f"{name} load cost over C_max", max(spent), "x", 1, at_most=True)
    yield Figure(f"{name} imbalance of rate", 100 * max(rate), "%", 1, at_most=True)
    yield Figure(f"{name} imbalance of memory", 100 * max(memory), "%", 1, at_most=True)


def measure(quick: bool) -> Iterator[Figure]:
    seconds = 10.0
    seeds = 1 if quick else 3
    yield from balanced(800, 20, 0.3, seconds, seeds)
    yield from balanced(400, 4, 0.05, seconds, seeds)
    yield from proven(2 if quick else 5)
    yield from small(seconds)
    yield from replanned(seconds, seeds)


if __name__ == "__main__":
    run("Placement", measure)
