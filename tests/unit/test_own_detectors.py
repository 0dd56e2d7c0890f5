"""Boxes of anybody's detector come back in pixels of the client's frame."""

import io
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from fermata.applications.server_options import BoxOptions
from fermata.clients.network.adaptation import original_boxes
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import (
    RawTensor,
    add_input,
    from_array,
    join_bytes,
    response_tensors,
    to_array,
)
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.protocol.replies import response_of, stream_response_of
from fermata.deployments.frontend.protocol.server_metadata import model_config
from fermata.deployments.models.pictures.boxes import Placement, in_frame
from fermata.deployments.models.pictures.decoding import fit
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import Fit, ImageSpec
from fermata.foundation.errors import ConfigError
from fermata.router.links.messages import Result

ENTRY = {
    "name": "gate",
    "slo_ms": 100,
    "input": {"shape": [3, 64, 64], "image": True, "fit": "whole"},
    "boxes": {"output": "boxes", "format": "xywh"},
    "variants": [{"name": "mine", "model": "my:load", "latency_ms": [5.0]}],
}


def served(**changes: object) -> Registry:
    config = read_config({"backend": {"device": "cpu"}, "applications": [{**ENTRY, **changes}]})
    assert known_profiles(config)
    return registry(config)


def answer(
    models: Registry, *tensors: RawTensor, width: int = 128, height: int = 96
) -> pb.ModelInferResponse:
    """The answer to a picture of that size."""
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "PNG")
    request = pb.ModelInferRequest(model_name="gate")
    add_input(request, RawTensor("input", "BYTES", (1,), join_bytes([out.getvalue()])))
    result = Result(
        1, "mine", 1, 0, 0, tuple((t.name, t.datatype, t.shape, bytes(t.data)) for t in tensors)
    )
    return response_of(parse_request(request, models), result, 0)


def test_an_own_detectors_boxes_are_in_the_clients_pixels() -> None:
    # The square of 64 shows the frame of 128 x 96 at half its size.
    boxes = from_array("boxes", np.array([[1, 2, 10, 20], [60, 40, 10, 20]], np.float32))
    scores = from_array("scores", np.array([0.5, 0.25], np.float32))
    found = {
        each.name: to_array(each) for each in response_tensors(answer(served(), boxes, scores))
    }
    # The second one ends below the frame's 96 rows and right of its 128 columns: it is cut there.
    assert found["boxes"].tolist() == [[2, 4, 20, 40], [120, 80, 8, 16]]
    assert found["scores"].tolist() == [0.5, 0.25]


@pytest.mark.parametrize("how", get_args(Fit))
@pytest.mark.parametrize(("width", "height"), [(400, 300), (300, 400), (101, 67), (640, 100)])
def test_a_spot_is_found_where_it_is_in_the_frame(how: Fit, width: int, height: int) -> None:
    frame = np.zeros((height, width, 3), np.uint8)
    left, top, side = width // 2 - 10, height // 2 - 14, 22
    frame[top : top + side, left : left + side] = 255
    spec = ImageSpec(200, 200, fit=how, resize=210)
    rows, columns = np.nonzero(fit(frame, spec)[..., 0] > 127)
    box = [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]
    placement = Placement.of(spec, (height, width))
    found = in_frame(np.array(box, np.float32), BoxOptions(), placement)[0]
    off = max(1.0, *placement.scale)
    assert np.abs(found - [left, top, left + side, top + side]).max() <= off


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "uint16"])
def test_every_format_says_the_same_box(dtype: str) -> None:
    placement = Placement.of(ImageSpec(50, 100), (100, 300))
    # Three times as wide, twice as high: (10, 20)-(30, 40) is (30, 40)-(90, 80).
    for how, given, wanted in (
        ("xyxy", [10, 20, 30, 40], [30, 40, 90, 80]),
        ("yxyx", [20, 10, 40, 30], [40, 30, 80, 90]),
        ("xywh", [10, 20, 20, 20], [30, 40, 60, 40]),
        ("cxcywh", [20, 30, 20, 20], [60, 60, 60, 40]),
        ("quad", [10, 20, 30, 25, 28, 40, 8, 35], [30, 40, 90, 50, 84, 80, 24, 70]),
    ):
        row = np.array([[*given, 7]], dtype)
        found = in_frame(row, BoxOptions(format=how), placement)  # type: ignore[arg-type]
        assert found.dtype == row.dtype
        assert found.tolist() == [[*wanted, 7]], how
        across = in_frame(row.T, BoxOptions(format=how, axis="first"), placement)  # type: ignore[arg-type]
        assert across.tolist() == [[each] for each in (*wanted, 7)]
    shares = np.array([[[0.4, 0.1, 0.8, 0.3]]], np.float32)
    found = in_frame(shares, BoxOptions(format="yxyx", unit="shares"), placement)
    assert found == pytest.approx(np.array([[[40, 30, 80, 90]]]))


