"""From messages to requests, pictures to tensors, outcomes to messages."""

import io
import json
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from fermata.applications.server_options import BoxOptions
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
from fermata.deployments.frontend.protocol.client_errors import refusal_of
from fermata.deployments.frontend.protocol.json_tensors import read_request, write_response
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request
from fermata.deployments.frontend.protocol.replies import best_classes, response_of, stream_refusal
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.models.pictures.decoding import decode, fit, write
from fermata.deployments.specs.registry import Registry, UnknownModelError
from fermata.deployments.specs.served_model import Fit, ImageSpec, ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.links.messages import Result

REGISTRY = Registry.of(
    [
        ServedModel(
            "resnet",
            TensorSpec("input", "FP32", (3, 8, 8)),
            ms(50),
            ms(80),
            versions=("1", "2"),
            image=ImageSpec(8, 8),
        ),
        ServedModel("words", TensorSpec("text", "INT64", (-1,)), ms(50), ms(50)),
    ]
)


def ask(model: str, tensor: RawTensor, version: str = "", **given: int | str) -> ParsedRequest:
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    for name, value in given.items():
        if isinstance(value, int):
            request.parameters[name].int64_param = value
        else:
            request.parameters[name].string_param = value
    add_input(request, tensor)
    return parse_request(request, REGISTRY, CallContext(stream=77))


WORDS = from_array("text", np.arange(5))


@pytest.mark.parametrize(
    ("name", "value"), [("slo_us", 2**60), ("round_trip_us", -1), ("input_size", 2**40)]
)
def test_what_clients_say_of_themselves_has_limits(name: str, value: int) -> None:
    with pytest.raises(BadRequestError, match=f"{name}={value}: must be from 0 to"):
        ask("words", WORDS, fps=30, **{name: value})


def test_a_timeout_is_the_slo_and_keeps_what_the_hard_limit_allows_on_top() -> None:
    jpeg = RawTensor("input", "BYTES", (1,), join_bytes([b"\xff\xd8"]))
    terms = ask("resnet", jpeg).terms
    assert (terms.slo_ns, terms.hard_limit_ns) == (ms(50), ms(80))
    terms = ask("resnet", jpeg, timeout=20_000).terms
    assert (terms.slo_ns, terms.hard_limit_ns) == (ms(20), ms(50))
    # The encoded picture and the tensor it becomes.
    assert terms.size_bytes == 6 + 3 * 8 * 8 * 4


def test_clients_are_numbers_names_or_the_stream_itself() -> None:
    assert ask("words", WORDS).terms.client == 77
    assert ask("words", WORDS, client=5).terms.client == 5
    assert ask("words", WORDS, sequence_id=6).terms.client == 6
    named = ask("words", WORDS, client="camera-a").terms.client
    assert named == ask("words", WORDS, client="camera-a").terms.client
    assert named != ask("words", WORDS, client="camera-b").terms.client
    assert 0 < named < 1 << 63


def test_a_floor_and_a_pin_go_with_every_request() -> None:
    given = ask("words", WORDS, pinned_variant="large", accuracy_floor=1).terms
    assert (given.accuracy_floor, given.pinned) == (1.0, "large")
    given = ask("words", WORDS).terms
    assert (given.accuracy_floor, given.pinned) == (0.0, "")
    with pytest.raises(BadRequestError, match="accuracy_floor=-1"):
        ask("words", WORDS, accuracy_floor=-1)


def test_versions_are_asked_for_either_way() -> None:
    tensor = from_array("input", np.zeros((3, 8, 8), np.float32))
    assert ask("resnet", tensor).terms.application == "resnet"
    assert ask("resnet", tensor, "2").terms.application == "resnet"
    assert ask("resnet", tensor, "1").terms.application == "resnet@1"
    assert ask("resnet@1", tensor).terms.application == "resnet@1"
    with pytest.raises(UnknownModelError, match="no version '3': use one of 1, 2"):
        ask("resnet", tensor, "3")


