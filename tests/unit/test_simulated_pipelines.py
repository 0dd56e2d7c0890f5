"""Pipelines of a serving file in simulations: fan-outs of the file, or of the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fermata.clients.describe import ModelDescription
from fermata.commands.files.workload import LoadOptions, load_workload
from fermata.commands.load import scenario_load
from fermata.commands.main import app
from fermata.deployments.config.deployment import load_config
from fermata.foundation.errors import ConfigError
from fermata.simulator.arrivals import generate
from fermata.simulator.scenario.pipeline_spec import FanOutSpec, PipelineSpec
from fermata.simulator.scenario.scenario import Scenario

ROOT = Path(__file__).parents[2]
FIVE = {"fan_out": {"mean": 5}}


def application(name: str, **more: object) -> dict[str, object]:
    variants = [{"name": f"{name}-v", "alpha_ms": 1, "beta_ms": 4}]
    return {"name": name, "slo_ms": 150, "variants": variants, **more}


def written(folder: Path, *stages: dict[str, Any], **more: object) -> Path:
    """A serving file with a pipeline of these stages behind `detect`."""
    pipeline = {"name": "objects", "slo_ms": 150, "stages": [{"application": "detect"}, *stages]}
    told = {
        "applications": [application("detect"), application("embed")],
        "pipelines": [{**pipeline, **more}],
        "backend": {"count": 2, "device": "emulated"},
    }
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


def load(file: Path, *fan_outs: str) -> Scenario:
    return load_workload(file, LoadOptions(rate_rps=50.0, duration_s=2.0, fan_outs=fan_outs))


def fan_outs(scenario: Scenario) -> tuple[tuple[FanOutSpec, ...], ...]:
    (found,) = scenario.pipelines
    assert isinstance(found, PipelineSpec)
    return found.fan_outs


def test_fan_outs_of_a_serving_file_are_played(tmp_path: Path) -> None:
    crops = {"application": "embed", "transform": "math:floor", **FIVE}
    scenario = load(written(tmp_path, crops, partial=True, weight=3))
    (pipeline,) = scenario.pipelines
    assert (pipeline.name, pipeline.graph.partial, pipeline.weight) == ("objects", True, 3.0)
    assert pipeline.names == ("detect", "embed")
    assert pipeline.fan_outs == ((FanOutSpec(((0, 5.0),), "geometric"),), ())
    # Stages have requests of their own only where the file gives them a weight.
    assert set(generate(scenario).application.tolist()) == {2}


def test_what_hands_on_each_result_makes_one_request_each(tmp_path: Path) -> None:
    join = {"application": "embed", "name": "all", "join": True, "transform": "input"}
    scenario = load(written(tmp_path, {"application": "embed", "transform": "input"}, join))
    one = FanOutSpec()
    assert fan_outs(scenario) == ((one,), (one,), ())


def test_the_command_line_says_what_the_file_does_not(tmp_path: Path) -> None:
    crops = {"application": "embed", "transform": "math:floor"}
    file = written(tmp_path, crops)
    assert fan_outs(load(file, "embed=3")) == ((FanOutSpec(((0, 3.0),)),), ())
    (geometric,) = fan_outs(load(file, "objects.embed={mean: 3}"))[0]
    assert geometric == FanOutSpec(((0, 3.0),), "geometric")
    # It is taken in place of the file's, as all options are.
    file = written(tmp_path, {**crops, **FIVE})
    assert fan_outs(load(file, "embed=0.5"))[0][0].mean == 0.5


def test_fan_outs_of_a_scenario_may_be_given_too(tmp_path: Path) -> None:
    told = yaml.safe_load(written(tmp_path, {"application": "embed"}).read_text())
    del told["backend"]
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump({**told, "backends": 2}))
    assert fan_outs(load(file, "embed=3"))[0][0].mean == 3.0


@pytest.mark.parametrize(
    ("stage", "given", "message"),
    [
        ({"transform": "math:floor"}, "", "stage 'embed': fan_out is not known; say fan_out"),
        ({"transform": "math:floor"}, "", "or --fan-out embed=MEAN"),
        ({"transform": "input", "when": {"score_min": 1}}, "", "stage 'embed': fan_out is not"),
        ({"transform": "input"}, "classify=3", "--fan-out='classify=3': names no stage that"),
        ({"transform": "input"}, "detect=3", "one of embed"),
        ({"transform": "input"}, "3", "must be STAGE=MEAN"),
        ({"transform": "input"}, "embed=many", "must be STAGE=MEAN"),
        ({"transform": "input"}, "embed=-1", "fan_out=-1"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    tmp_path: Path, stage: dict[str, Any], given: str, message: str
) -> None:
    file = written(tmp_path, {"application": "embed", **stage})
    with pytest.raises(ConfigError) as refused:
        load(file, *filter(None, [given]))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_function_that_calls_stages_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, {"application": "embed"}, function="asyncio:sleep")
    with pytest.raises(ConfigError, match=r"function='asyncio:sleep': .* write a scenario"):
        load(file)


def test_the_command_plays_a_pipeline_of_a_serving_file(tmp_path: Path) -> None:
    file = written(tmp_path, {"application": "embed", "transform": "math:floor"})
    given = ["simulate", str(file), "--rate-rps", "20", "--duration-s", "2", "--json"]
    done = CliRunner().invoke(app, [*given, "--fan-out", "embed=2"])
    assert done.exit_code == 0, done.output
    (pipeline,) = json.loads(done.stdout)["pipelines"]
    assert (pipeline["name"], pipeline["bad_rate"]) == ("objects", 0.0)
    assert [each["requests"] for each in pipeline["stages"]][1] > 40


def test_load_is_sent_to_the_pipelines_of_a_file(tmp_path: Path) -> None:
    file = written(tmp_path, {"application": "embed", "transform": "input"})
    told = yaml.safe_load(file.read_text())
    told["applications"].append(application("alone"))
    file.write_text(yaml.safe_dump(told))

    def ask(name: str) -> ModelDescription:
        return ModelDescription(name, "input", "FP32", (2,), "output", 0, 0)

    targets, due, *_ = scenario_load(load(file), ask, 0, "8x8")
    assert {each.model for each in targets} == {"alone", "objects"}
    assert set(due.target.tolist()) == {0, 1}


SAMPLES = {"objects": "objects", "words": "words", "faces": "faces", "local": "objects"}


@pytest.mark.parametrize("file", SAMPLES)
def test_the_samples_say_their_fan_outs(file: str) -> None:
    (pipeline,) = load_config(ROOT / f"deployments/{file}.yaml").pipelines
    assert pipeline.name == SAMPLES[file]
    for stage in pipeline.stages[1:]:
        assert stage.fan_out is not None or stage.transform.turn is not None
