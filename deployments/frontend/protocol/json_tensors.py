"""Requests and responses of the REST protocol, to and from the messages of the gRPC one."""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError, shown
from fermata.clients.wire.parameters import parameter, truth, value_of
from fermata.clients.wire.tensors import (
    DTYPES,
    RawTensor,
    check_data,
    check_shape,
    join_bytes,
    split_bytes,
    to_array,
)
from fermata.foundation.json_types import Json, JsonObject

TENSORS_MAX = 64
BINARY, BINARY_OUTPUT, BINARY_SIZE = "binary_data", "binary_data_output", "binary_data_size"
"""Parameters of an output, of a request, and of a tensor whose bytes follow the JSON."""
NUMBERS = {bool, int, float}


def read_request(model: str, version: str, body: bytes, header_bytes: int) -> pb.ModelInferRequest:
    """The message in a JSON body; raw tensors may follow after `header_bytes`.

    That is Triton's binary extension, the only way to send a JPEG as it is. Without it, a tensor
    may have `"parameters": {"encoding": "base64"}`.
    """
    text = body[:header_bytes]
    try:
        given = json.loads(text)
        if b"\\u" in text:
            # JSON accepts half of a surrogate pair, but a response with it cannot be encoded.
            json.dumps(given, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict) or not isinstance(given.get("inputs"), list):
        raise BadRequestError('the body has no list of inputs: send {"inputs": [...]}')
    outputs = given.get("outputs") or []
    if not isinstance(outputs, list):
        raise BadRequestError('the outputs are no list: send {"outputs": [{"name": "..."}]}')
    for side, tensors in (("inputs", given["inputs"]), ("outputs", outputs)):
        if len(tensors) > TENSORS_MAX:
            raise BadRequestError(f"{len(tensors)} {side}: send at most {TENSORS_MAX}")
    request = pb.ModelInferRequest(
        model_name=model, model_version=version, id=str(given.get("id", ""))
    )
    _read_parameters(given.get("parameters"), request.parameters)
    rest = memoryview(body)[header_bytes:]
    for each in given["inputs"]:
        if isinstance(each, dict) and _is_in_region(each):
            _add_region_input(request, each)
            continue
        tensor, taken = _read_input(each, rest)
        rest = rest[taken:]
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(bytes(tensor.data))
    if len(rest):
        raise BadRequestError(f"{len(rest)} bytes follow the last tensor: give binary_data_size")
    for each in outputs:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise BadRequestError('an output has no name: send {"name": "..."}')
        output = request.outputs.add(name=each["name"])
        _read_parameters(each.get("parameters"), output.parameters)
    return request


def _read_parameters(given: object, into: Any) -> None:
    if given is None:
        return
    if not isinstance(given, dict):
        raise BadRequestError(f"parameters={shown(given)} is no object")
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise BadRequestError(
                f"parameter {name}={shown(value)}: use a number, text or a boolean"
            )
        try:
            into[name].CopyFrom(parameter(value))
        except ValueError:
            raise BadRequestError(f"parameter {name}={shown(value)} does not fit 64 bits") from None


def _is_in_region(given: JsonObject) -> bool:
    """Whether an input lies in shared memory, so that it has no data here."""
    parameters = given.get("parameters")
    return isinstance(parameters, dict) and "shared_memory_region" in parameters


def _add_region_input(request: pb.ModelInferRequest, given: JsonObject) -> None:
    name, datatype, shape = _described(given)
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    _read_parameters(given["parameters"], tensor.parameters)


def _described(given: JsonObject) -> tuple[str, str, tuple[int, ...]]:
    """Name, type and shape of an input."""
    name, datatype, dims = given.get("name"), given.get("datatype"), given.get("shape")
    shape = [dim for dim in dims if type(dim) is int] if isinstance(dims, list) else []
    whole = isinstance(dims, list) and len(shape) == len(dims)
    if not isinstance(name, str) or not isinstance(datatype, str) or not whole:
        raise BadRequestError(f"input {shown(name)} needs name, datatype and a shape of integers")
    return name, datatype, tuple(shape)


def _read_input(given: object, rest: memoryview) -> tuple[RawTensor, int]:
    """A tensor, and the number of binary bytes that it took."""
    if not isinstance(given, dict):
        raise BadRequestError(
            f"input {shown(given)} is no object with name, datatype, shape and data"
        )
    name, datatype, shape = _described(given)
    count = check_shape(name, datatype, shape)
    options = given.get("parameters")
    options = options if isinstance(options, dict) else {}
    size = options.get(BINARY_SIZE)
    if size is not None:
        if type(size) is not int or not 0 <= size <= len(rest):
            raise BadRequestError(f"input {name!r}: binary_data_size={size}, {len(rest)} are left")
        data = bytes(rest[:size])
        check_data(name, datatype, shape, count, data)
        return RawTensor(name, datatype, shape, data), size
    data = _read_data(name, datatype, given.get("data"), options.get("encoding") == "base64")
    check_data(name, datatype, shape, count, data)
    return RawTensor(name, datatype, shape, data), 0


