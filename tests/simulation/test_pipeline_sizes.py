"""Backends that are planned for pipelines: they serve the load, and one fewer does not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fermata.commands.files.placement import problem_of
from fermata.commands.main import app
from fermata.foundation.errors import ConfigError
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario, read_scenario

BAD_RATE_MAX = 0.01
LACKING = 0.02
"""A bad rate that says: there are too few backends."""


def application(name: str, alpha_ms: float, beta_ms: float, **more: float) -> dict[str, Any]:
    variant = {"name": f"{name}-1", "alpha_ms": alpha_ms, "beta_ms": beta_ms}
    return {"name": name, "slo_ms": 150, "variants": [variant], **more}


DETECT, CLASSIFY = application("detect", 4, 10), application("classify", 0.8, 5)
TRACK = application("track", 1, 6)
CROPS = [{"application": "detect"}, {"application": "classify", "fan_out": {"mean": 5}}]
OBJECTS = {"name": "objects", "slo_ms": 150, "stages": CROPS}
TRACKS = [{"application": "track"}, {"application": "classify", "fan_out": 2}]
JOINED = [*CROPS, {"application": "track", "join": True}]

CASES: dict[str, dict[str, Any]] = {
    "two stages": {"rate_rps": 300, "applications": [DETECT, CLASSIFY], "pipelines": [OBJECTS]},
    "direct requests beside": {
        "rate_rps": 400,
        "applications": [DETECT, {**CLASSIFY, "weight": 1}],
        "pipelines": [OBJECTS],
    },
    "a shared stage": {
        "rate_rps": 300,
        "applications": [DETECT, CLASSIFY, TRACK],
        "pipelines": [OBJECTS, {"name": "tracks", "slo_ms": 100, "stages": TRACKS}],
    },
    "a join": {
        "rate_rps": 260,
        "applications": [DETECT, CLASSIFY, TRACK],
        "pipelines": [{"name": "objects", "slo_ms": 200, "stages": JOINED}],
    },
}
RATES = {
    "two stages": [300, 1500],
    "direct requests beside": [200, 1200],
    "a shared stage": [150, 1050, 150],
    "a join": [260, 1300, 260],
}


def scenario(case: str) -> Scenario:
    options = {"backends": 1, "seed": 1, "duration_s": 8, "warmup_s": 2}
    return read_scenario({**options, **CASES[case]})


def planned(tmp_path: Path, *options: str, **given: Any) -> Any:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"backends": 1, **given}))
    asked = ["plan", str(path), "--size", "--time-limit-s", "1", "--json", *options]
    return CliRunner().invoke(app, asked)


@pytest.mark.parametrize("case", CASES)
def test_requests_of_queries_and_direct_ones_add_up(case: str) -> None:
    models = problem_of(scenario(case)).models
    assert [each.rate_rps for each in models] == pytest.approx(RATES[case])


@pytest.mark.parametrize("case", CASES)
def test_the_planned_backends_serve_and_one_fewer_does_not(case: str, tmp_path: Path) -> None:
    count = json.loads(planned(tmp_path, **CASES[case]).stdout)["backends_all"]
    enough, fewer = (replace(scenario(case), backends=each) for each in (count, count - 1))
    assert report(enough, simulate(enough)).worst_bad_rate <= BAD_RATE_MAX
    assert report(fewer, simulate(fewer)).worst_bad_rate > LACKING


def test_the_largest_fan_out_of_any_time_is_planned_for() -> None:
    changing = {"mean": [{"from_s": 0, "mean": 2}, {"from_s": 4, "mean": 6}]}
    stages = [CROPS[0], {**CROPS[1], "fan_out": changing}]
    given = {**CASES["two stages"], "pipelines": [{**OBJECTS, "stages": stages}]}
    models = problem_of(read_scenario({"backends": 1, **given})).models
    assert models[1].rate_rps == pytest.approx(6 * 300)


def test_a_plan_of_pipelines_needs_a_rate_and_holds_no_accuracy(tmp_path: Path) -> None:
    given = {key: value for key, value in CASES["two stages"].items() if key != "rate_rps"}
    refused = planned(tmp_path, **given)
    assert isinstance(refused.exception, ConfigError)
    assert "--rate-rps" in str(refused.exception)
    refused = planned(tmp_path, "--accuracy", "0.7", **CASES["two stages"])
    assert isinstance(refused.exception, ConfigError)
    assert "does not go with pipelines" in str(refused.exception)
