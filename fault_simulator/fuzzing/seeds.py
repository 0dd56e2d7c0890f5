"""Bytes that a fuzzer begins with: one of each kind that is taken."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.parameters import parameter
from fermata.clients.wire.tensors import RawTensor, add_input, from_array, join_bytes
from fermata.foundation.json_types import Json, JsonObject
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import (
    PROTOCOL,
    Cancel,
    Challenge,
    Done,
    Fetch,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Payload,
    Proof,
    QueryPart,
    Ready,
    Result,
    Run,
    Submit,
    Unavailable,
)
from fermata.router.links.session import encode
from fermata.router.links.unavailability import LOADING

ROOT = Path(__file__).parents[2]
FITS = ("stretched", "cropped", "centred", "whole")
"""Models of pictures, as `fermata.fault_simulator.fuzzing.parsers` calls them."""
SAID: tuple[Message, ...] = (
    Submit(1, "camera", 50_000_000, 50_000_000, 7, 1, 0.5, "large"),
    Submit(
        2,
        "camera",
        50_000_000,
        50_000_000,
        part=QueryPart("both", 1, 1),
        payload=Payload(2, "UINT8", (4,), b"", "memory", 0, 4),
        beside=(Payload(3, "UINT8", (4,), b"", "memory", 64, 4), 4),
    ),
    Cancel(1),
    Run(7, "resnet", (1, 2, 3), 0, 5_000_000),
    Done(7, 5_000_000, 0),
    Ready("cpu", ("resnet",), (), (("resnet", (1, 2), (1, 2)),)),
    Fetch(7, (1, 2)),
    Payload(1, "UINT8", (2, 2), b"abcd"),
    Result(1, "resnet", 2, 0, 1, (("output", "FP32", (1,), bytes(4)),)),
    Unavailable({"camera": LOADING}),
    Heartbeat(5),
    Challenge(bytes(16)),
    Proof(bytes(32)),
    Goodbye("done", CloseCode.SHUTDOWN),
)


def frames() -> list[bytes]:
    """A byte for how they come, then frames."""
    hello = encode([Hello(PROTOCOL, "backend", 3, 0, "127.0.0.1:80", "here", bytes(16))])[0]
    found = [b"\x00" + hello, b"\x40" + hello + encode(SAID)[0]]
    return found + [b"\x41" + encode([message])[0] for message in SAID]


def messages() -> list[bytes]:
    given: tuple[tuple[str, RawTensor], ...] = (
        ("numbers", from_array("input", np.arange(4, dtype=np.float32))),
        ("any", from_array("input", np.arange(7, dtype=np.int64)[None])),
        ("any@2", from_array("input", np.arange(2, dtype=np.int64))),
        *((fit, _encoded(each)) for fit in FITS for each in pictures()),
        *((fit, from_array("input", np.zeros((8, 9, 3), np.uint8))) for fit in FITS),
        *(("sized", _encoded(each)) for each in pictures()[:2]),
        ("words", _encoded(b"a sentence")),
    )
    found: list[bytes] = []
    for model, tensor in given:
        request = pb.ModelInferRequest(model_name=model, id="7")
        add_input(request, tensor)
        found.append(request.SerializeToString())
        for name, value in _parameters().items():
            request.parameters[name].CopyFrom(parameter(value))
        output = request.outputs.add(name="output")
        output.parameters["classification"].int64_param = 2
        found.append(request.SerializeToString())
    return found


def _parameters() -> dict[str, int | float | str | bool]:
    return {
        "timeout": 50_000,
        "priority": 1,
        "client": "camera-a",
        "fps": 30.0,
        "bandwidth_bps": 1e6,
        "accuracy_floor": 0.5,
        "acknowledge": True,
    }


def _encoded(data: bytes) -> RawTensor:
    return RawTensor("input", "BYTES", (1,), join_bytes([data]))


def bodies() -> list[bytes]:
    """Two bytes of the length of the JSON, the JSON, and raw tensors behind it."""
    tensor: dict[str, Json] = {"name": "input", "datatype": "FP32", "shape": [4]}
    found = [
        _body(
            {"id": "7", "parameters": _parameters(), "inputs": [tensor | {"data": [0, 1, 2, 3.5]}]}
        ),
        _body({"inputs": [tensor | {"datatype": "INT64", "data": [[0, 1], [2, 3]]}]}),
        _body({"inputs": [tensor | {"data": [0, "a" * 2000, None, True, "b"]}]}),
    ]
    for picture in pictures():
        element = join_bytes([picture])
        said: dict[str, Json] = {"name": "input", "datatype": "BYTES", "shape": [1]}
        raw = said | {"parameters": {"binary_data_size": len(element)}}
        found.append(_body({"inputs": [raw]}, element))
    wanted: list[JsonObject] = [{"name": "output", "parameters": {"classification": 2}}]
    text: dict[str, Json] = {"parameters": {"encoding": "base64"}, "data": ["/9j/"]}
    found.append(_body({"inputs": [said | text], "outputs": wanted}))
    return found


def _body(given: JsonObject, raw: bytes = b"") -> bytes:
    text = json.dumps(given).encode()
    return struct.pack(">H", len(text)) + text + raw


def pictures() -> list[bytes]:
    """Pictures of every format and way to write it, and some of a shape that nobody has in mind."""
    plain = Image.linear_gradient("L").resize((24, 16)).convert("RGB")
    found = [_saved(plain, kind) for kind in ("JPEG", "PNG", "WEBP", "BMP")]
    found += [_saved(plain, "JPEG", progressive=True), _saved(plain, "WEBP", lossless=True)]
    found += [_saved(plain.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA", "I;16")]
    found += [_saved(plain.convert(mode), "JPEG") for mode in ("L", "CMYK")]
    for size in ((1, 65_535), (65_535, 1)):
        found.append(_saved(Image.new("RGB", size), "PNG"))
    return found


def _saved(picture: Image.Image, kind: str, **given: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **given)
    return out.getvalue()


def configurations() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "deployments").glob("*.yaml"))]


def profiles() -> list[bytes]:
    """The smaller ones of the zoo."""
    found = [path.read_bytes() for path in sorted((ROOT / "profiles/zoo").glob("*.json"))]
    return sorted(found, key=len)[:5]