def test_a_picture_may_come_as_bytes_pixels_or_tensor() -> None:
    pixels = from_array("input", np.zeros((1, 20, 30, 3), np.uint8))
    assert (ask("resnet", pixels).input.encoded, ask("resnet", pixels).input.batched) == (
        True,
        True,
    )
    tensor = from_array("input", np.zeros((1, 3, 8, 8), np.float32))
    assert (ask("resnet", tensor).input.encoded, ask("resnet", tensor).input.batched) == (
        False,
        True,
    )
    two = RawTensor("input", "BYTES", (2,), join_bytes([b"a", b"b"]))
    with pytest.raises(BadRequestError, match="send one element"):
        ask("resnet", two)
    with pytest.raises(BadRequestError, match="or a picture: BYTES"):
        ask("resnet", from_array("input", np.zeros((3, 8, 9), np.float32)))


def test_an_input_of_nothing_is_none() -> None:
    # Where a length varies, 0 is one: a model that cannot take it would fail its whole batch.
    for shape in ((0,), (1, 0)):
        with pytest.raises(BadRequestError, match="is empty"):
            ask("words", from_array("text", np.zeros(shape, np.int64)))


def elements(count: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="resnet")
    request.inputs.add(name="input", datatype="BYTES", shape=[count])
    return request


def hostile() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    """Megabytes of next to nothing, each of which was counted once."""
    many = pb.ModelInferRequest(model_name="resnet")
    for _ in range(200_000):
        many.inputs.add(name="i", datatype="FP32", shape=[0])
    yield "takes one input, 'input', not 200000", many
    typed = elements(1_000_000)
    typed.inputs[0].contents.bytes_contents.extend([b""] * 1_000_000)
    yield "send one element", typed
    raw = elements(1_000_000)
    raw.raw_input_contents.append(bytes(4_000_000))
    yield "send one element", raw
    deep = pb.ModelInferRequest(model_name="resnet")
    deep.inputs.add(name="input", datatype="FP32", shape=[1] * 4_000_000)
    yield "4000000 dimensions", deep
    wide = pb.ModelInferRequest(model_name="words")
    add_input(wide, WORDS)
    for _ in range(300_000):
        wide.outputs.add(name="o")
    yield "300000 outputs", wide


def test_how_much_there_is_is_asked_before_what() -> None:
    for says, request in hostile():
        began_s = time.process_time()
        with pytest.raises(BadRequestError, match=says):
            parse_request(request, REGISTRY)
        # Everybody else's answers wait for the loop that does this.
        assert time.process_time() - began_s < 0.05, says


def test_words_have_limits_and_refusals_quote_little() -> None:
    long = "\u4e2d" * 1_000_000
    for name in ("client", "sequence_id", "pinned_variant", "traceparent"):
        with pytest.raises(BadRequestError, match=f"{name} has 1000000 characters: use up to"):
            ask("words", WORDS, **{name: long})
    request = pb.ModelInferRequest(model_name="words", id=long)
    add_input(request, WORDS)
    with pytest.raises(BadRequestError, match="the id has 1000000 characters"):
        parse_request(request, REGISTRY)
    nothing: dict[str, list[object]] = {"inputs": []}
    one = {"name": "i", "datatype": "FP32", "shape": [1], "data": [long]}
    bodies = ({"inputs": [one]}, {"inputs": [[long]]}, nothing | {"parameters": [long]})
    bodies += (nothing | {"parameters": {long: []}}, nothing | {"parameters": {"a": [long]}})
    refused = []
    for body in bodies:
        data = json.dumps(body, ensure_ascii=False).encode()
        with pytest.raises(BadRequestError) as bad:
            read_request("m", "", data, len(data))
        refused.append(bad.value)
    for model, tensor, version in (
        (long, WORDS, ""),
        ("words", WORDS, long),
        ("words", replace(WORDS, name=long), ""),
        ("words", replace(WORDS, datatype=long), ""),
    ):
        with pytest.raises((BadRequestError, UnknownModelError)) as unsound:
            ask(model, tensor, version)
        refused.append(unsound.value)
    for error in refused:
        # As gRPC sends it: each byte that is no plain text as three.
        assert len(quote(refusal_of(error).message)) < 8000
        said = stream_refusal(long, long, refusal_of(error))
        assert said.ByteSize() < 20_000


