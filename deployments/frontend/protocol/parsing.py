"""From a message to a request: which model, what input, by when, and whether all of it is sound."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from fermata.clients.wire import parameters as names
from fermata.clients.wire.errors import TEXT_MAX, BadRequestError, shown
from fermata.clients.wire.open_inference_pb2 import InferParameter, ModelInferRequest
from fermata.clients.wire.parameters import integer, number, text, truth
from fermata.clients.wire.tensors import DTYPES, RawTensor, request_tensors, shape_of, split_bytes
from fermata.deployments.frontend.protocol.images import SIDE_MAX, frame_size
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.specs import Registry, ServedModel, TensorSpec
from fermata.foundation.units import NEVER
from fermata.router.links.messages import ClientNetworkReport

CLIENT_BITS = 63
OUTPUTS_MAX = 64
LASTS_US_MAX = 600_000_000
"""Ten minutes: what clients say of time is no more."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A sound request; only its pixels and numbers have not been looked at."""

    model: ServedModel
    version: str
    request_id: str
    arrival: RequestTerms
    tensor: RawTensor
    encoded: bool
    """The input is still to be decoded or scaled."""
    batched: bool
    """The client counts a batch dimension of 1, and gets one back."""
    frame: tuple[int, int] = (0, 0)
    """Height and width of the client's picture, where answers are given in its pixels."""
    report: ClientNetworkReport | None = None
    """What its client says of itself and its network, where it does."""
    acknowledge: bool = False
    """A client on a network that changes wants to hear at once that its frame is here."""
    traceparent: str = ""
    """Its caller's trace, where it says one."""
    classes: tuple[tuple[str, int], ...] = ()
    """The outputs asked for, each with how many best classes to name; 0 for the tensor itself."""


def parse_request(
    request: ModelInferRequest,
    registry: Registry,
    left_ns: int = NEVER,
    stream: int = 0,
    traceparent: str = "",
    tenant: str = "",
) -> ParsedRequest:
    """The request in this message. Raises BadRequestError or UnknownModelError.

    `stream` is the client of frames that do not name one, `traceparent` the trace of those that say
    none. Clients of two tenants are two, whatever they call themselves.
    """
    model, version = registry.find(request.model_name, request.model_version)
    # How much there is comes before what it is: a million elements take seconds to look at.
    if len(request.inputs) != 1:
        raise BadRequestError(
            f"model {model.name!r} takes one input, {model.input.name!r}, not {len(request.inputs)}"
        )
    if len(request.outputs) > OUTPUTS_MAX:
        raise BadRequestError(f"{len(request.outputs)} outputs: ask for at most {OUTPUTS_MAX}")
    if len(request.id) > TEXT_MAX:
        raise BadRequestError(f"the id has {len(request.id)} characters: use up to {TEXT_MAX}")
    declared = request.inputs[0]
    if declared.name != model.input.name:
        raise BadRequestError(
            f"model {model.name!r} has no input {shown(declared.name)}: send {model.input.name!r}"
        )
    if declared.parameters:
        _refuse_shared_memory(declared)
    encoded, batched = _check_input(model, declared)
    (tensor,) = request_tensors(request)
    if not tensor.data:
        raise BadRequestError(
            f"input {tensor.name!r} of shape {list(tensor.shape)} holds nothing: send some"
        )
    if model.sides and not encoded:
        raise BadRequestError(f"model {model.name!r} takes pictures: send a JPEG as BYTES[1]")
    given = request.parameters
    slo_ns, hard_limit_ns = model.slo_ns, model.hard_limit_ns
    priority, client = 0, stream
    floor, pinned = 0.0, ""
    if given:
        timeout_us = integer(given, names.TIMEOUT)
        if timeout_us is not None:
            # What the hard limit allows on top of the SLO stays the same.
            slo_ns, hard_limit_ns = timeout_us * 1000, timeout_us * 1000 + hard_limit_ns - slo_ns
        priority = _priority(integer(given, names.PRIORITY))
        named = text(given, names.CLIENT) or text(given, names.SEQUENCE)
        client = _client(named, tenant) or stream
        floor, pinned = number(given, names.ACCURACY_FLOOR) or 0.0, text(given, names.PINNED)
        traceparent = text(given, names.TRACEPARENT) or traceparent
    wants_frame = model.boxes or bool(model.sides)
    frame = _frame(tensor, batched) if encoded and wants_frame else (0, 0)
    arrival = RequestTerms(
        model.application(version),
        slo_ns,
        hard_limit_ns,
        _size_bytes(model, tensor, encoded, frame),
        priority,
        client,
        left_ns,
        floor,
        pinned,
        tenant_number(tenant),
    )
    classes = _classes(model, request) if request.outputs else ()
    report = _report(arrival, given, len(tensor.data)) if names.FPS in given else None
    acknowledge = report is not None and truth(given, names.ACKNOWLEDGE)
    return ParsedRequest(
        model,
        version,
        request.id,
        arrival,
        tensor,
        encoded,
        batched,
        frame,
        report,
        acknowledge,
        traceparent,
        classes,
    )


