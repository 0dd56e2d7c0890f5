"""Every embedded model through the whole system: what it answers is what it answers offline."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
from served import ROOT, Server
from test_models import SENTENCES, frames

from fermata.clients.frames import encode_jpeg
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.parameters import parameter
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import (
    RawTensor,
    add_input,
    join_bytes,
    response_tensors,
    to_array,
)
from fermata.deployments.models import detector
from fermata.deployments.models.catalog import open_model
from fermata.deployments.models.minilm import Tokens
from fermata.deployments.models.model import Array
from fermata.deployments.models.pictures.decoding import decode
from fermata.deployments.models.pictures.picture import Pixels, centre_square, whole_frame

pytestmark = pytest.mark.live

TIMEOUT_US = 8_000_000
"""The machine that runs tests is small and busy; what is asked here is what comes back."""

PACED = ("--frames", "6", "--fps", "3", "--slo-ms", "3000")


def ask(server: Server, model: str, data: bytes) -> Array:
    """The first output for one encoded input, over gRPC."""
    request = pb.ModelInferRequest(model_name=model)
    add_input(request, RawTensor("input", "BYTES", (1,), join_bytes([data])))
    request.parameters["timeout"].CopyFrom(parameter(TIMEOUT_US))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        response = InferenceStub(channel).ModelInfer(request, timeout=10)
    return to_array(response_tensors(response)[0])


def film() -> list[Pixels]:
    """Two frames of a man who telephones in a car."""
    return frames("carphone_pristine", 60)[:2]


@pytest.mark.parametrize(
    ("application", "model", "size"),
    [
        ("imagenet", "imagenet:lite0", 224),
        ("imagenet-lite1", "imagenet:lite1", 240),
        ("imagenet-lite2", "imagenet:lite2", 260),
    ],
)
def test_pictures_are_named_as_offline(
    server: Server, application: str, model: str, size: int
) -> None:
    from sklearn.datasets import load_sample_images

    offline = open_model(model)
    china, flower = load_sample_images().images
    for frame in (*film(), china, flower):
        data = encode_jpeg(frame, 90)
        (wanted,) = offline(centre_square(decode(data, 10**7), size)[None])
        found = ask(server, application, data).reshape(-1)
        assert found.argmax() == np.argmax(wanted)
        np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_the_bundled_film_is_named_by_the_command_line(server: Server) -> None:
    common = ("--server", f"127.0.0.1:{server.grpc_port}", "--json")
    told = run("stream", "carphone_pristine", *PACED, *common)
    named = [
        each["outputs"]["output"][0].split(":")[2] for each in told["frames"] if each["outputs"]
    ]
    assert len(named) >= 3, told["statuses"]
    assert set(named) <= {"bow tie", "Windsor tie", "suit", "seat belt"}


def test_the_pipeline_finds_and_names_objects_of_the_film(server: Server, tmp_path: Path) -> None:
    common = ("--server", f"127.0.0.1:{server.grpc_port}", "--json", "--draw", str(tmp_path))
    told = run("stream", "carphone_pristine", "--model", "objects", *common, *PACED)
    answers = [
        json.loads(each["outputs"]["answer"][0]) for each in told["frames"] if each["outputs"]
    ]
    assert answers, told["statuses"]
    for answer in answers:
        found = answer["stages"]["imagenet"]
        assert "person" in [each["class"] for each in found]
        assert all("missing" in each or each["classes"][0]["class"] for each in found)
    assert len(list(tmp_path.glob("*.jpg"))) == len(answers)


def run(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "fermata.commands.main", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_sentences_have_the_topics_that_they_have_offline(server: Server) -> None:
    offline = open_model("text:topics")
    tokens = Tokens(offline.card.input_shape[0])
    right = 0
    asked = SENTENCES[::4]
    for topic, sentence in asked:
        (wanted,) = offline(tokens([sentence]))
        found = ask(server, "topics", sentence.encode()).reshape(-1)
        np.testing.assert_allclose(found, wanted, atol=1e-3)
        assert found.argmax() == np.argmax(wanted)
        right += offline.card.labels[int(found.argmax())] == topic
    assert right > len(asked) / 2


def test_bytes_that_are_no_text_are_the_clients_fault(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(server, "topics", b"\xff\xfe\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_faces_are_boxed_in_pixels_of_the_frame_that_was_sent(server: Server) -> None:
    offline = open_model("faces:centerface")
    size = offline.card.input_shape[1]
    small = film()[0]
    # The same frame twice as large has its boxes twice as far out.
    large = np.ascontiguousarray(small.repeat(2, axis=0).repeat(2, axis=1))
    for frame, scale in ((small, 1), (large, 2)):
        data = encode_jpeg(frame, 90)
        height, width = frame.shape[:2]
        seen = whole_frame(decode(data, 10**7), size)
        wanted = detector.to_frame(np.asarray(offline(seen[None])[0]), height, width, size)
        found = ask(server, "faces", data).reshape(-1, 6)
        np.testing.assert_allclose(found, wanted, atol=1e-2)
        # Read off the frame by eye: between (60, 30) and (118, 105) of 176 x 144.
        (x1, y1, x2, y2, score, kind) = found[0]
        assert 55 < x1 / scale < x2 / scale < 122
        assert 25 < y1 / scale < y2 / scale < 110
        assert score > 0.8
        assert kind == 0
    blank = encode_jpeg(np.zeros((90, 120, 3), np.uint8))
    assert ask(server, "faces", blank).size == 0


@pytest.mark.parametrize("model", ["topics", "faces", "digits"])
def test_load_knows_what_each_model_takes(server: Server, model: str) -> None:
    common = ("--server", f"127.0.0.1:{server.grpc_port}", "--json", "--warmup-s", "0")
    # Time enough on a busy machine: what is asked here is what it takes, not how fast.
    paced = ("--rate", "2", "--duration-s", "2", "--slo-ms", str(TIMEOUT_US // 1000))
    told = run("load", "--model", model, *paced, *common)
    assert told["good"] > 0, told
    assert "INVALID_ARGUMENT" not in told["refused"]
