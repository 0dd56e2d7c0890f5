"""Maps of pixels: whatever a cut shows is found in the picture that it was made of."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fermata.applications.server_options import BoxOptions
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.clients.wire.tensors import add_input, from_array, split_bytes
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.inputs.reading import input_form, read_input
from fermata.deployments.frontend.requests.queries.answers import answer_of, moved
from fermata.deployments.frontend.requests.queries.parts import (
    MadeInput,
    QueryPartRecord,
    StageResult,
)
from fermata.deployments.frontend.requests.queries.transforms import make_inputs
from fermata.deployments.models.pictures.pixel_map import WHOLE, PixelMap
from fermata.deployments.models.pictures.quads import cut_quad
from fermata.deployments.specs.pipelines import ServedPipeline
from fermata.router.links.messages import Result

HEIGHT, WIDTH = 30, 40


def picture() -> Any:
    return np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def agrees(cut: Any, lies: PixelMap, whole: Any) -> bool:
    """Whether all pixels of a cut are those of the picture that their centres lie in."""
    rows, columns = np.indices(cut.shape[:2])
    found = lies.points(np.stack((columns, rows), axis=-1) + 0.5)
    x, y = np.floor(found[..., 0]).astype(int), np.floor(found[..., 1]).astype(int)
    return bool((whole[y, x] == cut).all())


@pytest.mark.parametrize("quarters", range(4))
def test_what_is_turned_lies_where_it_was(quarters: int) -> None:
    turned = np.rot90(picture(), quarters)
    assert agrees(turned, PixelMap.turned(quarters, HEIGHT, WIDTH), picture())
    assert PixelMap.turned(quarters, HEIGHT, WIDTH).keeps_boxes


def test_maps_follow_one_another() -> None:
    rng, cut, lies = random.Random(5), picture(), WHOLE
    for _ in range(4):
        left, top, quarters = rng.randrange(4), rng.randrange(4), rng.randrange(4)
        part = cut[top:, left:]
        lies = lies.after(PixelMap.moved(left, top))
        lies = lies.after(PixelMap.turned(quarters, *part.shape[:2]))
        cut = np.rot90(part, quarters)
        assert agrees(cut, lies, picture())


def test_a_line_that_runs_up_lies_where_it_was_cut_out() -> None:
    whole = picture()
    found = cut_quad(whole, np.array([10, 2, 16, 2, 16, 22, 10, 22], np.float32))
    assert found is not None
    cut, lies = found
    assert cut.shape[:2] == (6, 20)
    assert agrees(cut, lies, whole)


def test_a_slanted_line_lies_between_its_corners() -> None:
    quad = np.array([4, 10, 24, 4, 27, 12, 7, 18], np.float32)
    found = cut_quad(picture(), quad)
    assert found is not None
    cut, lies = found
    height, width = cut.shape[:2]
    ends = np.array([[0, 0], [width, 0], [width, height], [0, height]])
    np.testing.assert_allclose(lies.points(ends), quad.reshape(4, 2), atol=1e-6)
    assert not lies.keeps_boxes


@pytest.mark.parametrize(
    ("form", "given", "wanted"),
    [
        ("xyxy", [1, 2, 4, 8, 0.5], [32, 1, 38, 4, 0.5]),
        ("yxyx", [2, 1, 8, 4, 0.5], [1, 32, 4, 38, 0.5]),
        ("xywh", [1, 2, 3, 6, 0.5], [32, 1, 6, 3, 0.5]),
        ("cxcywh", [2.5, 5, 3, 6, 0.5], [35, 2.5, 6, 3, 0.5]),
        ("quad", [1, 2, 4, 2, 4, 8, 1, 8, 0.5], [38, 1, 38, 4, 32, 4, 32, 1, 0.5]),
    ],
)
def test_boxes_are_turned_back_in_the_form_that_they_came_in(
    form: Any, given: list[float], wanted: list[float]
) -> None:
    """Boxes of a picture 40 wide that was turned once, counterclockwise: x = 40 - y, y = x."""
    boxes = BoxOptions("output", form)
    lies = PixelMap.turned(1, HEIGHT, WIDTH)
    assert moved(np.array([given], np.float32), boxes, lies).tolist() == [wanted]
    first = replace(boxes, axis="first")
    columns = np.array([given], np.float32).T
    assert moved(columns, first, lies).tolist() == [[each] for each in wanted]


def application(name: str, **more: object) -> dict[str, object]:
    variant = {"name": f"{name}-v", "model": "users:load", "latency_ms": [1.0] * 8}
    given = {"shape": [3, 20, 20], "image": True, "fit": "stretch"}
    return {"name": name, "slo_ms": 100, "input": given, "variants": [variant], **more}


@pytest.fixture(scope="module")
def pipeline() -> ServedPipeline:
    """A picture is turned upright, then looked for things, which are looked at."""
    stages = [
        {"application": "orient"},
        {"application": "detect", "transform": {"turn": {}}},
        {"application": "classify", "transform": {"crop": {}}},
    ]
    applications = [
        application("orient", labels=["0", "90", "180", "270"]),
        application("detect", boxes={"output": "boxes"}),
        application("classify"),
    ]
    row = {"name": "things", "slo_ms": 100, "stages": stages}
    known = registry(read_config({"applications": applications, "pipelines": [row]}))
    model, _ = known.known("things")
    assert model.pipeline is not None
    return model.pipeline


def told(name: str, *rows: Any) -> Result:
    tensor = from_array(name, np.array(rows, np.float32))
    return Result(7, "v", 1, 0, 0, ((name, "FP32", tensor.shape, bytes(tensor.data)),))


def made_of(pipeline: ServedPipeline, stage: int, part: QueryPartRecord) -> MadeInput:
    assert part.result is not None
    before = pipeline.stages[stage - 1]
    result = StageResult(before.name, before.model, part.given, part.result, 1 << 20)
    (made,) = make_inputs(result, pipeline.stages[stage], part.origin, part.lies)
    return made


def test_boxes_behind_a_turn_are_in_the_clients_pixels(pipeline: ServedPipeline) -> None:
    request, model = ModelInferRequest(), pipeline.stages[0].model
    add_input(request, from_array(model.input.name, picture()))
    given = read_input(model, input_form(model, request), request)
    first = QueryPartRecord(0, given, result=told("output", 0.0, 1.0, 0.0, 0.0))
    turned = made_of(pipeline, 1, first)
    # Nothing was cut out, so that it has no box of its own.
    assert turned.origin is None
    # The detector saw 20 x 20 pixels of a picture 30 wide and 40 high.
    second = QueryPartRecord(1, turned.given, parent=first, lies=turned.lies)
    second.result = told("boxes", [2.0, 3.0, 6.0, 5.0, 0.9])
    crop = made_of(pipeline, 2, second)
    assert crop.origin is not None
    # There 3..9 across and 6..10 down; x = 40 - y and y = x in the client's picture.
    assert crop.origin.box == (30.0, 3.0, 34.0, 9.0)
    assert agrees(crop.given.pixels(1 << 20), crop.lies, picture())
    third = QueryPartRecord(2, crop.given, parent=second, origin=crop.origin, lies=crop.lies)
    third.result = told("output", 1.0)
    answer = answer_of(pipeline, [[first], [second], [third]], 0, 1 << 20)
    stages = json.loads(split_bytes(answer.tensors[0][3])[0])["stages"]
    assert stages["detect"][0]["outputs"]["boxes"][0][:4] == [30.0, 3.0, 34.0, 9.0]
    assert "box" not in stages["detect"][0]
    assert stages["classify"][0]["box"] == [30.0, 3.0, 34.0, 9.0]