def _report(
    arrival: RequestTerms, given: Mapping[str, InferParameter], size_bytes: int
) -> ClientNetworkReport | None:
    """What the client says of itself; nothing where nobody would know whose report it is."""
    if not arrival.client:
        return None
    slo_us = _within(given, names.SLO_US, LASTS_US_MAX)
    return ClientNetworkReport(
        arrival.application,
        arrival.client,
        arrival.slo_ns if slo_us is None else slo_us * 1000,
        number(given, names.FPS) or 0.0,
        number(given, names.BANDWIDTH) or 0.0,
        _within(given, names.INPUT_SIZE, SIDE_MAX) or 0,
        8 * size_bytes,
        (_within(given, names.ROUND_TRIP_US, LASTS_US_MAX) or 0) * 1000,
        arrival.accuracy_floor,
        arrival.pinned,
    )


def _within(given: Mapping[str, InferParameter], name: str, most: int) -> int | None:
    value = integer(given, name)
    if value is not None and not 0 <= value <= most:
        raise BadRequestError(f"parameter {name}={value}: must be from 0 to {most}")
    return value


def _frame(tensor: RawTensor, batched: bool) -> tuple[int, int]:
    if tensor.datatype == "BYTES":
        return frame_size(split_bytes(tensor.data)[0])
    height, width = tensor.shape[1:3] if batched else tensor.shape[:2]
    return height, width


def _check_input(
    model: ServedModel, tensor: ModelInferRequest.InferInputTensor
) -> tuple[bool, bool]:
    """Whether the input is still a picture, and whether it has a batch dimension."""
    spec, shape = model.input, shape_of(tensor)
    if model.takes_bytes and tensor.datatype == "BYTES":
        if shape not in ((), (1,), (1, 1)):
            raise BadRequestError(
                f"input {tensor.name!r} has shape {list(shape)}: send one element, shape [1]"
            )
        return True, shape == (1, 1)
    if model.image is not None:
        frame = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
        if tensor.datatype == "UINT8" and len(frame) == 3 and frame[2] == 3 and 0 not in frame:
            fitted = _matches(spec.shape, frame) and spec.datatype == "UINT8"
            return not fitted, len(shape) == 4
    if tensor.datatype != spec.datatype:
        raise BadRequestError(
            f"input {tensor.name!r} is {tensor.datatype}: model {model.name!r} takes "
            f"{_wanted(model)}"
        )
    if _matches(spec.shape, shape):
        return False, False
    if shape and shape[0] == 1 and _matches(spec.shape, shape[1:]):
        return False, True
    if shape and shape[0] != 1 and _matches(spec.shape, shape[1:]):
        raise BadRequestError(
            f"input {tensor.name!r} holds {shape[0]} items: send each as a request of its own, "
            "batches are formed here"
        )
    raise BadRequestError(
        f"input {tensor.name!r} has shape {list(shape)}: model {model.name!r} takes "
        f"{_wanted(model)}"
    )


def _wanted(model: ServedModel) -> str:
    spec = model.input
    wanted = f"{spec.datatype}{list(spec.shape)}"
    if model.image is not None:
        wanted += ", or a picture: BYTES[1] with a JPEG or UINT8[height, width, 3]"
    elif model.read is not None:
        wanted += ", or BYTES[1]"
    return wanted


def _matches(wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if wanted == shape:
        return True
    return len(wanted) == len(shape) and all(
        want in (-1, got) for want, got in zip(wanted, shape, strict=True)
    )


def _size_bytes(
    model: ServedModel, tensor: RawTensor, encoded: bool, frame: tuple[int, int]
) -> int:
    """Memory it takes: the input, and beside it the picture while that waits to be decoded."""
    if not encoded:
        return len(tensor.data)
    if model.sides:
        height, width = frame
        return len(tensor.data) + 3 * height * width
    return len(tensor.data) + input_bytes(model.input)


def input_bytes(spec: TensorSpec) -> int:
    """Size of a decoded picture."""
    size = DTYPES[spec.datatype].itemsize
    for dim in spec.shape:
        size *= dim
    return size


def _priority(given: int | None) -> int:
    if given is None:
        return 0
    if not 0 <= given < 1 << 32:
        raise BadRequestError(f"priority={given}: use 1 for the highest, 0 for the default")
    return given


@lru_cache(maxsize=4096)
def tenant_number(name: str) -> int:
    """What the router and the counters know a tenant by; 0 where nobody has to say who they are."""
    return _client(name, name) if name else 0


def _client(given: str, tenant: str) -> int:
    """The number of a tenant's stream that is known by a number or a name; 0 for none."""
    if given in ("", "0"):
        return 0
    if not tenant and given.isdecimal() and len(given) < 19:
        return int(given)
    digest = blake2b(given.encode(), digest_size=8, key=blake2b(tenant.encode()).digest())
    return int.from_bytes(digest.digest(), "big") >> 1 or 1


def _classes(model: ServedModel, request: ModelInferRequest) -> tuple[tuple[str, int], ...]:
    known = {spec.name for spec in model.outputs}
    found: list[tuple[str, int]] = []
    for output in request.outputs:
        if known and output.name not in known:
            raise BadRequestError(
                f"model {model.name!r} has no output {shown(output.name)}: "
                f"ask for one of {', '.join(sorted(known))}"
            )
        count = integer(output.parameters, "classification") or 0
        if count < 0:
            raise BadRequestError(f"classification={count}: ask for 1 class or more")
        if "shared_memory_region" in output.parameters:
            raise BadRequestError(
                "outputs in shared memory are not supported: leave the region out"
            )
        found.append((output.name, count))
    return tuple(found)


def _refuse_shared_memory(given: ModelInferRequest.InferInputTensor) -> None:
    if "shared_memory_region" in given.parameters:
        raise BadRequestError(
            f"input {given.name!r} names shared memory, which is not supported: send its data"
        )
