"""Conditions of stages: `when` leaves out what need not run, and the answer says so."""

from typing import Any

import numpy as np
import pytest
from query_requests_world import World, application, result_of

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import add_input, from_array, to_array
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.links.messages import HandedOn, QueryPart, Result

LABELS = ["cat", "dog"]
SURE = {"application": "large", "transform": "input", "when": {"score_below": 0.6}}


def named(name: str, labels: list[str], **more: object) -> dict[str, object]:
    return {**application(name, 2), "labels": labels, **more}


PICTURES = {"image": True, "dtype": "UINT8", "shape": [3, 8, 8]}
APPLICATIONS = [
    named("small", LABELS),
    named("large", LABELS),
    named(
        "finder",
        ["person", "car"],
        input=PICTURES,
        boxes={"output": "boxes"},
        # Emulated models find no boxes.
        variants=[{"name": "finder-v", "model": "math:floor", "latency_ms": [1.0] * 8}],
    ),
    named("namer", LABELS, input=PICTURES),
]


def read(*stages: dict[str, Any], first: str = "small") -> DeploymentConfig:
    """A pipeline `p` of these stages behind `small`, a classifier of two classes."""
    pipeline = {"name": "p", "slo_ms": 100, "stages": [{"application": first}, *stages]}
    return read_config({"applications": APPLICATIONS, "pipelines": [pipeline]})


def opened(*stages: dict[str, Any]) -> World:
    world = World(registry(read(*stages)))
    world.open("p")
    return world


def found_by_a_detector(when: dict[str, Any], found: list[tuple[float, int]]) -> World:
    """`namer` runs under a condition on the boxes that `finder` has found."""
    stage = {"application": "namer", "transform": "input", "when": when}
    world = World(registry(read(stage, first="finder")))
    request = pb.ModelInferRequest(model_name="p")
    add_input(request, from_array("input", np.zeros((8, 8, 3), np.uint8)))
    parsed = parse_request(request, world.models)
    world.queries.open(world.clock_ns, parsed, world.note)
    rows = [[0.0, 0.0, 4.0, 4.0, score, number] for score, number in found]
    tensor = from_array("boxes", np.array(rows, np.float32).reshape(-1, 6))
    told = tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)
    world.end(1, Result(1, "v", 1, 0, ms(1), (told,)))
    world.settle()
    return world


def test_a_large_model_is_asked_where_a_small_one_is_not_sure() -> None:
    world = opened(SURE)
    world.found(1, 0.45, 0.55)
    assert world.take()[1:] == [QueryPart("p", 1, 1), HandedOn(1)]
    assert to_array(world.parts[2][0].input.tensor).tolist() == [0.0, 0.0]
    world.found(2, 0.1, 0.9)
    answer = world.answer()
    assert (len(answer["stages"]["large"]), answer["left_out"]) == (1, {})


def test_the_answer_says_what_a_condition_left_out() -> None:
    world = opened(SURE)
    world.found(1, 0.25, 0.75)
    # The router hears of a result that makes nothing.
    assert world.take()[1:] == [HandedOn(1)]
    answer = world.answer()
    assert not answer["partial"]
    assert answer["stages"]["large"] == []
    found = {"stage": "small", "found": 0, "class": "dog", "score": 0.75}
    assert answer["left_out"] == {"large": [{"of": ["small", 0], "when": found}]}


def test_answers_of_pipelines_without_conditions_are_as_they_were() -> None:
    world = opened({"application": "large", "transform": "input"})
    world.found(1, 0.5, 0.5)
    world.found(2, 0.5, 0.5)
    assert set(world.answer()) == {"pipeline", "partial", "stages"}


CLASSES = [
    ({"classes": ["dog"]}, (0.2, 0.8), True),
    ({"classes": ["dog"]}, (0.8, 0.2), False),
    ({"classes": [1]}, (0.2, 0.8), True),
    ({"classes": ["dog"], "score_min": 0.5}, (0.2, 0.4), False),
    ({"classes": ["dog"], "score_min": 0.5}, (0.2, 0.5), True),
    ({"score_min": 0.5}, (0.5, 0.1), True),
    # Just what `score_min` takes, `score_below` leaves.
    ({"score_below": 0.5}, (0.5, 0.1), False),
    # None of those: another class, or one that is not sure.
    ({"classes": ["dog"], "score_min": 0.5, "found_max": 0}, (0.2, 0.4), True),
    ({"classes": ["dog"], "score_min": 0.5, "found_max": 0}, (0.2, 0.6), False),
]


