"""Asks a server what a model takes, so that nobody has to write it twice."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import grpc
import numpy as np

from fermata.clients.access import OPEN, Access
from fermata.clients.frames import encode_jpeg
from fermata.clients.pipeline_answers import BoxForm, box_forms
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError, RefusedError
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import DTYPES, RawTensor, join_bytes

CONNECT_S = 3.0
ASK_S = 10.0
SENTENCE = b"The committee will publish its report on the harbour next week."
VARYING = 16
"""Size of a dimension that the model leaves open."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model as its clients need to know it."""

    name: str
    input: str
    datatype: str
    shape: tuple[int, ...]
    output: str
    """The first one; empty where the server does not know before it has run."""
    slo_ns: int
    """0 where the server does not say."""
    labels: int
    """How many classes it can name."""
    takes: str = "tensors"
    """`pictures`, `text` or `tensors`."""
    more_inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Name, datatype and shape of inputs that it needs beside the first."""
    fit: str = "whole"
    """Fit of pictures to its input, as its configuration says."""
    boxes: str = ""
    """Output that holds boxes, in pixels of the frame that was sent; empty: there is none."""
    boxes_axis: str = "last"
    """Dimension of that output that holds the numbers of a box: `last` or `first`."""
    boxes_format: str = "xyxy"
    """The numbers of a box, as its configuration says."""
    box_labels: tuple[str, ...] = ()
    """Names of the classes of boxes; empty where the server does not say."""
    answer: str = ""
    """Output that holds the document of a pipeline; empty: it is none."""
    stage_boxes: Mapping[str, BoxForm] = field(default_factory=dict)
    """Stages of a pipeline that find boxes."""


def describe(server: str, model: str, access: Access = OPEN) -> ModelDescription:
    """Asks the server for a model's description; RefusedError when it does not serve it."""
    with access.channel(server) as channel:
        _wait_for(server, channel)
        stub = InferenceStub(channel, access.headers())
        try:
            metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name=model), timeout=ASK_S)
            config = stub.ModelConfig(pb.ModelConfigRequest(name=model), timeout=ASK_S).config
        except grpc.RpcError as error:
            said = error.details() or "no answer"
            raise RefusedError(error.code().name, f"{server}: {said}") from None
    if not metadata.inputs:
        raise BadRequestError(f"model {model!r} has no inputs: ask for one that has")
    given, *others = metadata.inputs
    optional = {each.name for each in config.input if each.optional}
    facts = {name: value.string_value for name, value in config.parameters.items()}
    return ModelDescription(
        model,
        given.name,
        given.datatype,
        _one_row(given.shape),
        metadata.outputs[0].name if metadata.outputs else "",
        round(float(facts.get("slo_ms", 0)) * 1e6),
        int(facts.get("labels", 0)),
        # Other servers do not say; what they call BYTES is most often a picture.
        facts.get("takes", "pictures" if given.datatype == "BYTES" else "tensors"),
        tuple(
            (each.name, each.datatype, _one_row(each.shape))
            for each in others
            if each.name not in optional
        ),
        facts.get("fit", "whole"),
        _boxes(facts),
        facts.get("boxes_axis", "last"),
        facts.get("boxes_format", "xyxy"),
        tuple(map(str, json.loads(facts.get("box_labels", "[]")))),
        metadata.outputs[0].name if facts.get("answers") == "pipeline" else "",
        box_forms(facts.get("stage_boxes", "{}")),
    )


def _boxes(facts: dict[str, str]) -> str:
    """The output with boxes; servers before 9 have one only, and do not name it."""
    return facts.get("boxes", "output" if facts.get("answers") == "boxes" else "")


def _one_row(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a request of one row, where the batch dimension is left open."""
    first, *rest = shape or (1,)
    return (1 if first < 0 and rest else first, *rest)


def _wait_for(server: str, channel: grpc.Channel) -> None:
    """Until somebody listens there; RefusedError with the remedy when nobody does."""
    try:
        grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
    except grpc.FutureTimeoutError:
        raise RefusedError(
            "UNAVAILABLE",
            f"no server answers at {server}: start one with `fermata serve`, or name another with "
            "--server HOST:PORT",
        ) from None


def sample_input(model: ModelDescription, seed: int, height: int, width: int) -> RawTensor:
    """Some input the model takes: noise, a sentence, or a picture of that size."""
    rng = np.random.default_rng(seed)
    if model.takes == "text":
        return RawTensor(model.input, "BYTES", (1,), join_bytes([SENTENCE]))
    if model.datatype == "BYTES" and model.shape not in ((1,), (1, 1)):
        return _noise(rng, model.input, model.datatype, model.shape, 100)
    if model.datatype == "BYTES":
        # Smooth, so that it compresses like a photograph rather than like noise.
        coarse = rng.integers(0, 256, (max(1, height // 40), max(1, width // 40), 3), np.uint8)
        rows = np.arange(height) * coarse.shape[0] // height
        columns = np.arange(width) * coarse.shape[1] // width
        frame = np.ascontiguousarray(coarse[rows][:, columns])
        return RawTensor(model.input, "BYTES", (1,), join_bytes([encode_jpeg(frame)]))
    return _noise(rng, model.input, model.datatype, model.shape, 100)


def sample_more(model: ModelDescription, seed: int) -> tuple[RawTensor, ...]:
    """The inputs that go with the first; whole numbers are 0 or 1, as masks and types have them."""
    rng = np.random.default_rng(seed)
    return tuple(_noise(rng, *given, 2) for given in model.more_inputs)


def _noise(
    rng: np.random.Generator, name: str, datatype: str, given: tuple[int, ...], below: int
) -> RawTensor:
    shape = tuple(dim if dim >= 0 else VARYING for dim in given)
    if datatype == "BYTES":
        return RawTensor(name, datatype, shape, join_bytes([SENTENCE] * prod(shape)))
    dtype = DTYPES[datatype]
    if datatype == "BF16":
        # Bit patterns of numbers from 0.5 to 2.
        data = rng.integers(0x3F00, 0x3FFF, shape).astype(dtype)
    elif dtype.kind == "f":
        data = rng.random(shape).astype(dtype)
    else:
        data = rng.integers(0, 2 if dtype.kind == "b" else below, shape).astype(dtype)
    return RawTensor(name, datatype, shape, data.tobytes())
