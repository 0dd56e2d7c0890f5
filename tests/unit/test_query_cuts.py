"""Crops that a frontend leaves to backends: the same parts as its own, without their pixels."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from query_requests_world import World

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import RawTensor, add_input, from_array, join_bytes
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.inputs.request_input import PictureCut, RequestInput
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request
from fermata.deployments.frontend.requests.queries.parts import (
    MadeInput,
    Origin,
    StageResult,
    best_classes,
)
from fermata.deployments.frontend.requests.queries.transforms import make_inputs, reads_picture
from fermata.deployments.specs.pipelines import ServedStage, StageTransform
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import ms
from fermata.router.links.messages import CUT, Payload, Result

HEIGHT, WIDTH = 60, 80
PICTURE = {"dtype": "UINT8", "image": True, "mean": [0, 0, 0], "std": [1, 1, 1]}


def application(name: str, side: int, how: str, **more: object) -> dict[str, object]:
    variant = {"name": f"{name}-v", "model": "users:load", "latency_ms": [1.0] * 8}
    given = {**PICTURE, "shape": [3, side, side], "fit": how, "decode": "gpu"}
    return {"name": name, "slo_ms": 100, "input": given, "variants": [variant], **more}


def models(device: str = "auto", fit: str = "centre", **second: object) -> Registry:
    applications = [
        application("detect", 40, "whole", boxes={"output": "boxes"}),
        {**application("classify", 8, fit), **second},
    ]
    if device == "cpu":
        for each in applications:
            each["input"] = {**PICTURE, "shape": each["input"]["shape"]}  # type: ignore[index]
    crop = {"application": "classify", "transform": {"crop": {"score_min": 0.3}}}
    stages = [{"application": "detect"}, crop]
    pipeline = {"name": "objects", "slo_ms": 100, "stages": stages}
    given = {"applications": applications, "pipelines": [pipeline], "backend": {"device": device}}
    return registry(read_config(given))


def picture() -> Any:
    rng = np.random.default_rng(1)
    return np.asarray(Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((80, 60)))


def jpeg(**options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture()).save(out, "JPEG", **options)
    return out.getvalue()


def request(data: bytes) -> pb.ModelInferRequest:
    found = pb.ModelInferRequest(model_name="objects")
    add_input(found, RawTensor("input", "BYTES", (1,), join_bytes([data])))
    return found


def found_boxes(rid: int, *boxes: tuple[float, float, float, float]) -> Result:
    """Boxes in pixels of the detector's input, which is half as large as the picture."""
    tensors = {
        "boxes": np.array(boxes, np.float32).reshape(-1, 4),
        "scores": np.linspace(0.9, 0.2, len(boxes)).astype(np.float32),
    }
    told = tuple(
        (each.name, each.datatype, each.shape, bytes(each.data))
        for each in (from_array(name, array) for name, array in tensors.items())
    )
    return Result(rid, "detect-v", 1, 0, ms(1), told)


def stages(known: Registry) -> tuple[ServedStage, ...]:
    model, _ = known.known("objects")
    assert model.pipeline is not None
    return model.pipeline.stages


def crops(known: Registry, data: bytes, *boxes: Any, backends_cut: bool = True) -> list[MadeInput]:
    first, second = stages(known)
    given = parse_request(request(data), known, CallContext(stream=1)).input
    given = replace(given, model=first.model)
    told = first.name, first.model, given, found_boxes(77, *boxes), 10**6, backends_cut
    return make_inputs(StageResult(*told), second)


def test_a_query_knows_the_size_of_its_picture_before_it_is_decoded() -> None:
    out = io.BytesIO()
    Image.fromarray(picture()).save(out, "PNG")
    given = parse_request(request(out.getvalue()), models("cpu"), CallContext(stream=1)).input
    assert given.encoded
    assert given.frame == (HEIGHT, WIDTH)


