"""Response messages from outcomes."""

from msgspec import structs

from fermata.clients.wire import parameters as names
from fermata.clients.wire.errors import TEXT_MAX, BadRequestError, shown
from fermata.clients.wire.open_inference_pb2 import (
    InferParameter,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from fermata.clients.wire.tensors import FLOATS, RawTensor, join_bytes, to_array
from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.own_pixels import in_own_pixels
from fermata.deployments.frontend.protocol.client_errors import refusal_of
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.models.highest import highest
from fermata.router.links.messages import InputSizeAdvice, Result

INFER_RESPONSE_TAG = b"\x12"
"""Field 2 of a ModelStreamInferResponse."""
ID_TAG, PARAMETERS_TAG, CONTENTS_TAG = b"\x1a", b"\x22", b"\x32"
"""Fields 3, 4 and 6 of a ModelInferResponse."""
KEY_TAG, VALUE_TAG, INT64_TAG = b"\x0a", b"\x12", b"\x10"
"""Fields 1 and 2 of an entry of its parameters, and field 2 of its value."""
TEMPLATES_MAX = 64
"""Kept of one stream: there is one for each variant and shape of outputs."""

Key = tuple[str, str, str, bool, tuple[tuple[str, str, tuple[int, ...]], ...]]


def response_of(request: ParsedRequest, result: Result, queue_ns: int) -> ModelInferResponse:
    """The answer of a unary call; BadRequestError for an output that the model did not give."""
    result = _checked(request, result)
    response = ModelInferResponse(
        model_name=request.model.name, model_version=request.version, id=request.request_id
    )
    _fill(response, request, result, queue_ns)
    return response


def stream_response_of(
    request: ParsedRequest, outcome: Outcome, queue_ns: int
) -> ModelStreamInferResponse:
    """The answer within a stream; a refusal is data there, not the end of the stream."""
    if isinstance(outcome, Refusal):
        return stream_refusal(request.model.name, request.request_id, outcome)
    message = ModelStreamInferResponse()
    try:
        outcome = _checked(request, outcome)
    except BadRequestError as error:
        return stream_refusal(request.model.name, request.request_id, refusal_of(error))
    response = message.infer_response
    response.model_name = request.model.name
    response.model_version = request.version
    if request.request_id:
        response.id = request.request_id
    _fill(response, request, outcome, queue_ns)
    response.parameters[names.FINAL].bool_param = True
    return message


def stream_refusal(model: str, request_id: str, refusal: Refusal) -> ModelStreamInferResponse:
    """A refusal within a stream, with the id of its request and a reason in its parameters."""
    given = {
        names.STATUS: InferParameter(string_param=refusal.status),
        names.REASON: InferParameter(string_param=refusal.reason),
        names.FINAL: InferParameter(bool_param=True),
    }
    if refusal.retry_after_ns:
        retry_after_us = refusal.retry_after_ns // 1000
        given[names.RETRY_AFTER_US] = InferParameter(int64_param=retry_after_us)
    # A longer id was the reason for the refusal, and would be kept until its client reads.
    response = ModelInferResponse(
        model_name=model[:TEXT_MAX], id=request_id[:TEXT_MAX], parameters=given
    )
    return ModelStreamInferResponse(
        error_message=f"{refusal.status}: {refusal.message}", infer_response=response
    )


def stream_acknowledgement(model: str, request_id: str) -> ModelStreamInferResponse:
    """An acknowledgement that a frame has arrived, for a client that asks for it."""
    given = {names.RECEIVED: InferParameter(bool_param=True)}
    response = ModelInferResponse(model_name=model, id=request_id, parameters=given)
    return ModelStreamInferResponse(infer_response=response)


def advise(response: ModelInferResponse, server_ns: int, advice: InputSizeAdvice | None) -> None:
    """Add server time and advice on the next input size, for a client that reports."""
    given = response.parameters
    given[names.SERVER_US].int64_param = server_ns // 1000
    if advice is not None:
        given[names.INPUT_SIZE].int64_param = advice.input_size
        given[names.NETWORK_US].int64_param = advice.network_ns // 1000
        given[names.SERVED].bool_param = advice.served


def _checked(request: ParsedRequest, result: Result) -> Result:
    """The result with boxes in the client's pixels.

    Refuses an output that was asked for by a name that the model does not have.
    """
    given = {name for name, *_ in result.tensors} if request.classes else set()
    for name, _ in request.classes:
        if name not in given:
            raise BadRequestError(
                f"model {request.model.name!r} gave no output {shown(name)}: "
                f"ask for one of {', '.join(sorted(given))}"
            )
    model, frame = request.model, request.input.frame
    if model.boxes is None or not frame[0]:
        return result
    return structs.replace(result, tensors=in_own_pixels(model, result, frame))


def _fill(
    response: ModelInferResponse, request: ParsedRequest, result: Result, queue_ns: int
) -> None:
    given = response.parameters
    given[names.VARIANT].string_param = result.variant
    given[names.BATCH_SIZE].int64_param = result.batch_size
    given[names.QUEUE_US].int64_param = queue_ns // 1000
    given[names.RUN_US].int64_param = result.run_ns // 1000
    if result.estimate >= 0.0:
        given[names.ESTIMATE].double_param = result.estimate
        given[names.SHORT_CIRCUIT].bool_param = result.short_circuit
    wanted = dict(request.classes)
    for name, datatype, shape, data in result.tensors:
        if wanted and name not in wanted:
            continue
        rows = request.input.rows
        if request.input.batched and rows == 1:
            shape = (1, *shape)
        if wanted.get(name):
            tensor = RawTensor(name, datatype, shape, data)
            elements = best_classes(tensor, wanted[name], request.model.labels, rows)
            datatype, shape, data = "BYTES", (len(elements) // rows,), join_bytes(elements)
            shape = (rows, *shape) if request.input.batched else shape
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(data)


def best_classes(
    tensor: RawTensor, count: int, labels: tuple[str, ...], rows: int = 1
) -> list[bytes]:
    """`score:index:label` of each row's best classes, as Triton's classification extension has
    it."""
    found: list[bytes] = []
    for scores in to_array(tensor).reshape(rows, -1):
        for index in highest(scores, count):
            score = f"{scores[index]:f}" if tensor.datatype in FLOATS else str(scores[index])
            label = f":{labels[index]}" if index < len(labels) else ""
            found.append(f"{score}:{index}{label}".encode())
    return found


def varint(value: int) -> bytes:
    """A number from 0 up."""
    if value < 128:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
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
        key = with_length(KEY_TAG, name.encode()) + VALUE_TAG
        # All but the number, by how many bytes that takes. Neither length reaches 128: a key is
        # short, and a number has ten bytes at most.
        self.before = tuple(
            PARAMETERS_TAG + bytes((len(key) + 2 + size,)) + key + bytes((size + 1,)) + INT64_TAG
            for size in range(11)
        )

    def write(self, value: int) -> bytes:
        number = varint(value)
        return self.before[len(number)] + number


BATCH_SIZE = IntegerParameter(names.BATCH_SIZE)
QUEUE_US = IntegerParameter(names.QUEUE_US)
RUN_US = IntegerParameter(names.RUN_US)


class ReplyTemplate:
    """Bytes that many answers of one stream share."""

    __slots__ = ("batch_part", "batch_size", "run_ns", "shared")

    def __init__(self, key: Key) -> None:
        self.shared = _shared_part(key)
        self.batch_size = self.run_ns = -1
        self.batch_part = self.shared

    def start(self, result: Result) -> bytes:
        """Everything but what is the request's own. Answers of a batch follow one another."""
        if result.run_ns != self.run_ns or result.batch_size != self.batch_size:
            self.run_ns, self.batch_size = result.run_ns, result.batch_size
            numbers = BATCH_SIZE.write(self.batch_size) + RUN_US.write(self.run_ns // 1000)
            self.batch_part = self.shared + numbers
        return self.batch_part


class ReplyTemplates:
    """Templates of the answers in one stream."""

    def __init__(self) -> None:
        self.known: dict[Key, ReplyTemplate] = {}

    def reply(self, request: ParsedRequest, result: Result, queue_ns: int) -> bytes | None:
        """A ModelStreamInferResponse as it goes out; None where the answer needs more than that."""
        given = request.input
        model = given.model
        boxes = model.boxes is not None and given.frame[0]
        if boxes or request.classes or result.estimate >= 0.0:
            return None
        outputs = tuple([tensor[:3] for tensor in result.tensors])
        # An answer to several rows has their dimension already.
        lone_row = given.batched and given.rows == 1
        key = model.name, request.version, result.variant, lone_row, outputs
        template = self.known.get(key)
        if template is None:
            if len(self.known) >= TEMPLATES_MAX:
                self.known.clear()
            template = self.known[key] = ReplyTemplate(key)
        parts = [template.start(result), QUEUE_US.write(max(0, queue_ns) // 1000)]
        if request.request_id:
            parts.append(with_length(ID_TAG, request.request_id.encode()))
        for tensor in result.tensors:
            parts += (CONTENTS_TAG, varint(len(tensor[3])), tensor[3])
        size = sum(map(len, parts))
        return b"".join((INFER_RESPONSE_TAG, varint(size), *parts))


def _shared_part(key: Key) -> bytes:
    name, version, variant, lone_row, outputs = key
    response = ModelInferResponse(model_name=name, model_version=version)
    response.parameters[names.VARIANT].string_param = variant
    response.parameters[names.FINAL].bool_param = True
    for output, datatype, shape in outputs:
        response.outputs.add(
            name=output, datatype=datatype, shape=(1, *shape) if lone_row else shape
        )
    return response.SerializeToString()
