"""From a message to a request: its model, input and deadline, all checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fermata.applications.shapes import in_bucket
from fermata.clients.wire import parameters as names
from fermata.clients.wire.errors import TEXT_MAX, BadRequestError, shown
from fermata.clients.wire.open_inference_pb2 import InferParameter, ModelInferRequest
from fermata.clients.wire.parameters import integer, number, text, truth, value_of
from fermata.deployments.frontend.access.client_ids import client_number, tenant_number
from fermata.deployments.frontend.inputs.feedback import read_truth
from fermata.deployments.frontend.inputs.reading import InputForm, input_form, read_input
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.models.pictures.decoding import SIDE_MAX
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.units import NEVER
from fermata.router.core.events import SequenceStep
from fermata.router.links.messages import ClientNetworkReport, Truth

OUTPUTS_MAX = 64
DURATION_US_MAX = 600_000_000
"""Ten minutes: the longest time that a client may report."""
FRAME_BITS_MAX = 1 << 40

Parameters = Mapping[str, InferParameter]


@dataclass(frozen=True, slots=True)
class CallContext:
    """Facts about a call that its messages do not carry."""

    left_ns: int = NEVER
    """Time until its gRPC deadline."""
    stream: int = 0
    """Client of requests that name none."""
    traceparent: str = ""
    """Trace of requests that name none."""
    tenant: str = ""
    """Name of the tenant; two tenants' clients are two, even under the same name."""


UNKNOWN_CALL = CallContext()


@dataclass(slots=True)
class RequestHead:
    """Everything about a request but its id and its data."""

    model: ServedModel
    version: str
    form: InputForm | None
    """The form of its only input; None: the model has several."""
    terms: RequestTerms
    """With the size and rows of the last input read."""
    given: Parameters
    traceparent: str = ""
    classes: tuple[tuple[str, int], ...] = ()
    sequence_id: str = ""

    def request(self, request_id: str, read: RequestInput) -> ParsedRequest:
        """The request with this id and input. Raises BadRequestError."""
        size_bytes, rows = read.memory_bytes(), read.rows
        if self.sequence_id and rows > 1:
            raise BadRequestError(
                f"sequence {self.sequence_id} has {rows} rows in one request: send one a request"
            )
        if size_bytes != self.terms.size_bytes or rows != self.terms.rows:
            self.terms = replace(self.terms, size_bytes=size_bytes, rows=rows)
        if self.model.buckets:
            self._choose_bucket(read)
        report = None
        if names.FPS in self.given:
            report = _report(self.terms, self.given, len(read.tensor.data))
        return ParsedRequest(
            self.version,
            request_id,
            self.terms,
            read,
            report,
            acknowledge=report is not None and truth(self.given, names.ACKNOWLEDGE),
            traceparent=self.traceparent,
            classes=self.classes,
            truth=self._truth() if names.TRUTH in self.given else None,
            sequence_id=self.sequence_id,
        )

    def _choose_bucket(self, read: RequestInput) -> None:
        """Send it to the application of its shape bucket. Raises BadRequestError."""
        place, pinned = read.bucket, self.terms.pinned
        application = self.model.applications(self.version)[place]
        # A message that came before has the same shape, and so the same bucket.
        if application != self.terms.application:
            pinned = pinned and in_bucket(pinned, self.model.buckets[place])
            self.terms = replace(self.terms, application=application, pinned=pinned)

    def _truth(self) -> Truth:
        """The truth of an earlier request."""
        told = {
            key: value_of(self.given[name])
            for key, name in (
                ("label", names.TRUTH),
                ("answer", names.TRUTH_ANSWER),
                ("variant", names.TRUTH_VARIANT),
            )
            if name in self.given
        }
        return read_truth(self.model, self.version, told, self.terms.tenant)


def parse_request(
    request: ModelInferRequest, registry: Registry, call: CallContext = UNKNOWN_CALL
) -> ParsedRequest:
    """The request in this message. Raises BadRequestError or UnknownModelError."""
    head = read_head(request, registry, call)
    return head.request(request.id, read_input(head.model, head.form, request))


