"""Pipelines by the router's own rule, against other rules in the same simulator."""

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from benchmarks.figures import Figure
from fermata.foundation.json_types import JsonObject
from fermata.simulator.pipelines.attainable import attainable_rps
from fermata.simulator.pipelines.bound import bound_rps
from fermata.simulator.pipelines.draw import draw, told_scenes
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.pipeline_spec import stage_policy
from fermata.simulator.scenario.scenario import Scenario, read_scenario

FIRST = 101
DRAWS, DRAWS_QUICK = 10, 2
"""Scenes that are drawn, from this seed on. Rules were chosen on other seeds."""
SECONDS, SECONDS_QUICK = 5.0, 2.0
WARMUP_S = 1.5
BAD_RATE_MAX = 0.01
STEP = 0.01
"""Peaks are found to this part of the bound."""
LOWEST, HIGHEST = 40, 115
"""Loads that are tried, in such steps."""
MANY = 8
"""With fewer backends than this, a scene has no goal of its own."""
PEERS = ("per-stage", "nexus", "inferline", "clipper++", "pard")
NEAR = 0.02
"""How far below another rule the peak may be, over the bound."""


@dataclass(frozen=True, slots=True)
class Played:
    """One scene as it went."""

    name: str
    backends: int
    peak: float
    """Highest load with at most 1 % of queries bad, over the bound."""
    attainable: float
    """An estimate of what it could be by any rule."""
    beaten_by: tuple[str, ...]
    """Rules that hold a load which is above the peak by more than `NEAR`."""
    at_13: float
    """Good queries at 1.3 times the peak's load, over the peak; the next at 2 times."""
    at_20: float
    wasted: float
    """Backend time on queries that end bad, at 2 times."""
    over: dict[str, float]
    """Good queries over those of another rule, at 1.3 times."""


def scenes(quick: bool, first: int = FIRST, draws: int | None = None) -> dict[str, Scenario]:
    """Scenes A to D, and so many that are drawn from a seed on."""
    duration_s = SECONDS_QUICK if quick else SECONDS
    told = told_scenes()
    names = ("A", "C") if quick else tuple(told)
    found = {f"scene {name}": told[name] for name in names}
    count = (DRAWS_QUICK if quick else DRAWS) if draws is None else draws
    for seed in range(first, first + count):
        found[f"seed {seed}"] = draw(seed, duration_s)
    return {name: scenario_of(each, duration_s) for name, each in found.items()}


def scenario_of(document: JsonObject, duration_s: float) -> Scenario:
    given: JsonObject = {"seed": 1, "duration_s": duration_s, "warmup_s": WARMUP_S, "rate_rps": 1}
    return read_scenario({**given, **document})


def play(document: Scenario, load_rps: float, rule: str = "door") -> RunReport:
    """One run at a load, by a rule."""
    scenario = with_rule(document, rule).at_rate(load_rps)
    return report(scenario, simulate(scenario))


def with_rule(scenario: Scenario, rule: str) -> Scenario:
    """The scenario with another rule, and the policies that belong to it."""
    numbers = {each for spec in scenario.pipelines for each in spec.graph.applications}
    applications = tuple(
        replace(each, policy=stage_policy(rule)) if number in numbers else each
        for number, each in enumerate(scenario.applications)
    )
    return replace(scenario, pipeline_rule=rule, applications=applications)


def find_peak(scenario: Scenario, bound: float) -> float:
    """The highest load with few bad queries in every pipeline, over the bound."""
    low, high = LOWEST, HIGHEST
    while high - low > 1:
        middle = (low + high) // 2
        good = play(scenario, STEP * middle * bound).worst_bad_rate <= BAD_RATE_MAX
        low, high = (middle, high) if good else (low, middle)
    return STEP * low


def play_scene(name: str, scenario: Scenario) -> Played:
    """Every figure of one scene."""
    bound = bound_rps(scenario)
    peak = find_peak(scenario, bound)
    peak_rps = peak * bound
    own, twice = play(scenario, 1.3 * peak_rps), play(scenario, 2.0 * peak_rps)
    beaten_by: list[str] = []
    over: dict[str, float] = {}
    for rule in PEERS:
        over[rule] = own.good_rps / max(1.0, play(scenario, 1.3 * peak_rps, rule).good_rps)
        above = play(scenario, (peak + NEAR + STEP) * bound, rule)
        if above.worst_bad_rate <= BAD_RATE_MAX:
            beaten_by.append(rule)
    spent = sum(each.backend_share for one in twice.pipelines for each in one.stages)
    wasted = sum(
        one.wasted * sum(each.backend_share for each in one.stages) for one in twice.pipelines
    )
    return Played(
        name,
        scenario.backends,
        peak,
        attainable_rps(scenario, BAD_RATE_MAX) / bound,
        tuple(beaten_by),
        own.good_rps / peak_rps,
        twice.good_rps / peak_rps,
        wasted / max(1e-9, spent),
        over,
    )


def compared(
    pool: Executor, quick: bool, first: int = FIRST, draws: int | None = None
) -> Iterator[Figure]:
    """Figures of all scenes."""
    played: list[Played] = []
    found = scenes(quick, first, draws)
    for one in pool.map(play_scene, found, found.values()):
        played.append(one)
        name = one.name
        goal = 0.9 if one.backends >= MANY else 0.0
        yield Figure(f"{name}: goodput over the bound", one.peak, "x", goal)
        # Of no goal: it says how much of the one above is left to rules.
        yield Figure(f"{name}: estimate of what is attainable", one.attainable, "x", 0.0)
        beaten = len(one.beaten_by)
        told = f" ({', '.join(one.beaten_by)})" if beaten else ""
        yield Figure(f"{name}: rules ahead by more than {NEAR}{told}", beaten, "", 0, at_most=True)
        yield Figure(f"{name}: good at 1.3 times the peak's load, over it", one.at_13, "x", 0.95)
        yield Figure(f"{name}: good at 2 times the peak's load, over it", one.at_20, "x", 0.95)
        wasted = f"{name}: backend time on queries that end bad, at 2 times"
        yield Figure(wasted, one.wasted, "", 0.01, at_most=True)
        for rule, goal in (("nexus", 1.1), ("clipper++", 1.1), ("pard", 1.0)):
            yield Figure(f"{name}: over {rule} at 1.3 times", one.over[rule], "x", goal)
        for rule in ("inferline", "per-stage"):
            yield Figure(f"{name}: over {rule} at 1.3 times", one.over[rule], "x", 1.0)
    many = [one for one in played if one.backends >= MANY]
    yield Figure("mean goodput over the bound", _mean([one.peak for one in many]), "x", 0.94)
    attainable = _mean([one.attainable for one in many])
    yield Figure("mean estimate of what is attainable", attainable, "x", 0.0)
    for rule, goal in (("nexus", 1.1), ("clipper++", 1.1), ("pard", 1.0)):
        mean = _mean([one.over[rule] for one in played])
        yield Figure(f"mean over {rule} at 1.3 times", mean, "x", goal)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
