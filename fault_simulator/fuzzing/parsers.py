"""Everything that reads bytes of strangers, each as a function of bytes.

A function returns where its bytes were taken or refused by name, and raises whatever nobody should
have raised: a fuzzer keeps the bytes that made it.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fermata.applications.server_options import BoxOptions
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import DTYPES
from fermata.deployments.config.deployment import load_config
from fermata.deployments.frontend.protocol.json_tensors import read_request
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request
from fermata.deployments.models.pictures.decoding import (
    PIXEL_BYTES_MAX,
    check_pixels,
    decode,
    fit,
    frame_size,
    write,
)
from fermata.deployments.models.pictures.resizing.build import RESIZING
from fermata.deployments.specs.registry import Registry, UnknownModelError
from fermata.deployments.specs.served_model import Fit, ImageSpec, ServedModel, TensorSpec
from fermata.fault_simulator.fuzzing import seeds
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.profiles.store import load_file
from fermata.router.links.closing import CloseCode
from fermata.router.links.handshake import NONCE_BYTES, Acceptor
from fermata.router.links.limits import SessionLimits
from fermata.router.links.messages import PROTOCOL, Hello
from fermata.router.links.session import Session

PIXELS_MAX = 1 << 20
CONFIG_BYTES_MAX = 4096
"""A configuration is the operator's own: its size is not what is tried here."""
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SLACK_BYTES = 16 << 20
"""Memory that Python and its allocator may take beside a picture."""
SIDE = 16


def _pictures(name: str, fit: Fit, **given: Any) -> ServedModel:
    """A model of small pictures."""
    spec = ImageSpec(SIDE, SIDE, fit=fit, resize=18, **given)
    shape = (SIDE, SIDE, 3) if spec.channels_last else (3, SIDE, SIDE)
    datatype = "UINT8" if fit == "whole" else "FP32" if fit == "stretch" else "FP16"
    return ServedModel(
        name, TensorSpec("input", datatype, shape), ms(100), ms(100), image=spec, boxes=BoxOptions()
    )


FITTED = (
    _pictures("stretched", "stretch"),
    _pictures("cropped", "crop", bicubic=True),
    _pictures("centred", "centre", channels_last=True),
    _pictures("whole", "whole"),
)
"""Every way in which a picture becomes an input."""
REGISTRY = Registry.of(
    (
        ServedModel("numbers", TensorSpec("input", "FP32", (4,)), ms(100), ms(100)),
        ServedModel(
            "any", TensorSpec("input", "INT64", (-1,)), ms(50), ms(50), versions=("1", "2")
        ),
        *FITTED,
        ServedModel(
            "sized",
            TensorSpec("input", "UINT8", (3, SIDE, SIDE)),
            ms(100),
            ms(100),
            image=ImageSpec(SIDE, SIDE, fit="whole"),
            sides={"small": SIDE, "large": 2 * SIDE},
        ),
        ServedModel(
            "words",
            TensorSpec("input", "INT64", (1,)),
            ms(100),
            ms(100),
            read=lambda data: np.array([len(data.decode())]),
        ),
    )
)
FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
SECRET, NONCE = b"known to links alone", bytes(NONCE_BYTES)
REFUSALS = (CloseCode.MALFORMED, CloseCode.PROTOCOL, CloseCode.UNPROVEN)


def links(data: bytes) -> None:
    """A link's session takes the same from the same bytes, however they are cut, and nothing from
    a peer that has not proven itself."""
    me, peer = Hello(PROTOCOL, "router", 0, 1), Hello(PROTOCOL, "backend", 1, 0)
    rest = data[1:]
    greeted = bool(data[:1] and data[0] & 1)
    cut = len(rest) * (data[0] >> 1) // 127 if data else 0
    ends = []
    for pieces in ([rest], [rest[:cut], rest[cut:]]):
        session = Session(Acceptor(me, SECRET, NONCE), 0, SessionLimits(frame_bytes_max=1 << 16))
        if greeted:
            session.peer = peer
        heard = [message for piece in pieces for message in session.receive(0, piece)]
        closed = session.closed
        assert closed is None or closed.by_peer or closed.code in REFUSALS, closed
        assert greeted or session.peer is None
        assert len(session.buffer) <= len(rest)
        # As text: a number that is none equals itself there.
        ends.append((repr(heard), session.closed, session.peer))
    assert ends[0] == ends[1]