def test_priorities_and_shared_memory_are_checked() -> None:
    assert ask("words", WORDS, priority=1).terms.priority == 1
    with pytest.raises(BadRequestError, match="priority=-1"):
        ask("words", WORDS, priority=-1)
    request = pb.ModelInferRequest(model_name="words")
    add_input(request, WORDS)
    request.inputs[0].parameters["shared_memory_region"].string_param = "mine"
    with pytest.raises(BadRequestError, match="names shared memory"):
        parse_request(request, REGISTRY)


def encoded(kind: str, width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (0, 128, 255)).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_picture_is_decoded_unless_cut_off_or_too_large(kind: str) -> None:
    data = encoded(kind, 30, 20)
    assert decode(data, 600).shape == (20, 30, 3)
    with pytest.raises(BadRequestError, match="30x20 pixels, at most 599"):
        decode(data, 599)
    for cut in (len(data) // 2, 5):
        with pytest.raises(BadRequestError):
            decode(data[:cut], 600)


def test_pixels_are_scaled_cropped_and_normalised() -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, 10:30] = (0, 128, 255)
    # The middle half of the picture, as the crop takes it, has one colour.
    spec = ImageSpec(8, 8, (0.5, 0.5, 0.5), (0.5, 0.25, 0.5), fit="crop", resize=8)
    out = np.empty((3, 8, 8), np.float32)
    write(fit(pixels, spec), spec, out)
    assert out[:, 4, 4] == pytest.approx([-1, (128 / 255 - 0.5) / 0.25, 1], abs=1e-6)
    flat = np.empty((8, 8, 3), np.uint8)
    stretched = ImageSpec(8, 8, channels_last=True)
    write(fit(pixels, stretched), stretched, flat)
    assert flat[4, 4].tolist() == [0, 128, 255]
    assert flat[4, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("width", "height"), [(40, 20), (20, 41), (30, 30), (300, 7), (1, 9)])