@pytest.mark.parametrize(("when", "scores", "holds"), CLASSES)
def test_a_condition_asks_for_the_top_class_of_a_classifier(
    when: dict[str, Any], scores: tuple[float, float], holds: bool
) -> None:
    world = opened({"application": "large", "transform": "input", "when": when})
    world.found(1, *scores)
    assert bool(world.parts) is holds


BOXES = [
    ({"found_min": 1}, [(0.9, 0)], True),
    ({"found_min": 1}, [], False),
    ({"found_min": 2}, [(0.9, 0)], False),
    ({"found_min": 2, "score_min": 0.5}, [(0.9, 0), (0.4, 0)], False),
    ({"found_min": 2, "score_min": 0.5}, [(0.9, 0), (0.5, 1)], True),
    ({"classes": ["car"]}, [(0.9, 0)], False),
    ({"classes": ["car"]}, [(0.9, 0), (0.1, 1)], True),
    ({"found_max": 0}, [], True),
    ({"found_max": 0}, [(0.2, 0)], False),
    ({"found_max": 0, "score_min": 0.5}, [(0.2, 0)], True),
    ({"score_min": 0.2, "score_below": 0.5}, [(0.9, 0), (0.1, 0)], False),
    ({"score_min": 0.2, "score_below": 0.5}, [(0.9, 0), (0.3, 0)], True),
]


@pytest.mark.parametrize(("when", "found", "holds"), BOXES)
def test_a_condition_counts_the_boxes_of_a_detector(
    when: dict[str, Any], found: list[tuple[float, int]], holds: bool
) -> None:
    world = found_by_a_detector(when, found)
    assert bool(world.parts) is holds
    if not holds:
        (left,) = world.answer()["left_out"]["namer"]
        assert set(left["when"]) == {"stage", "found"}


AFTER = {"application": "large", "name": "again", "transform": "input"}


def test_a_condition_may_ask_a_stage_further_above() -> None:
    when = {"stage": "small", "classes": ["dog"]}
    middle = {"application": "large", "transform": "input"}
    for scores, holds in (((0.1, 0.9), True), ((0.9, 0.1), False)):
        world = opened(middle, {**AFTER, "when": when})
        world.found(1, *scores)
        # What lies between has another opinion.
        world.found(2, scores[1], scores[0])
        assert bool(world.parts) is holds
        if not holds:
            (left,) = world.answer()["left_out"]["again"]
            assert (left["of"], left["when"]["stage"]) == (["large", 0], "small")


JOIN = {"application": "large", "name": "join", "join": True, "transform": "input"}


def test_beyond_a_join_all_results_of_a_stage_count() -> None:
    one = {"application": "large", "name": "one", "after": "small", "transform": "input"}
    last = {**AFTER, "when": {"stage": "one", "classes": ["dog"]}}
    for scores, holds in (((0.1, 0.9), True), ((0.9, 0.1), False)):
        world = opened(one, {**JOIN, "after": "one"}, last)
        world.found(1, 0.5, 0.5)
        world.found(2, *scores)
        world.found(3, 0.5, 0.5)
        assert bool(world.parts) is holds


def test_a_join_runs_without_what_a_condition_left_out() -> None:
    world = opened(SURE, {**JOIN, "after": "large"})
    world.found(1, 0.1, 0.9)
    assert world.take()[1:] == [QueryPart("p", 2, 1), HandedOn(1)]
    world.found(2, 0.5, 0.5)
    answer = world.answer()
    assert (len(answer["stages"]["join"]), len(answer["left_out"]["large"])) == (1, 1)


def test_two_stages_of_opposite_conditions_share_the_results() -> None:
    sure = {**AFTER, "after": "small", "when": {"score_min": 0.6}}
    for scores, stage in (((0.1, 0.9), 2), ((0.5, 0.5), 1)):
        world = opened(SURE, sure)
        world.found(1, *scores)
        assert world.take()[1:] == [QueryPart("p", stage, 1), HandedOn(1)]


