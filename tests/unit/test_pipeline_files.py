"""Pipelines in a deployment file: what is read, and what is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from fermata.commands.serve import load_served
from fermata.deployments.config.deployment import DeploymentConfig, load_config, read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.protocol.server_metadata import model_config
from fermata.foundation.errors import ConfigError

ROOT = Path(__file__).parents[2]


def application(name: str, model: str = "emulated", **more: object) -> dict[str, object]:
    variant = {"name": f"{name}-v", "model": model, "alpha_ms": 1, "beta_ms": 4}
    return {"name": name, "slo_ms": 100, "variants": [variant], **more}


PICTURES = {"image": True, "shape": [3, 32, 32]}
DETECTOR = application(
    "detect", "math:floor", input=PICTURES, boxes={"output": "boxes"}, labels=["person", "car"]
)


def read(stages: list[dict[str, Any]], **more: object) -> DeploymentConfig:
    pipeline = {"name": "objects", "slo_ms": 150, "stages": stages, **more}
    applications = [DETECTOR, application("classify", input=PICTURES), application("embed")]
    return read_config({"applications": applications, "pipelines": [pipeline]})


def test_a_pipeline_is_read_as_a_graph_and_served_under_its_name() -> None:
    crop = {"crop": {"classes": ["person", 1], "score_min": 0.5, "top_k": 8}}
    config = read(
        [
            {"application": "detect"},
            {"application": "classify", "transform": crop, "classes": 3},
            {"application": "embed", "after": "detect", "transform": "math:floor"},
            {"application": "embed", "name": "all", "after": ["classify", "embed"], "join": True}
            | {"transform": "math:floor"},
        ],
        partial=True,
        newest=True,
    )
    graph = router_config(config, known_profiles(config)).pipelines["objects"]
    assert [(each.application, each.children, each.join) for each in graph.stages] == [
        (0, (1, 2), False),
        (1, (3,), False),
        (2, (3,), False),
        (2, (), True),
    ]
    assert graph.partial
    assert graph.newest
    model, _ = registry(config).find("objects")
    assert model.pipeline is not None
    assert [each.transform.kind for each in model.pipeline.stages[1:]] == [
        "crop",
        "function",
        "function",
    ]
    assert model.pipeline.stages[1].transform.crop.classes == ("person", "1")
    assert model.applications("1") == ("detect", "classify", "embed")
    assert [each.name for each in model.outputs] == ["answer"]


def test_clients_are_told_what_a_pipeline_answers_and_which_stages_find_boxes() -> None:
    stages = [{"application": "detect"}, {"application": "classify", "transform": {"crop": {}}}]
    config = read([*stages, {"application": "embed", "transform": "math:floor"}])
    model, _ = registry(config).find("objects")
    facts = model_config(model).config.parameters
    told = {name: value.string_value for name, value in facts.items()}
    # Its only output is a document: no tensor of its first stage is among them.
    assert (told["answers"], told["labels"]) == ("pipeline", "0")
    assert not {"boxes", "boxes_axis", "boxes_format", "box_labels"} & {*told}
    form = {"output": "boxes", "format": "xyxy", "axis": "last", "labels": ["person", "car"]}
    assert json.loads(told["stage_boxes"]) == {"detect": {**form, "cropped": True}}
    alone, _ = registry(config).find("detect")
    facts = model_config(alone).config.parameters
    assert facts["answers"].string_value == "boxes"
    assert facts["boxes_format"].string_value == "xyxy"
    assert json.loads(facts["box_labels"].string_value) == ["person", "car"]
    assert "stage_boxes" not in facts


@pytest.mark.parametrize(
    ("file", "name", "stages"),
    [
        ("objects", "objects", ["detect", "classify"]),
        ("words", "words", ["detect", "orient", "read"]),
        ("faces", "faces", ["detect", "classify"]),
        # What `make serve` serves.
        ("local", "objects", ["detect", "imagenet"]),
    ],
)
def test_the_samples_are_served(file: str, name: str, stages: list[str]) -> None:
    model, _ = registry(load_config(ROOT / f"deployments/{file}.yaml")).find(name)
    assert model.pipeline is not None
    assert [each.name for each in model.pipeline.stages] == stages


def test_stages_have_the_policy_for_it_unless_they_name_one() -> None:
    given = [application("a"), application("b", policy="central-queue"), application("c")]
    given[1]["variants"][0]["accuracy"] = 0.5  # type: ignore[index]
    stages = [{"application": "a"}, {"application": "b"}]
    pipelines = [{"name": "p", "slo_ms": 100, "stages": stages}]
    config = read_config({"applications": given, "pipelines": pipelines})
    assert [each.policy for each in config.applications] == ["stages", "central-queue", ""]
    options = router_config(config, known_profiles(config)).applications[0].policy_options
    assert options == {"hold": "auto"}
    # What goes to other processes reads back as it is.
    again = read_config(json.loads(config.model_dump_json()))
    assert again == config


FIRST = {"application": "detect"}
MISTAKES = [
    ([{"application": "cats"}], "'cats' is unknown; one of classify, detect, embed"),
    ([FIRST, FIRST], "'detect' is there twice; give one of them a name"),
    ([{**FIRST, "after": "classify"}], "after must be absent"),
    (
        [FIRST, {"application": "classify", "after": "embed"}, {"application": "embed"}],
        "after='embed' names no stage above it",
    ),
    ([FIRST, {"application": "classify", "after": []}], "after is empty"),
    ([FIRST, {"application": "classify", "transform": {}}], "give one of keep, function"),
    ([FIRST, {"application": "classify", "transform": "half"}], "transform='half' must be output"),
    ([FIRST, {"application": "classify", "transform": "crop"}], "as in {crop: {top_k: 5}}"),
    ([FIRST, {"application": "classify", "transform": "math:"}], "must be module:function"),
    ([FIRST, {"application": "classify", "transform": ":floor"}], "must be module:function"),
    ([FIRST, {"transform": "input"}], "config: pipelines.0.stages.1.application is missing"),
    ([FIRST, {"application": "zebra"}], "config: pipeline 'objects': stage 'zebra'"),
    ([FIRST, {"application": "classify", "fan_out": -1}], "fan_out.mean=-1"),
    ([FIRST, {"application": "classify", "fan_out": {"law": "fixed"}}], "fan_out.mean is missing"),
    ([{**FIRST, "fan_out": 2}], "fan_out must be absent; queries enter at the first stage"),
    (
        [FIRST, {"application": "classify", "join": True, "transform": "input", "fan_out": 2}],
        "fan_out must be absent: a join runs once",
    ),
    ([FIRST, {"application": "classify", "join": True}], "a join gets several results"),
    (
        [FIRST, {"application": "classify", "transform": {"crop": {"top": 1}}}],
        "allowed: classes, score_min, top_k",
    ),
]


@pytest.mark.parametrize(("stages", "message"), MISTAKES)
def test_mistakes_are_refused_in_one_line(stages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(stages)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


UNFIT = [
    ({"application": "embed", "transform": {"crop": {}}}, "embed takes no pictures"),
    ({"application": "embed", "transform": "input"}, "transform=input: detect takes"),
    (
        {"application": "classify", "transform": {"crop": {"classes": ["dog"]}}},
        "'dog' is unknown; one of person, car",
    ),
    ({"application": "embed", "transform": {"turn": {}}}, "turn: embed takes no pictures"),
    ({"application": "classify", "transform": {"turn": {}}}, "are person, car, not 0, 90, 180"),
    ({"application": "classify", "transform": "no.such:thing"}, "cannot be imported"),
    ({"application": "classify", "transform": "math:nothing"}, "cannot be imported"),
    ({"application": "classify", "transform": "math:pi"}, "'math:pi' is no function"),
]


@pytest.mark.parametrize(("stage", "message"), UNFIT)
def test_a_transform_that_does_not_fit_is_refused(stage: dict[str, Any], message: str) -> None:
    config = read([FIRST, stage])
    with pytest.raises(ConfigError) as refused:
        registry(config)
    assert message in str(refused.value)


def test_crops_need_a_detector() -> None:
    config = read(
        [{"application": "classify"}, {"application": "detect", "transform": {"crop": {}}}]
    )
    with pytest.raises(ConfigError, match="classify gives no boxes"):
        registry(config)


def test_an_slo_below_the_stages_own_times_is_refused() -> None:
    config = read([FIRST, {"application": "embed", "transform": "math:floor"}], slo_ms=9)
    with pytest.raises(ConfigError, match="slo_ms=9 of pipeline objects is below 10 ms"):
        router_config(config, known_profiles(config))


def test_two_of_one_name_are_refused() -> None:
    pipelines = [{"name": "a", "slo_ms": 100, "stages": [{"application": "a"}]}]
    with pytest.raises(ConfigError, match="two pipelines or applications have this name"):
        read_config({"applications": [application("a")], "pipelines": pipelines})


def test_stages_with_sequences_are_refused() -> None:
    pipelines = [{"name": "p", "slo_ms": 100, "stages": [{"application": "a"}]}]
    given = [application("a", sequences=True)]
    with pytest.raises(ConfigError, match="a has sequences, which stages cannot have yet"):
        read_config({"applications": given, "pipelines": pipelines})


STAGED = """
applications:
  - {name: detect, slo_ms: 100, variants: [{name: d, alpha_ms: 1, beta_ms: 4}]}
  - {name: embed, slo_ms: 100, variants: [{name: e, alpha_ms: 1, beta_ms: 4}]}
pipelines:
  - name: objects
    slo_ms: 150
    stages: [{application: detect}, {application: embed, %s}]
"""


def test_a_serving_file_of_applications_and_pipelines_alone_is_served(tmp_path: Path) -> None:
    file = tmp_path / "served.yaml"
    file.write_text(STAGED % "transform: input")
    assert [each.name for each in load_served(file).pipelines] == ["objects"]


def test_pipelines_of_a_scenario_are_not_served(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("backends: 2\nrate_rps: 10\n" + STAGED % "fan_out: {mean: 5}")
    with pytest.raises(ConfigError, match=r"pipelines=.*objects.* no transforms.* serving file"):
        load_served(file)