BOXES = ((5.0, 5.0, 20.0, 15.0), (0.0, 0.0, 0.0, 9.0), (1.2, 2.4, 30.0, 20.0), (2.0, 2.0, 9.0, 9.0))
"""One of a whole number of pixels, an empty one, one of none, and one of too low a score."""


def of_numbers(name: str, shape: tuple[int, ...]) -> pb.ModelInferRequest:
    """A request that holds what the model reads, or pixels."""
    found = pb.ModelInferRequest(model_name=name)
    add_input(found, from_array("input", np.zeros(shape, np.uint8)))
    return found


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_pipeline_that_cuts_pictures_takes_nothing_else(device: str) -> None:
    known = models(device)
    world = World(known)
    refusal = world.queries.open(
        world.clock_ns,
        parse_request(of_numbers("objects", (3, 40, 40)), known, CallContext(stream=1)),
        lambda rid, outcome: None,
    )
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.message) == (
        "INVALID_ARGUMENT",
        "'objects' cuts pictures, and UINT8[3, 40, 40] is none: send a JPEG as BYTES[1], or its "
        "pixels as UINT8[height, width, 3]",
    )
    for taken in (of_numbers("objects", (60, 80, 3)), request(jpeg()), request(jpeg(quality=5))):
        parsed = parse_request(taken, known, CallContext(stream=1))
        assert not isinstance(world.queries.open(world.clock_ns, parsed, print), Refusal)


def test_boxes_of_numbers_that_are_no_picture_stay_as_they_are() -> None:
    known = models()
    first, _ = stages(known)
    given = parse_request(of_numbers("detect", (3, 40, 40)), known, CallContext(stream=1)).input
    result = StageResult(first.name, first.model, given, found_boxes(77, (1, 2, 30, 39)), 10**6)
    assert result.outputs["boxes"].tolist() == [[1, 2, 30, 39]]


def test_backends_cut_what_they_decode() -> None:
    data = jpeg()
    made = crops(models(), data, *BOXES)
    assert [each.given.cut for each in made] == [
        PictureCut(77, (10, 10, 40, 30)),
        PictureCut(77, (2, 4, 60, 40)),
    ]
    assert [each.given.frame for each in made] == [(20, 30), (36, 58)]
    for each in made:
        assert not each.given.encoded
        # The picture as it came: whoever has it not decoded can do so.
        assert bytes(each.given.data) == bytes(join_bytes([data]))


@pytest.mark.parametrize(
    ("known", "data", "cut"),
    [
        (models("cpu"), jpeg(), True),
        (models(), jpeg(progressive=True), True),
        (models(fit="line"), jpeg(), True),
        (models(), jpeg(), False),
    ],
    ids=["decoded here", "progressive", "a fit for frontends", "a backend of before"],
)
def test_others_are_cut_by_the_frontend(known: Registry, data: bytes, cut: bool) -> None:
    made = crops(known, data, *BOXES, backends_cut=cut)
    assert len(made) == 2
    for each in made:
        assert each.given.cut is None
        assert each.given.tensor.datatype == "UINT8"


def test_both_ways_choose_the_same_boxes() -> None:
    data = jpeg()
    ways = [crops(models(), data, *BOXES, backends_cut=each) for each in (True, False)]
    assert [each.origin for each in ways[0]] == [each.origin for each in ways[1]]
    assert ways[0][0].origin == Origin((10.0, 10.0, 40.0, 30.0), "", pytest.approx(0.9), ())
    for left, here in zip(*ways, strict=True):
        assert np.array_equal(left.given.pixels(10**6), here.given.pixels(10**6))


@pytest.mark.parametrize(
    ("scores", "count", "wanted"),
    [
        ([0.1, 0.7, 0.2, 0.7], 2, ["1", "3"]),
        ([0.2, 0.1, 0.2, 0.2], 2, ["0", "2"]),
        ([0.1, 0.3], 5, ["1", "0"]),
        ([0.1, 0.3], 0, []),
        ([float("nan"), 0.1, 0.3], 2, ["2", "1"]),
        ([float("-inf"), float("inf"), 0.0], 1, ["1"]),
    ],
    ids=["first of equals first", "equals at the edge", "fewer", "none", "no number", "infinite"],
)
def test_best_classes_come_in_order(scores: Any, count: int, wanted: Any) -> None:
    found = best_classes(np.array(scores, np.float32), (), count)
    assert [each["class"] for each in found] == wanted
    assert [each["score"] for each in found] == [np.float32(scores[int(each)]) for each in wanted]


