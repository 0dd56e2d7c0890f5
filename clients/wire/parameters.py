"""`parameters` of requests and responses: what they mean, and Python values of them."""

import math
from collections.abc import Mapping

from fermata.clients.wire.errors import TEXT_MAX, BadRequestError, shown
from fermata.clients.wire.open_inference_pb2 import InferParameter

TIMEOUT = "timeout"
"""A request's SLO in microseconds, as Triton has it."""
PRIORITY = "priority"
"""1 is highest, 0 the default, as Triton has it."""
CLIENT = "client"
"""The stream a frame belongs to: a number or a name."""
SEQUENCE = "sequence_id"
"""Triton's word for the same; used where `client` is not given."""
SEQUENCE_START = "sequence_start"
"""Whether the request is the first of its sequence; for models that keep a state."""
SEQUENCE_END = "sequence_end"
"""Whether it is the last."""
FPS = "fps"
"""Frames that this client sends a second."""
BANDWIDTH = "bandwidth_bps"
"""Bandwidth of its uplink, as it has measured it."""
ROUND_TRIP_US = "round_trip_us"
"""Round trip of an empty message."""
SLO_US = "slo_us"
"""From the camera to the answer; `timeout` is what was left of it when the frame was sent."""
INPUT_SIZE = "input_size"
"""In a request: the side of this frame, as the model's `fit` counts it. In an answer: of those to
send from now on."""
FRAME_BITS = "frame_bits"
"""Bits that a frame of this size has at the lowest quality that its client would send; absent: as
many as came."""
SOURCE_SIZE = "source_size"
"""The largest size that this client's source can fill; absent: any."""
ACCURACY_FLOOR = "accuracy_floor"
"""No variant below it may serve this request, or this client's frames."""
PINNED = "pinned_variant"
"""The only variant that may."""
NETWORK_US = "network_us"
"""In an answer: how long a frame of that size may be on its way."""
SERVED = "served"
"""In an answer: false where there is no room for this client now."""
SERVER_US = "server_us"
"""In an answer: from the frame's arrival to the answer's departure; the rest was the network."""
ACKNOWLEDGE = "acknowledge"
"""In a request of a stream: say at once that the frame is here, with a message of its own."""
RECEIVED = "received"
"""Marks that message: the answer to the frame is yet to come."""
TRUTH = "truth"
"""In a request: the true class of an earlier one, a number or a label."""
TRUTH_ANSWER = "truth_answer"
"""The class that was answered then."""
TRUTH_VARIANT = "truth_variant"
"""The `variant` of that answer."""
TRACEPARENT = "traceparent"
"""In a request: the caller's trace (W3C trace context); a header of that name does too."""
FINAL = "triton_final_response"
"""In an answer of a stream: no more will come for its request; clients of Triton wait for it."""
VARIANT = "variant"
BATCH_SIZE = "batch_size"
QUEUE_US = "queue_us"
RUN_US = "run_us"
ESTIMATE = "estimate"
"""How likely the answer was thought to be right, where somebody looked at the request."""
SHORT_CIRCUIT = "short_circuit"
"""Whether the answer came from that look alone."""
STATUS = "status"
"""For a refusal within a stream: the name of the gRPC status a unary call would have ended with."""
REASON = "reason"
RETRY_AFTER_US = "retry_after_us"

INT64_MAX = (1 << 63) - 1
Value = bool | int | str | float


def parameter(value: Value) -> InferParameter:
    """A Python value as a parameter."""
    if isinstance(value, bool):
        return InferParameter(bool_param=value)
    if isinstance(value, int):
        # Ids of sequences may be as large as this.
        large = value > INT64_MAX
        return InferParameter(uint64_param=value) if large else InferParameter(int64_param=value)
    if isinstance(value, float):
        return InferParameter(double_param=value)
    return InferParameter(string_param=value)


def value_of(given: InferParameter) -> Value | None:
    """The value a parameter holds; None when it holds none."""
    choice = given.WhichOneof("parameter_choice")
    if choice is None:
        return None
    value: Value = getattr(given, choice)
    return value


def integer(parameters: Mapping[str, InferParameter], name: str) -> int | None:
    """An integer parameter, whichever integer field the client put it in; None when absent."""
    if name not in parameters:
        return None
    value = value_of(parameters[name])
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequestError(f"parameter {name}={shown(value)} is no integer: use int64_param")
    return value


def number(parameters: Mapping[str, InferParameter], name: str) -> float | None:
    """A parameter that is a number; None when absent."""
    if name not in parameters:
        return None
    value = value_of(parameters[name])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadRequestError(f"parameter {name}={shown(value)} is no number of 0 or more")
    return float(value)


def text(parameters: Mapping[str, InferParameter], name: str) -> str:
    """A parameter as text; empty when absent."""
    value = value_of(parameters[name]) if name in parameters else None
    said = "" if value is None else str(value)
    if len(said) > TEXT_MAX:
        raise BadRequestError(f"parameter {name} has {len(said)} characters: use up to {TEXT_MAX}")
    return said


def truth(parameters: Mapping[str, InferParameter], name: str) -> bool:
    """A parameter that is yes or no; no when absent."""
    if name not in parameters:
        return False
    value = value_of(parameters[name])
    if not isinstance(value, bool):
        raise BadRequestError(
            f"parameter {name}={shown(value)} is neither true nor false: use bool_param"
        )
    return value