def test_the_middle_alone_is_scaled_and_is_the_same(width: int, height: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    spec = ImageSpec(6, 8, fit="crop", resize=10)
    short = min(width, height)
    size = (int(10 * width / short), int(10 * height / short))
    whole = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
    left, top = round((size[0] - 8) / 2), round((size[1] - 6) / 2)
    wanted = whole[top : top + 6, left : left + 8].astype(int)
    assert np.abs(fit(pixels, spec) - wanted).max() <= 1


def test_a_thin_picture_takes_no_more_than_it_shows() -> None:
    """65,535 x 1 would be 17 GB where all of it is scaled before it is cropped."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for shape in ((1, 65_535, 3), (65_535, 1, 3)):
        for how in get_args(Fit):
            out = fit(np.full(shape, 7, np.uint8), ImageSpec(224, 224, fit=how))
            assert out.shape == (224, 224, 3)
            assert set(np.unique(out)) <= {7, 127 if how == "line" else 0}
            assert (out == 7).any()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    with pytest.raises(BadRequestError, match="and 65535 a side"):
        decode(encoded("PNG", 65_536, 1), 10**6)
    long = from_array("input", np.zeros((65_536, 1, 3), np.uint8))
    given = ask("resnet", long).input
    with pytest.raises(BadRequestError, match="and 65535 a side"):
        given.write_payload(memoryview(bytearray(given.payload_bytes())), 10**6)


def test_a_jpeg_is_looked_at_only_so_often() -> None:
    out = io.BytesIO()
    Image.new("RGB", (64, 64), (0, 128, 255)).save(out, "JPEG", progressive=True)
    whole = out.getvalue()
    assert decode(whole, 4096).shape == (64, 64, 3)
    last = whole.rindex(b"\xff\xda")
    with pytest.raises(BadRequestError, match="49 scans, at most 32"):
        decode(whole[:last] + whole[last:-2] * 40 + whole[-2:], 4096)


def test_boxes_come_back_in_pixels_of_the_clients_frame() -> None:
    faces = ServedModel(
        "faces",
        TensorSpec("input", "UINT8", (3, 32, 32)),
        ms(50),
        ms(50),
        image=ImageSpec(32, 32, fit="whole"),
        boxes=BoxOptions(),
    )
    request = pb.ModelInferRequest(model_name="faces")
    data = encoded("JPEG", 64, 48)
    add_input(request, RawTensor("input", "BYTES", (1,), join_bytes([data])))
    asked = parse_request(request, Registry.of([faces]))
    assert asked.input.frame == (48, 64)
    # The square shows the frame at half its size; what lies below its 24 rows is cut.
    rows = np.array([[1, 2, 3, 30, 0.9, 0]], np.float32)
    result = Result(1, "v", 1, 0, 0, (("output", "FP32", (1, 6), rows.tobytes()),))
    (found,) = response_tensors(response_of(asked, result, 0))
    assert to_array(found).tolist() == [[2, 4, 6, 48, pytest.approx(0.9), 0]]
    with pytest.raises(ConfigError, match="makes squares"):
        ImageSpec(8, 9, fit="centre")


def test_json_becomes_the_same_message_and_back() -> None:
    body = b'{"id": "x", "parameters": {"timeout": 5}, "inputs": [%s]}'
    one = b'{"name": "a", "datatype": "INT8", "shape": [2], "data": [[-1], [2]]}'
    request = read_request("m", "", body % one, 1000)
    assert request.raw_input_contents[0] == b"\xff\x02"
    assert request.parameters["timeout"].int64_param == 5
    for bad, says in (
        (one.replace(b"2]]", b"300]]"), "cannot hold"),
        (one.replace(b"2]]", b"2.5]]"), "its data are float64"),
        (one.replace(b"2]]", b'"b"]]'), "its data include: str"),
        (one.replace(b"2]]", b"null]]"), "its data include: NoneType"),
        (one.replace(b"[[-1], [2]]", b"[" * 90 + b"]" * 90), "its data include: list"),
        (one.replace(b"[2]]", b"[2, 3]]"), "its data include: list"),
        (one.replace(b"[2]", b"[0, 1%s]" % bytes([48] * 20)), "above 63 bits"),
        (one.replace(b"[2]", b"[3]"), "takes 3"),
        (one.replace(b"[2]", b"[2.0]"), "shape of integers"),
        (b"7", "is no object"),
    ):
        with pytest.raises(BadRequestError, match=says):
            read_request("m", "", body % bad, 1000)
    for outputs in (b"5", b"true", b'"y"', b'{"name": "y"}', b"[5]"):
        with pytest.raises(BadRequestError, match="output"):
            read_request("m", "", b'{"inputs": [], "outputs": %s}' % outputs, 1000)
    for side in ("inputs", "outputs"):
        many = json.dumps({"inputs": [], side: [{}] * 65}).encode()
        with pytest.raises(BadRequestError, match=f"65 {side}: send at most 64"):
            read_request("m", "", many, len(many))
    response = pb.ModelInferResponse(model_name="m")
    response.outputs.add(name="y", datatype="FP32", shape=[2])
    response.raw_output_contents.append(np.array([1.5, np.nan], "<f4").tobytes())
    assert write_response(response)["outputs"][0]["data"] == [1.5, None]


def test_texts_among_numbers_take_no_memory() -> None:
    """numpy would make each of them as long as the longest: 800 MB of 400 KB."""
    one = {"name": "a", "datatype": "FP32", "shape": [1], "data": ["a" * 200_000] + ["b"] * 1000}
    body = json.dumps({"inputs": [one]}).encode()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadRequestError, match="its data include: str"):
        read_request("m", "", body, len(body))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_classes_are_named_as_triton_does() -> None:
    scores = from_array("y", np.array([0.25, 0.5, 0.125], np.float32))
    assert best_classes(scores, 2, ("cat", "dog")) == [b"0.500000:1:dog", b"0.250000:0:cat"]
    assert best_classes(scores, 9, ())[2] == b"0.125000:2"
