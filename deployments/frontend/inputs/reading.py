"""From the tensors of a message to the input of a request, checked against the signature."""

from dataclasses import dataclass, replace

from fermata.clients.wire.errors import BadRequestError, shown
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.clients.wire.tensors import RawTensor, request_tensors, shape_of, split_bytes
from fermata.deployments.frontend.inputs.request_input import RequestInput, pack
from fermata.deployments.models.pictures.decoding import frame_size
from fermata.deployments.specs.served_model import ServedModel, TensorSpec

Declared = ModelInferRequest.InferInputTensor
ROWS_MAX = 1024
"""Rows of one request: more of them would keep others waiting."""


@dataclass(frozen=True, slots=True)
class InputForm:
    """Type and shape of a request's only input, which has the model's signature."""

    model: ServedModel
    encoded: bool
    """It is a picture still, or other bytes to be read."""
    rows: int
    """0: it has no batch dimension."""

    def read(self, tensor: RawTensor) -> RequestInput:
        """The input with these data. Raises BadRequestError."""
        model, rows = self.model, self.rows
        if not tensor.data:
            raise BadRequestError(f"input {tensor.name!r} of shape {list(tensor.shape)} is empty")
        if model.sides and not self.encoded:
            raise BadRequestError(f"model {model.name!r} takes pictures: send a JPEG as BYTES[1]")
        if rows > 1 and model.wants_frame:
            raise BadRequestError(
                f"input {tensor.name!r} holds {rows} pictures, whose answers differ in shape: send "
                "each as a request of its own"
            )
        whole = RequestInput(model, tensor, self.encoded, rows > 0, rows=max(1, rows))
        found = whole.left_encoded()
        if not found.encoded or not model.wants_frame:
            return found
        return replace(found, frame=_frame(tensor, rows > 0))


def input_form(model: ServedModel, request: ModelInferRequest) -> InputForm | None:
    """The form of a request's only input; None where the model has several."""
    if model.more_inputs:
        return None
    if len(request.inputs) != 1:
        raise BadRequestError(
            f"model {model.name!r} takes one input, {model.input.name!r}, not {len(request.inputs)}"
        )
    declared = request.inputs[0]
    if declared.name != model.input.name:
        raise BadRequestError(
            f"model {model.name!r} has no input {shown(declared.name)}: send {model.input.name!r}"
        )
    if declared.parameters:
        _refuse_shared_memory(declared)
    return InputForm(model, *_check_input(model, declared))


def read_input(
    model: ServedModel, form: InputForm | None, request: ModelInferRequest
) -> RequestInput:
    """The input of a request; BadRequestError unless it has the model's signature."""
    if form is None:
        return _read_several(model, request)
    (tensor,) = request_tensors(request)
    return form.read(tensor)


def _read_several(model: ServedModel, request: ModelInferRequest) -> RequestInput:
    """Several named tensors, put in the order of the signature."""
    specs = {spec.name: spec for spec in model.inputs}
    if len(request.inputs) > len(specs):
        raise BadRequestError(
            f"{len(request.inputs)} inputs: model {model.name!r} takes {_names(model)}"
        )
    given = {each.name: each for each in request.inputs}
    if len(given) < len(request.inputs):
        raise BadRequestError("an input is there twice: send each input once")
    for name in given:
        if name not in specs:
            raise BadRequestError(
                f"model {model.name!r} has no input {shown(name)}: it takes {_names(model)}"
            )
    for name, spec in specs.items():
        if name not in given and not spec.optional:
            raise BadRequestError(f"input {name!r} is missing: model {model.name!r} needs {spec}")
    rows = {name: _rows_of(model, specs[name], each) for name, each in given.items()}
    if len(set(rows.values())) > 1:
        told = ", ".join(f"{name!r} {count or 'no'}" for name, count in rows.items())
        raise BadRequestError(f"inputs differ in their rows: {told}; send all with the same")
    found = {tensor.name: tensor for tensor in request_tensors(request)}
    tensors = tuple(found[name] for name in specs if name in found)
    for tensor in tensors:
        if not tensor.data:
            raise BadRequestError(f"input {tensor.name!r} of shape {list(tensor.shape)} is empty")
    count = max(rows.values())
    return RequestInput(model, pack(tensors), False, count > 0, tensors=tensors, rows=max(1, count))


