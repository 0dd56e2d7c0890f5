"""Workloads drawn at random, and policies played on them."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fermata.commands.main import app
from fermata.simulator.arrivals import generate
from fermata.simulator.scenario.scenario import read_scenario
from fermata.simulator.tournament.bound import fluid_bound
from fermata.simulator.tournament.draw import draw
from fermata.simulator.tournament.h200 import grid
from fermata.simulator.tournament.pairs import pair
from fermata.simulator.tournament.play import Match, Outcome, play
from fermata.simulator.tournament.standings import standings

SEEDS = range(40)
FEW = 400
SOME = 4_000
QUICK = [seed for seed in range(60) if draw(seed, (1, 6), FEW).warmup_requests < 4 * FEW][:12]
"""Draws whose warm-up is short too."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_draw_is_a_scenario_that_plays_as_many_requests_as_asked(seed: int) -> None:
    drawn = draw(seed, requests=SOME)
    assert json.loads(json.dumps(drawn.document)) == drawn.document
    scenario = read_scenario(drawn.document)
    arrivals = generate(scenario)
    measured = int((arrivals.at_ns >= scenario.warmup_ns).sum())
    # Bursts and long phases leave the mean to chance.
    assert 0.3 * SOME < measured < 3 * SOME
    assert draw(seed, requests=SOME) == drawn


def test_draws_differ_and_cover_what_they_promise() -> None:
    drawn = [draw(seed) for seed in range(300)]
    traits = {trait for each in drawn for trait in each.traits}
    assert {"linear", "gpu", "measured", "dominated", "unreachable", "equal", "outlier"} <= traits
    assert {"poisson", "gamma", "two-state", "three-state", "periodic", "steps"} <= traits
    assert {"zipf", "changing"} <= traits
    assert any("of two kinds" in trait for trait in traits)
    assert any("of two kinds" not in trait for trait in traits)
    assert min(each.load for each in drawn) < 0.03
    assert max(each.load for each in drawn) > 1.2


def test_a_field_says_how_many_variants_there_are() -> None:
    for seed in SEEDS[:12]:
        single = read_scenario(draw(seed, (1, 1)).document)
        assert all(len(each.variants) == 1 for each in single.applications)
        several = read_scenario(draw(seed, (2, 12)).document)
        assert all(len(each.variants) > 1 for each in several.applications)


@pytest.mark.parametrize("seed", QUICK)
def test_no_policy_exceeds_the_fluid_bound(seed: int) -> None:
    match = play(draw(seed, (1, 6), FEW), ("deferred", "central-queue", "jellyfish-plus"))
    assert 0.0 < match.bound <= 1.0 + 1e-9
    for outcome in match.outcomes:
        assert outcome.refused == ""
        assert outcome.utility <= match.bound + 1e-6


def test_the_bound_of_two_kinds_lies_between_those_of_either() -> None:
    seed = next(seed for seed in SEEDS if isinstance(draw(seed).document["backends"], list))
    scenario = read_scenario(draw(seed, (1, 6), FEW).document)
    arrivals = generate(scenario)
    slow = replace(scenario, groups=tuple(replace(each, slower=6.0) for each in scenario.groups))
    ordered = [slow, scenario, replace(scenario, groups=())]
    bounds = [fluid_bound(each, arrivals) for each in ordered]
    assert bounds == sorted(bounds)


def test_the_bound_never_falls_when_backends_are_added() -> None:
    scenario = read_scenario(draw(13, (2, 12), FEW).document)
    arrivals = generate(scenario)
    fleets = [replace(scenario, backends=count, groups=()) for count in (1, 2, 4, 64)]
    bounds = [fluid_bound(each, arrivals) for each in fleets]
    assert all(more >= fewer - 1e-9 for fewer, more in pairwise(bounds))
    best = max(each.accuracy or 0.0 for each in scenario.applications[0].variants)
    assert bounds[-1] <= best + 1e-9


def test_standings_measure_regret_against_the_best_of_each_match() -> None:
    def match(seed: int, first: float, second: float) -> Match:
        outcomes = (Outcome("a", first, 0.0, 1.0), Outcome("b", second, 0.1, 2.0))
        return Match(seed, (), 0.5, 8, True, 0.9, outcomes)

    table = standings([match(1, 0.8, 0.7), match(2, 0.5, 0.6)], shown=1)
    assert [each.policy for each in table] == ["a", "b"]
    assert [each.regret_worst for each in table] == pytest.approx([10.0, 10.0])
    assert [each.regret_mean for each in table] == pytest.approx([5.0, 5.0])
    assert [each.worst for each in table] == [(2,), (1,)]
    assert table[0].violations_worst == pytest.approx(0.0)
    assert table[1].violations_worst == pytest.approx(10.0)
    assert table[0].bound_mean == pytest.approx(25.0)


def test_the_command_prints_standings_and_saves_the_worst_draws(tmp_path: Path) -> None:
    options = ["--policies", "eager,deferred", "--field", "single", "--processes", "1"]
    asked = ["tournament", "--draws", "2", "--first", "23", *options, "--worst", "1", "--json"]
    done = CliRunner().invoke(app, [*asked, "--save", str(tmp_path)])
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)
    assert {each["policy"] for each in table} == {"eager", "deferred"}
    for each in table:
        (seed,) = each["worst"]
        saved = json.loads((tmp_path / f"{each['policy']}-{seed}.json").read_text())
        assert read_scenario(saved).policy == each["policy"]


@pytest.mark.parametrize("wrong", [["--field", "some"], ["--policies", "rl"]])
def test_the_command_refuses_what_it_does_not_know(wrong: list[str]) -> None:
    done = CliRunner().invoke(app, ["tournament", *wrong])
    assert done.exit_code != 0
    assert wrong[1] in str(done.exception)


@pytest.mark.parametrize("seed", range(6))
def test_the_easier_of_a_pair_has_less_load_one_variant_or_one_backend_more(seed: int) -> None:
    document = draw(seed, (3, 12)).document
    same, stretched = (read_scenario(each) for each in pair(seed, document, "load"))
    assert stretched.rate_rps == pytest.approx(0.8 * (same.rate_rps or 0.0))
    assert stretched.duration_ns == pytest.approx(same.duration_ns / 0.8, rel=1e-6)
    fewer, more = (read_scenario(each) for each in pair(seed, document, "backend"))
    assert more.backends == fewer.backends + 1
    without, whole = (read_scenario(each) for each in pair(seed, document, "variant"))
    for one, other in zip(without.applications, whole.applications, strict=True):
        assert len(one.variants) == len(other.variants) - 1
        assert one.variants[0].profile == other.variants[0].profile
    assert read_scenario(document) == same == fewer == whole


def test_the_grid_has_twelve_loads_of_each_family_at_each_slo() -> None:
    points = list(grid())
    assert len(points) == 2 * 4 * 12
    for point in points:
        scenario = read_scenario(point.document)
        assert len(scenario.applications[0].variants) == 3
        assert 0.02 < point.load < 1.2
