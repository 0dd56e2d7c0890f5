"""Pipelines whose stages have two variants each, against the best fixed choice of them."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import product, repeat
from random import Random

from benchmarks.figures import Figure
from benchmarks.pipelines_rules import find_peak, scenario_of
from fermata.foundation.json_types import Json, JsonObject
from fermata.foundation.units import seconds
from fermata.simulator.pipelines.bound import bound_rps
from fermata.simulator.pipelines.draw import draw, told_scenes
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario

LOADS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0)
"""Over the peak of the cheapest variants."""
LOADS_QUICK = (0.2, 0.5, 0.8, 1.5)
SEEDS = (1_000_001, 1_000_002)
"""Rules were chosen on others, below 10^6."""
DRAWN = (1_000_001, 1_000_002, 1_000_003, 1_000_004)
"""Scenes of 2 to 4 stages."""
SECONDS, SECONDS_QUICK = 3.0, 1.5
CALM_S = 1.0
WARMUP_S = 5.0
"""Time until waits and losses are learnt."""
QUICKER, ACCURATE, LESS = (0.3, 0.7), (0.85, 0.98), (0.8, 0.96)
"""Second variant of a stage: run time over the first one's, accuracy of the first one, and
that of the second over it. Each is drawn."""
SLACK = 1.1
"""Queries that end well may be the lighter ones: above the bound by so much at most."""
Fixed = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A scenario, and what is known of its fixed choices."""

    scenario: Scenario
    peak_rps: float
    """Peak of the cheapest choice."""
    best: dict[Fixed, tuple[float, float]]
    """By choice: its accuracy while nothing is lost, and the rate that it can serve at most."""


def with_variants(document: JsonObject, seed: object) -> JsonObject:
    """The same with a second variant in every application."""
    rng = Random(f"variants {seed}")
    applications = document["applications"]
    assert isinstance(applications, list)
    return {**document, "applications": [_with_variant(each, rng) for each in applications]}


def _with_variant(application: Json, rng: Random) -> Json:
    assert isinstance(application, dict)
    variants = application["variants"]
    assert isinstance(variants, list)
    first = variants[0]
    assert isinstance(first, dict)
    quicker, accuracy = rng.uniform(*QUICKER), rng.uniform(*ACCURATE)
    second: dict[str, Json] = {"name": f"{first['name']}-small"}
    for key in ("alpha_ms", "beta_ms"):
        value = first[key]
        assert isinstance(value, float)
        second[key] = round(quicker * value, 3)
    second["accuracy"] = round(accuracy * rng.uniform(*LESS), 3)
    return {**application, "variants": [{**first, "accuracy": round(accuracy, 3)}, second]}


def fixed(scenario: Scenario, choice: Fixed) -> Scenario:
    """The scenario with one variant in every application."""
    applications = tuple(
        replace(each, variants=(each.variants[place],))
        for each, place in zip(scenario.applications, choice, strict=True)
    )
    return replace(scenario, applications=applications)


def accuracy_of(scenario: Scenario, load_rps: float, seed: int) -> float:
    """Accuracy of the whole over all queries of a run, those that end bad counting as 0."""
    scenario = replace(scenario, seed=seed).at_rate(load_rps)
    played = report(scenario, simulate(scenario)).pipelines
    total = 0.0
    for each in played:
        assert each.accuracy is not None
        total += each.accuracy * each.requests
    return total / sum(each.requests for each in played)


def scenes(quick: bool) -> dict[str, Scenario]:
    """Scenes A and C, and drawn ones, each with two variants a stage."""
    duration_s = SECONDS_QUICK if quick else SECONDS
    told = told_scenes()
    found = {f"scene {name}": with_variants(told[name], name) for name in ("A", "C")}
    for seed in DRAWN[:1] if quick else DRAWN:
        found[f"seed {seed}"] = with_variants(draw(seed, duration_s), seed)
    return {
        name: scenario_of({**document, "warmup_s": WARMUP_S}, duration_s)
        for name, document in found.items()
    }


def prepared(scenario: Scenario) -> Scene:
    """A scene with what bounds its fixed choices."""
    known: dict[Fixed, tuple[float, float]] = {}
    for choice in product((0, 1), repeat=len(scenario.applications)):
        alone = fixed(scenario, choice)
        bound = bound_rps(alone)
        calm = replace(alone, duration_ns=seconds(CALM_S), warmup_ns=seconds(CALM_S))
        known[choice] = accuracy_of(calm, 0.1 * bound, 1), bound
    cheapest = fixed(scenario, (1,) * len(scenario.applications))
    bound = bound_rps(cheapest)
    return Scene(scenario, find_peak(cheapest, bound) * bound, known)


def best_fixed(scene: Scene, load_rps: float, seed: int) -> float:
    """The accuracy of the whole of the best fixed choice; those that cannot be it are not run."""

    def at_most(choice: Fixed) -> float:
        accuracy, bound = scene.best[choice]
        return accuracy * min(1.0, SLACK * bound / load_rps)

    best = 0.0
    for choice in sorted(scene.best, key=at_most, reverse=True):
        if at_most(choice) > best:
            best = max(best, accuracy_of(fixed(scene.scenario, choice), load_rps, seed))
    return best


def over_fixed(scene: Scene, load: float, seeds: Sequence[int]) -> float:
    """The accuracy of the whole at a load, over that of the best fixed choice."""
    load_rps = load * scene.peak_rps
    own = sum(accuracy_of(scene.scenario, load_rps, seed) for seed in seeds)
    return own / sum(best_fixed(scene, load_rps, seed) for seed in seeds)


def variant_figures(pool: Executor, quick: bool) -> Iterator[Figure]:
    """Accuracy of the whole over that of the best fixed choice, by scene and load."""
    loads: Sequence[float] = LOADS_QUICK if quick else LOADS
    seeds = SEEDS[:1] if quick else SEEDS
    found = scenes(quick)
    ready = list(pool.map(prepared, found.values()))
    at = [(name, scene, load) for name, scene in zip(found, ready, strict=True) for load in loads]
    played = pool.map(over_fixed, [each[1] for each in at], [each[2] for each in at], repeat(seeds))
    ratios: list[float] = []
    for (name, _, load), ratio in zip(at, played, strict=True):
        ratios.append(ratio)
        told = f"{name}: accuracy of the whole at {load:g} of the cheapest pair's peak"
        yield Figure(f"{told}, over the best fixed pair", ratio, "x", 1.0)
    yield Figure("accuracy of the whole over the best fixed pair, worst", min(ratios), "x", 1.0)
    mean = sum(ratios) / len(ratios)
    yield Figure("accuracy of the whole over the best fixed pair, mean", mean, "x", 1.0)