def _names(model: ServedModel) -> str:
    return ", ".join(
        f"{spec.name!r} (optional)" if spec.optional else repr(spec.name) for spec in model.inputs
    )


def _rows_of(model: ServedModel, spec: TensorSpec, tensor: Declared) -> int:
    """Rows of one of several tensors; 0: it has no batch dimension."""
    if tensor.parameters:
        _refuse_shared_memory(tensor)
    shape = shape_of(tensor)
    if tensor.datatype == spec.datatype:
        if _matches(spec.shape, shape):
            _check_sizes(spec, shape)
            return 0
        if shape and _matches(spec.shape, shape[1:]):
            _check_sizes(spec, shape[1:])
            return _checked_rows(tensor.name, shape[0])
    raise BadRequestError(
        f"input {tensor.name!r} is {shown(tensor.datatype)} {list(shape)}: model {model.name!r} "
        f"takes {spec.datatype}{list(spec.shape)}, or the same with a batch dimension before it"
    )


def _check_sizes(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Refuse a size beyond what the model can read: it would fail with all of its batch."""
    for side, size in zip(spec.shape, shape, strict=True):
        if spec.size_max and side < 0 and size > spec.size_max:
            raise BadRequestError(
                f"input {spec.name!r} has shape {list(shape)}: send at most {spec.size_max}"
            )


def _checked_rows(name: str, rows: int) -> int:
    if not 1 <= rows <= ROWS_MAX:
        raise BadRequestError(f"input {name!r} has {rows} rows: send 1 to {ROWS_MAX}")
    return rows


def _frame(tensor: RawTensor, batched: bool) -> tuple[int, int]:
    if tensor.datatype == "BYTES":
        return frame_size(split_bytes(tensor.data)[0])
    height, width = tensor.shape[1:3] if batched else tensor.shape[:2]
    return height, width


def _check_input(model: ServedModel, tensor: Declared) -> tuple[bool, int]:
    """Whether the input is still a picture, and its rows; 0: it has no batch dimension."""
    spec, shape = model.input, shape_of(tensor)
    if model.takes_bytes and tensor.datatype == "BYTES":
        if shape in ((), (1,)):
            return True, 0
        if len(shape) != 2 or shape[1] != 1:
            raise BadRequestError(
                f"input {tensor.name!r} has shape {list(shape)}: send one element, shape [1], or "
                "rows of one, shape [rows, 1]"
            )
        return True, _checked_rows(tensor.name, shape[0])
    if model.image is not None:
        frame = shape[1:] if len(shape) == 4 else shape
        if tensor.datatype == "UINT8" and len(frame) == 3 and frame[2] == 3 and 0 not in frame:
            fitted = _matches(spec.shape, frame) and spec.datatype == "UINT8"
            rows = _checked_rows(tensor.name, shape[0]) if len(shape) == 4 else 0
            return not fitted, rows
    if tensor.datatype != spec.datatype:
        raise BadRequestError(
            f"input {tensor.name!r} is {tensor.datatype}: model {model.name!r} takes "
            f"{_wanted(model)}"
        )
    if _matches(spec.shape, shape):
        return False, 0
    if shape and _matches(spec.shape, shape[1:]):
        return False, _checked_rows(tensor.name, shape[0])
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


def _refuse_shared_memory(given: Declared) -> None:
    if "shared_memory_region" in given.parameters:
        raise BadRequestError(
            f"input {given.name!r} names shared memory that is not registered for this call: "
            "register it, or send its data"
        )