def placed(given: RequestInput, rid: int) -> Payload:
    return given.mark(Arena(0).place(rid, given.tensor.datatype, given.shape, given.data))


def test_payloads_tell_of_frames_and_parts() -> None:
    (one, _) = crops(models(), jpeg(), *BOXES)
    payload = placed(one.given, 78)
    assert (payload.rid, payload.dtype, payload.shape) == (78, CUT, (1,))
    assert (payload.frame, payload.cut) == (77, (10, 10, 40, 30))


def test_a_part_travels_to_another_machine_as_it_is() -> None:
    (one, _) = crops(models(), jpeg(), *BOXES)
    arena = Arena(1 << 20)
    try:
        given = one.given
        here = given.mark(arena.place(78, given.tensor.datatype, given.shape, given.data))
        there = arena.inline(here)
    finally:
        arena.close()
    assert (here.data, there.data) == (b"", bytes(given.data))
    assert (there.segment, there.offset, there.length) == ("", 0, 0)
    assert (there.dtype, there.frame, there.cut) == (CUT, 77, here.cut)


def test_frames_are_kept_where_boxes_are_cut_out_of_them() -> None:
    known = models()
    world = World(known)
    world.queries.open(world.clock_ns, parse_request(request(jpeg()), known, CallContext(stream=1)),
                       lambda *_: None)  # fmt: skip
    first, _ = world.parts[1]
    assert placed(first.input, 5).frame == 5
    world.end(1, found_boxes(1, *BOXES))
    world.settle()
    parts = [world.parts[rid][0].input for rid in (2, 3)]
    assert [each.cut and each.cut.frame for each in parts] == [1, 1]


def test_no_frame_is_kept_for_backends_of_before() -> None:
    known = models()
    world = World(known)
    world.queries.backends_cut = False
    world.queries.open(world.clock_ns, parse_request(request(jpeg()), known, CallContext(stream=1)),
                       lambda *_: None)  # fmt: skip
    assert placed(world.parts[1][0].input, 5).frame == -1


def test_a_crop_of_a_crop_is_cut_by_the_frontend() -> None:
    known = models()
    first, second = stages(known)
    (one, _) = crops(known, jpeg(), *BOXES)
    given = replace(one.given, model=first.model)
    told = first.name, first.model, given, found_boxes(78, (4.0, 4.0, 12.0, 12.0)), 10**6, True
    result = StageResult(*told)
    (inner,) = make_inputs(result, second, one.origin)
    assert inner.given.cut is None
    # The crop is 30 x 20 pixels; its detector saw it enlarged to 40.
    assert inner.given.tensor.shape == (6, 6, 3)
    assert result.inputs["input"].shape == (20, 30, 3)
    assert np.array_equal(inner.given.pixels(10**6), one.given.pixels(10**6)[3:9, 3:9])


def test_nothing_is_decoded_for_boxes_that_are_passed_on() -> None:
    known = models()
    first, second = stages(known)
    given = parse_request(request(jpeg()), known, CallContext(stream=1)).input
    given = replace(given, model=first.model)
    assert not reads_picture(given, second, backends_cut=True)
    assert reads_picture(given, second, backends_cut=False)
    (one, _) = crops(known, jpeg(), *BOXES)
    assert reads_picture(one.given, second, backends_cut=True)
    again = replace(second, transform=StageTransform("input"))
    assert not reads_picture(given, again, backends_cut=True)
    # Whoever takes a crop for the next stage needs its pixels.
    assert reads_picture(one.given, again, backends_cut=True)
