"""Pipelines under load: the door keeps the goodput, other rules play on the same engine."""

import pytest

from benchmarks.pipelines import options
from benchmarks.pipelines_rules import play, scenes
from benchmarks.pipelines_variants import accuracy_of, fixed, with_variants
from fermata.simulator.pipelines.bound import bound_rps
from fermata.simulator.pipelines.draw import told_scenes
from fermata.simulator.scenario.pipeline_spec import PIPELINE_RULES
from fermata.simulator.scenario.scenario import Scenario, read_scenario


def scene(name: str) -> Scenario:
    document = {"seed": 3, "rate_rps": 1, "duration_s": 0.8, "warmup_s": 0.8, **told_scenes()[name]}
    return read_scenario(document)


def test_overload_costs_no_goodput_and_no_backend_time() -> None:
    scenario = scene("C")
    bound = bound_rps(scenario)
    result = play(scenario, 1.5 * bound)
    (pipeline,) = result.pipelines
    assert result.good_rps > 0.85 * bound
    assert pipeline.wasted < 0.01
    assert pipeline.refused > 0
    # Dropping at each stage, when it is too late, loses most of it.
    assert play(scenario, 1.5 * bound, "per-stage").good_rps < 0.7 * result.good_rps


@pytest.mark.parametrize("rule", PIPELINE_RULES)
def test_below_capacity_every_rule_answers_most_queries(rule: str) -> None:
    scenario = scene("A")
    result = play(scenario, 0.5 * bound_rps(scenario), rule)
    (pipeline,) = result.pipelines
    assert sum(pipeline.ends.values()) == pipeline.requests > 0
    assert result.good_rps > 0.7 * result.offered_rps
    assert pipeline.bottleneck in ("stage-0", "stage-1")


def test_the_benchmark_draws_the_scenes_that_it_is_asked_for() -> None:
    given = options().parse_args(["--first", "1000000", "--draws", "3"])
    found = scenes(True, given.first, given.draws)
    drawn = [f"seed {seed}" for seed in range(1_000_000, 1_000_003)]
    assert list(found) == ["scene A", "scene C", *drawn]
    assert len({bound_rps(found[name]) for name in drawn}) == 3
    unasked = options().parse_args([])
    assert [name for name in scenes(False, unasked.first, unasked.draws) if "seed" in name] == [
        f"seed {seed}" for seed in range(101, 111)
    ]


PAIRS = ((0, 0), (0, 1), (1, 0), (1, 1))


@pytest.mark.parametrize(("load", "at_least"), [(0.2, 1.0), (0.7, 0.99), (0.85, 1.0), (1.5, 0.99)])
def test_variants_that_are_chosen_are_no_worse_than_any_fixed_pair(
    load: float, at_least: float
) -> None:
    document = with_variants(told_scenes()["C"], "C")
    scenario = read_scenario({"rate_rps": 1, "duration_s": 1.5, "warmup_s": 2.5, **document})
    load_rps = load * bound_rps(fixed(scenario, (1, 1)))
    pairs = [accuracy_of(fixed(scenario, pair), load_rps, 3) for pair in PAIRS]
    assert accuracy_of(scenario, load_rps, 3) >= at_least * max(pairs)


def test_a_run_is_the_same_every_time() -> None:
    scenario = scene("A")
    first, second = (play(scenario, bound_rps(scenario)) for _ in range(2))
    assert first.pipelines == second.pipelines
