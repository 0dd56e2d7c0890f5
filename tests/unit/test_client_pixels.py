"""Boxes of frames that were sent smaller: clients get them in pixels of the frames as they were."""

import json
from typing import Any

import numpy as np
import pytest

from fermata.clients.network.adaptation import Sized, original_boxes
from fermata.clients.pipeline_answers import BoxForm
from fermata.clients.stream import FrameStream, StreamOptions
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import from_array, join_bytes


def answered(options: StreamOptions, scale: float, name: str, data: Any) -> Any:
    """An output as the stream gives it, of a frame that was sent smaller by this scale."""
    stream = FrameStream("nowhere:1", "model", [], options)
    stream.pending.add(0, 0)
    stream._data[0] = Sized(b"", 64, scale)
    response = pb.ModelInferResponse(model_name="model", id="0")
    if isinstance(data, bytes):
        response.outputs.add(name=name, datatype="BYTES", shape=[1])
        response.raw_output_contents.append(join_bytes([data]))
    else:
        tensor = from_array(name, data)
        response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(bytes(tensor.data))
    stream._on_response(pb.ModelStreamInferResponse(infer_response=response))
    (result,) = stream.pending.take_ready()
    return result.outputs[name]


STAGES = {
    "detect": [
        {"variant": "v", "outputs": {"boxes": [[1, 2, 3, 4.5]], "scores": [0.9]}},
        {"missing": "window"},
    ],
    "lines": [{"variant": "v", "outputs": {"quads": [[1, 2], [1, 2], [1, 2], [1, 2]] * 2}}],
    "read": [
        {"of": ["lines", 0], "box": [1, 2, 3, 4], "quad": [[1, 2], [3, 2], [3, 4], [1, 4]]}
        | {"score": 0.5, "outputs": {"boxes": [[1, 2, 3, 4]]}},
    ],
}
FORMS = {"detect": BoxForm("boxes"), "lines": BoxForm("quads", "quad", "first")}


def test_boxes_in_the_answer_of_a_pipeline_are_in_pixels_of_the_camera() -> None:
    document = {"pipeline": "p", "partial": True, "stages": STAGES}
    options = StreamOptions(answer="answer", stage_boxes=FORMS)
    (found,) = answered(options, 2.0, "answer", json.dumps(document).encode())
    stages = json.loads(found)["stages"]
    assert stages["detect"] == [
        {"variant": "v", "outputs": {"boxes": [[2, 4, 6, 9]], "scores": [0.9]}},
        {"missing": "window"},
    ]
    assert stages["lines"][0]["outputs"]["quads"] == [[2, 4]] * 8
    (read,) = stages["read"]
    assert read["box"] == [2, 4, 6, 8]
    assert read["quad"] == [[2, 4], [6, 4], [6, 8], [2, 8]]
    # A stage that nobody says finds boxes may call anything by that name.
    assert (read["score"], read["outputs"]) == (0.5, {"boxes": [[1, 2, 3, 4]]})


def test_what_a_function_answers_stays_as_it_is() -> None:
    document = {"answer": {"box": [1, 2, 3, 4]}, "stages": {"detect": [{"variant": "v"}]}}
    (found,) = answered(
        StreamOptions(answer="answer"), 2.0, "answer", json.dumps(document).encode()
    )
    assert json.loads(found) == document


def test_an_answer_to_a_whole_frame_stays_as_it_came() -> None:
    given = json.dumps({"stages": STAGES}).encode()
    options = StreamOptions(answer="answer", stage_boxes=FORMS)
    assert answered(options, 1.0, "answer", given)[0] == given


@pytest.mark.parametrize(("form", "last"), [("xyxy", [9, 0.5]), ("quad", [18, 0.5])])
def test_all_numbers_that_place_a_box_are_moved(form: str, last: list[float]) -> None:
    row = np.array([[1, 2, 3, 4, 5, 6, 7, 9, 0.5]], np.float32)
    options = StreamOptions(boxes="boxes", boxes_format=form)
    found = answered(options, 2.0, "boxes", row)[0].tolist()
    assert found[:4] == [2, 4, 6, 8]
    assert found[-2:] == last
    assert original_boxes(row, 2.0, numbers=8)[0, 7] == 18


@pytest.mark.parametrize("keep", [False, True])
def test_results_have_their_frames_where_that_is_wanted(keep: bool) -> None:
    frame = np.zeros((4, 6, 3), np.uint8)
    # Nobody answers there.
    options = StreamOptions(slo_ns=1_000_000, keep_frames=keep)
    stream = FrameStream("127.0.0.1:1", "model", [frame], options)
    (result,) = list(stream)
    assert result.frame is (frame if keep else None)
    assert stream._frames == {}