def _read_data(name: str, datatype: str, data: object, base64_text: bool) -> bytes:
    if not isinstance(data, list):
        raise BadRequestError(f"input {name!r} has no list of data")
    try:
        if datatype == "BYTES":
            flat = np.array(data, dtype=object).reshape(-1)
            if base64_text:
                return join_bytes([base64.b64decode(each, validate=True) for each in flat])
            return join_bytes([each.encode() for each in flat])
        if datatype in ("FP16", "BF16"):
            way = f"which JSON does not carry: send it with {BINARY_SIZE}"
            raise BadRequestError(f"input {name!r} is {datatype}, {way}")
        # numpy pads texts to the longest one: megabytes would become terabytes.
        kinds = set(map(type, np.array(data, dtype=object).reshape(-1)))
        if not kinds <= NUMBERS:
            found = ", ".join(sorted(each.__name__ for each in kinds - NUMBERS))
            raise BadRequestError(f"input {name!r} is {datatype}, its data include: {found}")
        wanted = DTYPES[datatype]
        array = np.array(data)
        if wanted.kind in "iu" and float not in kinds and array.dtype.kind not in "biu":
            # What one integer type holds may still be floats, or objects, by numpy's own choice.
            array = _whole_numbers(name, datatype, data)
        # A float for an integer is a mistake to report; 1 for 1.0 is not.
        if array.dtype.kind not in ("fiu" if wanted.kind == "f" else wanted.kind + "iu"):
            raise BadRequestError(f"input {name!r} is {datatype}, its data are {array.dtype}")
        narrow = array.astype(wanted)
        if wanted.kind in "iu" and not np.array_equal(narrow, array):
            raise BadRequestError(f"input {name!r} has values that {datatype} cannot hold")
        return narrow.tobytes()
    except (AttributeError, OverflowError, TypeError, ValueError, binascii.Error) as error:
        raise BadRequestError(f"input {name!r} has data that are not {datatype}: {error}") from None


def _whole_numbers(name: str, datatype: str, data: list[Any]) -> NDArray[Any]:
    try:
        return np.array(data, DTYPES[datatype])
    except OverflowError:
        raise BadRequestError(f"input {name!r} has values that {datatype} cannot hold") from None


def wants_binary(request: pb.ModelInferRequest) -> Callable[[str], bool]:
    """Tell for each output whether its bytes are to follow the JSON, as Triton's binary extension
    has it."""
    asked = {each.name: truth(each.parameters, BINARY) for each in request.outputs}
    usual = truth(request.parameters, BINARY_OUTPUT)
    own = {each.name for each in request.outputs if BINARY in each.parameters}
    return lambda name: asked[name] if name in own else usual


def write_body(
    response: pb.ModelInferResponse, is_binary: Callable[[str], bool]
) -> tuple[bytes, int]:
    """The body of a response, and the size of its JSON; outputs that `is_binary` follow that."""
    binary = [each for each in _tensors(response) if is_binary(each.name) and each.data]
    told = write_response(response, is_binary)
    head = json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return b"".join((head, *(each.data for each in binary))), len(head)


def _tensors(response: pb.ModelInferResponse) -> list[RawTensor]:
    """The outputs; those in shared memory have no data."""
    return [
        RawTensor(each.name, each.datatype, tuple(each.shape), data)
        for each, data in zip(response.outputs, response.raw_output_contents, strict=True)
    ]


def _describe_region(output: Any) -> JsonObject:
    return {
        "name": output.name,
        "datatype": output.datatype,
        "shape": list(output.shape),
        "parameters": _write_parameters(output.parameters),
    }


def write_response(
    response: pb.ModelInferResponse, is_binary: Callable[[str], bool] = lambda name: False
) -> JsonObject:
    """A response as JSON; BYTES that are not text become base64, with a parameter that marks it."""
    outputs = [
        _describe_region(described)
        if described.parameters
        else _describe_binary(tensor)
        if is_binary(tensor.name)
        else _write_tensor(tensor)
        for described, tensor in zip(response.outputs, _tensors(response), strict=True)
    ]
    return {
        "model_name": response.model_name,
        "model_version": response.model_version,
        "id": response.id,
        "parameters": _write_parameters(response.parameters),
        "outputs": outputs,
    }


def _write_parameters(given: Mapping[str, pb.InferParameter]) -> JsonObject:
    return {name: value_of(each) for name, each in given.items()}


def _describe_binary(tensor: RawTensor) -> JsonObject:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
        "parameters": {BINARY_SIZE: len(tensor.data)},
    }


def _write_tensor(tensor: RawTensor) -> JsonObject:
    written: dict[str, Json] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
    }
    if tensor.datatype == "BYTES":
        elements = split_bytes(tensor.data)
        try:
            written["data"] = [each.decode() for each in elements]
        except UnicodeDecodeError:
            written["parameters"] = {"encoding": "base64"}
            written["data"] = [base64.b64encode(each).decode() for each in elements]
        return written
    array = to_array(tensor).reshape(-1)
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    # JSON has no NaN.
    values = array.tolist()
    written["data"] = values if finite else [v if np.isfinite(v) else None for v in values]
    return written