def inference(data: bytes) -> None:
    """A gRPC message: taken in, and its input decoded."""
    try:
        request = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    _serve(request)


def rest(data: bytes) -> None:
    """An HTTP body; its first two bytes say where raw tensors begin."""
    body = data[2:]
    size = min(int.from_bytes(data[:2], "big"), len(body))
    try:
        with bounded_memory(len(body)):
            request = read_request("numbers", "", body, size)
    except BadRequestError as error:
        _say(error)
        return
    for name in REGISTRY.models:
        request.model_name = name
        _serve(request)


def _serve(request: pb.ModelInferRequest) -> None:
    try:
        with bounded_memory(len(request.SerializeToString())):
            given = parse_request(request, REGISTRY, CallContext(stream=1, tenant="somebody")).input
            check_pixels(*given.frame, PIXELS_MAX)
            size = given.payload_bytes()
            assert size <= len(given.tensor.data) + 4 * PIXELS_MAX
            given.write_payload(memoryview(bytearray(size)), PIXELS_MAX)
    except (BadRequestError, UnknownModelError) as error:
        _say(error)


def pictures(data: bytes) -> None:
    """An encoded picture, whatever it claims to be, decoded and made the input of every model."""
    try:
        with bounded_memory(len(data)):
            pixels = decode(data, PIXELS_MAX)
            assert pixels.shape == (*frame_size(data), 3)
            for model in FITTED:
                assert model.image is not None
                out = np.empty(model.input.shape, DTYPES[model.input.datatype])
                write(fit(pixels, model.image), model.image, out)
    except BadRequestError as error:
        _say(error)


@contextmanager
def bounded_memory(given: int) -> Iterator[None]:
    """Reading so many bytes takes no more memory than the largest picture may."""
    # The peak counts from here on; without that what once was held would hide what is taken now.
    CLEAR_REFS.write_text("5")
    before = _peak_bytes()
    yield
    grown = _peak_bytes() - before
    most = PIXEL_BYTES_MAX * PIXELS_MAX + 4 * given + SLACK_BYTES
    assert grown <= most, f"{grown} bytes were taken, at most {most} may be"


def _peak_bytes() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def configuration(data: bytes) -> None:
    """A configuration's file."""
    _load(data[:CONFIG_BYTES_MAX], load_config)


def profile(data: bytes) -> None:
    """A file of profiles."""
    _load(data, load_file)


def _load(data: bytes, load: Callable[[Path], object]) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml", dir=FOLDER) as file:
        file.write(data)
        file.flush()
        try:
            load(Path(file.name))
        except ConfigError as error:
            _say(error, lines=1)


def _say(error: Exception, lines: int | None = None) -> None:
    """Any error can be reported, and to an operator in one line."""
    said = str(error)
    said.encode()
    assert lines is None or len(said.splitlines()) <= lines, f"in several lines: {said}"


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser to try, and bytes to begin with."""

    read: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    native: bool = False
    """Code of ours in C, whose faults end the process."""


PARSERS: Mapping[str, Parser] = {
    "links": Parser(links, seeds.frames),
    "inference": Parser(inference, seeds.messages),
    "rest": Parser(rest, seeds.bodies),
    "pictures": Parser(pictures, seeds.pictures, native=RESIZING.path().exists()),
    "configuration": Parser(configuration, seeds.configurations),
    "profile": Parser(profile, seeds.profiles),
}
