"""Answers in streams, written from templates: those of one model differ in few bytes.

Protobuf takes fields in any order, so an answer is a part that many share and its own part behind.
"""

from fermata.clients.wire import parameters as names
from fermata.clients.wire.open_inference_pb2 import ModelInferResponse
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.router.links.messages import Result

INFER_RESPONSE_TAG = b"\x12"
"""Field 2 of a ModelStreamInferResponse."""
ID_TAG, PARAMETERS_TAG, CONTENTS_TAG = b"\x1a", b"\x22", b"\x32"
"""Fields 3, 4 and 6 of a ModelInferResponse."""
KEY_TAG, VALUE_TAG, INT64_TAG = b"\x0a", b"\x12", b"\x10"
"""Fields 1 and 2 of an entry of its parameters, and field 2 of its value."""
TEMPLATES_MAX = 64
"""Kept of one stream: there is one for each variant and shape of outputs."""

Key = tuple[str, str, str, bool, tuple[tuple[str, str, tuple[int, ...]], ...]]


def varint(value: int) -> bytes:
    """A number from 0 up."""
    if value < 128:
        return bytes((value,))
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def with_length(tag: bytes, body: bytes) -> bytes:
    """A field with this body."""
    return tag + varint(len(body)) + body


class IntegerParameter:
    """Writes one parameter that is a number."""

    def __init__(self, name: str) -> None:
        self.key = with_length(KEY_TAG, name.encode()) + VALUE_TAG

    def write(self, value: int) -> bytes:
        number = varint(value)
        size = len(number) + 1
        # Neither length reaches 128: a key is short, and a number has ten bytes at most.
        return b"".join(
            (
                PARAMETERS_TAG,
                bytes((len(self.key) + 1 + size,)),
                self.key,
                bytes((size,)),
                INT64_TAG,
                number,
            )
        )


BATCH_SIZE = IntegerParameter(names.BATCH_SIZE)
QUEUE_US = IntegerParameter(names.QUEUE_US)
RUN_US = IntegerParameter(names.RUN_US)


class ReplyTemplates:
    """Templates of the answers in one stream."""

    def __init__(self) -> None:
        self.known: dict[Key, bytes] = {}

    def reply(self, request: ParsedRequest, result: Result, queue_ns: int) -> bytes | None:
        """A ModelStreamInferResponse as it goes out; None where the answer needs more than that."""
        model = request.model
        if request.classes or result.estimate >= 0.0 or (model.boxes and request.input.frame[0]):
            return None
        outputs = tuple([tensor[:3] for tensor in result.tensors])
        key = model.name, request.version, result.variant, request.input.batched, outputs
        shared = self.known.get(key)
        if shared is None:
            if len(self.known) >= TEMPLATES_MAX:
                self.known.clear()
            shared = self.known[key] = _shared_part(key)
        parts = [
            shared,
            BATCH_SIZE.write(result.batch_size),
            QUEUE_US.write(max(0, queue_ns) // 1000),
            RUN_US.write(result.run_ns // 1000),
        ]
        if request.request_id:
            parts.append(with_length(ID_TAG, request.request_id.encode()))
        for tensor in result.tensors:
            parts += (CONTENTS_TAG, varint(len(tensor[3])), tensor[3])
        size = sum(map(len, parts))
        return b"".join((INFER_RESPONSE_TAG, varint(size), *parts))


def _shared_part(key: Key) -> bytes:
    name, version, variant, batched, outputs = key
    response = ModelInferResponse(model_name=name, model_version=version)
    response.parameters[names.VARIANT].string_param = variant
    for output, datatype, shape in outputs:
        response.outputs.add(
            name=output, datatype=datatype, shape=(1, *shape) if batched else shape
        )
    return response.SerializeToString()
