"""Pipelines of scenario files: what is read, refused, drawn and bounded."""

from typing import Any

import pytest

from fermata.foundation.errors import ConfigError
from fermata.simulator.arrivals import generate
from fermata.simulator.pipelines.bound import bound_rps, stage_counts
from fermata.simulator.pipelines.draw import draw, told_scenes
from fermata.simulator.pipelines.rules import backends_by_stage
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.pipeline_spec import PIPELINE_RULES, FanOutSpec
from fermata.simulator.scenario.scenario import Scenario, read_scenario


def written(**changes: Any) -> dict[str, Any]:
    """Scene A as a file has it."""
    return {"rate_rps": 1000, "duration_s": 1, **told_scenes()["A"], **changes}


def with_stages(*stages: dict[str, Any]) -> dict[str, Any]:
    return written(pipelines=[{"name": "pipeline", "slo_ms": 150, "stages": list(stages)}])


def test_a_stage_follows_the_one_above_it_unless_it_names_another() -> None:
    scenario = read_scenario(
        with_stages(
            {"application": "stage-0"},
            {"application": "stage-1"},
            {"application": "stage-1", "name": "again", "after": "stage-0", "fan_out": 2},
            {"application": "stage-1", "name": "end", "after": ["stage-1", "again"], "join": True},
        )
    )
    (spec,) = scenario.pipelines
    assert [stage.children for stage in spec.graph.stages] == [(1, 2), (3,), (3,), ()]
    assert spec.graph.joins == (3,)
    assert stage_counts(spec) == [1.0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([{"application": "nobody"}], "names no application"),
        ([{"application": "stage-0", "after": "stage-1"}], "must be absent"),
        ([{"application": "stage-0"}, {"application": "stage-0"}], "two stages"),
        ([{"application": "stage-0"}, {"application": "stage-1", "after": "x"}], "names no stage"),
        ([{"application": "stage-0", "join": True}], "must begin"),
        ([], "must begin"),
    ],
)
def test_stages_that_make_no_sense_are_refused(stages: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_scenario(with_stages(*stages))


@pytest.mark.parametrize(
    "changes",
    [{"popularity": "equal"}, {"arrivals": {"process": "periodic"}}, {"pipeline_rule": "best"}],
)
def test_what_does_not_go_with_pipelines_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read_scenario(written(**changes))


def test_stages_have_requests_of_their_own_where_they_have_a_weight() -> None:
    assert read_scenario(written()).shares == (0.0, 0.0)
    first, second = told_scenes()["A"]["applications"]
    scenario = read_scenario(written(applications=[first, {**second, "weight": 3}]))
    assert scenario.shares == (0.0, 0.75)
    assert scenario.pipeline_shares == (0.25,)
    arrived = generate(scenario).application
    assert set(arrived.tolist()) == {1, 2}


def test_a_fan_out_that_changes_does_so_at_its_times() -> None:
    spec = FanOutSpec(((0, 2.0), (100, 5.0)), "geometric")
    assert [spec.at(since_ns) for since_ns in (-50, 0, 99, 100)] == [2.0, 2.0, 2.0, 5.0]
    assert spec.mean == 5.0


def test_the_bound_is_that_of_the_best_batches_by_hand() -> None:
    best = max(
        16_000 / ((10 + 4 * first) / first + 5 * (5 + 0.8 * second) / second)
        for first in range(1, 35)
        if (second := int((150 - 10 - 4 * first - 5) / 0.8)) > 0
    )
    assert bound_rps(read_scenario(written())) == pytest.approx(best, rel=1e-3)


def test_backends_of_stages_are_shared_by_their_work() -> None:
    homes = backends_by_stage(read_scenario(written()))
    assert len(homes) == 16
    assert {homes.count(0), homes.count(1)} <= {7, 8, 9}


@pytest.mark.parametrize("seed", range(20))
def test_every_draw_is_a_scenario_with_a_bound(seed: int) -> None:
    scenario: Scenario = read_scenario({"rate_rps": 1, **draw(seed, 2.0)})
    assert 2 <= len(scenario.pipelines[0].names) <= 4
    assert bound_rps(scenario) > 0.0


def test_the_routers_own_rule_is_the_default() -> None:
    assert read_scenario(written()).pipeline_rule == PIPELINE_RULES[0] == "door"


def test_results_may_take_their_time_to_the_next_stage() -> None:
    found = []
    for hand_on_ms in (0, 3):
        stages = [{"application": "stage-0"}, {"application": "stage-1", "fan_out": 1}]
        told = with_stages(*stages) | {"rate_rps": 20, "hand_on_ms": hand_on_ms}
        eager = {"policy": "stages", "policy_options": {"hold": "eager"}}
        told["applications"] = [{**each, **eager} for each in told["applications"]]
        scenario = read_scenario(told)
        ran = report(scenario, simulate(scenario))
        assert ran.worst_bad_rate == 0.0
        found.append(ran.p50_ms)
    # Runs of one request each: 14 ms, and 5.8.
    assert found == pytest.approx([19.8, 22.8])