def read_head(
    request: ModelInferRequest, registry: Registry, call: CallContext = UNKNOWN_CALL
) -> RequestHead:
    """The message without its id and data. Raises BadRequestError or UnknownModelError."""
    model, version = registry.find(request.model_name, request.model_version)
    _check_counts(request)
    form = input_form(model, request)
    # Looking into an empty protobuf map costs more than into a dict.
    given: Parameters = request.parameters or {}
    slo_ns, hard_limit_ns = _time_limits(model, given)
    client = text(given, names.CLIENT) or text(given, names.SEQUENCE)
    step, sequence_id = None, ""
    if model.stateful is not None:
        step, sequence_id = _step(model, given, call.tenant)
    terms = RequestTerms(
        model.application(version),
        slo_ns,
        hard_limit_ns,
        0,
        _priority(given),
        client_number(client, call.tenant) or call.stream,
        call.left_ns,
        number(given, names.ACCURACY_FLOOR) or 0.0,
        text(given, names.PINNED),
        tenant_number(call.tenant),
        model.slo_ns,
        sequence=step,
    )
    return RequestHead(
        model,
        version,
        form,
        terms,
        given,
        text(given, names.TRACEPARENT) or call.traceparent,
        _classes(model, request) if request.outputs else (),
        sequence_id,
    )


def _step(model: ServedModel, given: Parameters, tenant: str) -> tuple[SequenceStep, str]:
    """A request's part in a sequence, and the sequence's id as its client has it."""
    sequence_id = text(given, names.SEQUENCE)
    key = client_number(sequence_id, tenant)
    if not key:
        raise BadRequestError(
            f"model {model.name!r} takes sequences: send parameter {names.SEQUENCE}, a number "
            "other than 0 or a text"
        )
    if isinstance(value_of(given[names.SEQUENCE]), bool | float):
        raise BadRequestError(
            f"parameter {names.SEQUENCE}={sequence_id}: must be an integer or a text"
        )
    start, end = truth(given, names.SEQUENCE_START), truth(given, names.SEQUENCE_END)
    return SequenceStep(key, start, end), sequence_id


def _check_counts(request: ModelInferRequest) -> None:
    """Refuse a message with too many parts before any is read: a million take seconds."""
    if len(request.outputs) > OUTPUTS_MAX:
        raise BadRequestError(f"{len(request.outputs)} outputs: ask for at most {OUTPUTS_MAX}")
    if len(request.id) > TEXT_MAX:
        raise BadRequestError(f"the id has {len(request.id)} characters: use up to {TEXT_MAX}")


def _time_limits(model: ServedModel, given: Parameters) -> tuple[int, int]:
    """SLO and hard limit in nanoseconds."""
    timeout_us = integer(given, names.TIMEOUT)
    if timeout_us is None:
        return model.slo_ns, model.hard_limit_ns
    # The allowance of the hard limit on top of the SLO stays the same.
    return timeout_us * 1000, timeout_us * 1000 + model.hard_limit_ns - model.slo_ns


def _report(terms: RequestTerms, given: Parameters, size_bytes: int) -> ClientNetworkReport | None:
    """The client's report on itself; None for a client without a number."""
    if not terms.client:
        return None
    slo_us = _within(given, names.SLO_US, DURATION_US_MAX)
    return ClientNetworkReport(
        terms.application,
        terms.client,
        terms.slo_ns if slo_us is None else slo_us * 1000,
        number(given, names.FPS) or 0.0,
        number(given, names.BANDWIDTH) or 0.0,
        _within(given, names.INPUT_SIZE, SIDE_MAX) or 0,
        _frame_bits(given, 8 * size_bytes),
        (_within(given, names.ROUND_TRIP_US, DURATION_US_MAX) or 0) * 1000,
        terms.accuracy_floor,
        terms.pinned,
        _within(given, names.SOURCE_SIZE, SIDE_MAX) or 0,
        text(given, names.CLIENT),
    )


def _frame_bits(given: Parameters, came: int) -> int:
    """Bits of a frame that the network has to carry at least: a lower quality would do with
    fewer than came."""
    told = _within(given, names.FRAME_BITS, FRAME_BITS_MAX)
    return min(told, came) if told else came


def _within(given: Parameters, name: str, most: int) -> int | None:
    value = integer(given, name)
    if value is not None and not 0 <= value <= most:
        raise BadRequestError(f"parameter {name}={value}: must be from 0 to {most}")
    return value


def _priority(given: Parameters) -> int:
    value = integer(given, names.PRIORITY)
    if value is None:
        return 0
    if not 0 <= value < 1 << 32:
        raise BadRequestError(f"priority={value}: use 1 for the highest, 0 for the default")
    return value


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
                f"output {shown(output.name)} names shared memory that is not registered for this "
                "call: register it, or leave the region out"
            )
        found.append((output.name, count))
    return tuple(found)