def test_no_boxes_and_other_shapes() -> None:
    placement = Placement.of(ImageSpec(50, 100), (100, 300))
    assert in_frame(np.zeros((0, 6), np.float32), BoxOptions(), placement).shape == (0, 6)
    for bad, says in (
        (np.zeros(6, np.float32), r"\[6\], not \[boxes, 4 or more\]"),
        (np.zeros((5, 3), np.float32), r"\[5, 3\]"),
        (np.array([b"a"], object), "object, not numbers"),
    ):
        with pytest.raises(ValueError, match=says):
            in_frame(bad, BoxOptions(), placement)


def test_an_answer_without_its_boxes_is_refused() -> None:
    scores = from_array("scores", np.zeros(2, np.float32))
    with pytest.raises(BadRequestError, match=r"gave no output 'boxes': set boxes\.output"):
        answer(served(), scores)
    flat = from_array("boxes", np.zeros(4, np.float32))
    with pytest.raises(BadRequestError, match="'boxes' of model 'gate' holds no boxes"):
        answer(served(), flat)


def test_clients_are_told_which_output_holds_boxes() -> None:
    (model,) = [model for model, _ in served(boxes={"output": "b", "axis": "first"}).every()]
    facts = model_config(model).config.parameters
    assert facts["boxes"].string_value == "b"
    assert facts["boxes_axis"].string_value == "first"
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert original_boxes(rows, 2.0, "first").tolist() == [
        [0, 2],
        [4, 6],
        [8, 10],
        [12, 14],
        [8, 9],
    ]
    assert original_boxes(rows.T[None], 2.0)[0, 1].tolist() == [2, 6, 10, 14, 9]


def test_boxes_need_pictures_and_an_output_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it needs input with image: true"):
        served(input={"shape": [3, 64, 64]})
    onnx = pytest.importorskip("onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    sides = ["n", 3, "h", "w"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["pixels"], ["found"])],
        "own",
        [helper.make_tensor_value_info("pixels", float32, sides)],
        [helper.make_tensor_value_info("found", float32, sides)],
    )
    file = tmp_path / "own.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    variants = [{"name": "mine", "model": str(file), "latency_ms": [5.0]}]
    with pytest.raises(ConfigError, match=r"boxes.output='boxes' of gate: .*give one of found"):
        served(variants=variants)
    assert served(variants=variants, boxes={"output": "found"})


def test_a_stream_gets_the_same_refusal() -> None:
    out = io.BytesIO()
    Image.new("RGB", (128, 96)).save(out, "PNG")
    request = pb.ModelInferRequest(model_name="gate")
    add_input(request, RawTensor("input", "BYTES", (1,), join_bytes([out.getvalue()])))
    parsed = parse_request(request, served())
    said = stream_response_of(parsed, Result(1, "mine", 1, 0, 0, ()), 0)
    assert "gave no output 'boxes'" in said.error_message