def test_scores_may_be_those_of_another_output() -> None:
    world = opened(
        {"application": "large", "transform": "input"}
        | {"when": {"scores": "sureness", "score_below": 0.5}}
    )
    tensors = result_of(1, 0.9, 0.1).tensors
    sureness = from_array("sureness", np.array([0.3], np.float32))
    told = sureness.name, sureness.datatype, sureness.shape, bytes(sureness.data)
    world.end(1, Result(1, "v", 1, 0, ms(1), (*tensors, told)))
    world.settle()
    assert len(world.parts) == 1


def test_a_result_without_what_is_asked_for_is_an_error_that_names_it() -> None:
    world = opened({**SURE, "when": {"scores": "sureness", "score_below": 0.5}})
    world.found(1, 0.5, 0.5)
    assert isinstance(world.refusal(), Refusal)
    assert "when of stage 'large': small gave no output 'sureness'" in world.refusal().message


def of(when: object) -> list[dict[str, Any]]:
    return [{"application": "large", "transform": "input", "when": when}]


MISTAKES = [
    (of({}), "say classes, score_min, score_below, found_min or found_max"),
    (of({"stage": "small"}), "say classes, score_min"),
    (of({"class": "dog"}), "allowed: stage, classes, score_min"),
    (of({"score_min": 0.6, "score_below": 0.6}), "score_below=0.6 must be above score_min=0.6"),
    (of({"found_min": 3, "found_max": 2}), "found_max=2 must be at least found_min=3"),
    (of({"found_min": -1}), "found_min=-1"),
    (of({"found_min": 0}), "found_min=0 always holds; say found_max too"),
    (of({"score_min": float("nan")}), "score_min=nan"),
    (of({"stage": "small2", "score_min": 1}), "when.stage='small2' is unknown; one of small"),
    (of({"stage": "large", "score_min": 1}), "when.stage='large' is unknown; one of small"),
    (
        [{**JOIN, "when": {"score_min": 0.5}}],
        "stage 'join': when must be absent: a join runs once; give one to a stage before or after",
    ),
    (
        [
            {"application": "large", "name": "a", "after": "small"},
            {"application": "large", "name": "b", "after": "small"},
            {**AFTER, "after": ["a", "b"], "when": {"stage": "a", "score_min": 0.5}},
        ],
        "when.stage='a' does not stand before it on every way; one of small",
    ),
]


@pytest.mark.parametrize(("stages", "message"), MISTAKES)
def test_mistakes_are_refused_in_one_line(stages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(*stages)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_first_stage_and_those_of_functions_have_no_condition() -> None:
    stages = [{"application": "small", "when": {"score_min": 0.5}}]
    applications = [application("small", 2)]
    pipeline: dict[str, object] = {"name": "p", "slo_ms": 100, "stages": stages}
    with pytest.raises(ConfigError, match="when must be absent; queries enter at the first stage"):
        read_config({"applications": applications, "pipelines": [pipeline]})
    pipeline["function"] = "math:floor"
    with pytest.raises(ConfigError, match="when must be absent where a function calls stages"):
        read_config({"applications": applications, "pipelines": [pipeline]})


UNFIT = [
    ("small", {"classes": ["cow"]}, "when.classes: 'cow' is unknown; one of cat, dog"),
    ("finder", {"classes": ["dog"]}, "when.classes: 'dog' is unknown; one of person, car"),
    ("small", {"found_min": 2}, "when.found_min=2: small finds one class"),
    ("small", {"classes": [7]}, "when.classes: '7' is unknown; one of cat, dog, or a number below"),
]


@pytest.mark.parametrize(("first", "when", "message"), UNFIT)
def test_a_condition_that_does_not_fit_the_model_is_refused(
    first: str, when: dict[str, Any], message: str
) -> None:
    last = "large" if first == "small" else "namer"
    config = read({"application": last, "transform": "input", "when": when}, first=first)
    with pytest.raises(ConfigError) as refused:
        registry(config)
    assert message in str(refused.value)
