"""Tensors on the wire and in numpy. Whatever a client may get wrong ends in `BadRequestError`."""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fermata.clients.wire.dtypes import NAMES, NUMPY
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.open_inference_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
)

Array = npt.NDArray[Any]

# numpy has no bfloat16: its bits travel as two bytes, and `to_array` widens them to FP32.
DTYPES: dict[str, np.dtype[Any]] = {**NUMPY, "BF16": np.dtype("<u2")}
"""How each data type but BYTES lies in raw contents."""
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The typed field of each data type; FP16 and BF16 have none."""
FLOATS = frozenset(("FP16", "BF16", "FP32", "FP64"))
DIMS_MAX = 16
_LENGTH = struct.Struct("<I")


@dataclass(slots=True)
class RawTensor:
    """A tensor as raw contents have it: little-endian, row by row; checked against its shape."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def request_tensors(request: ModelInferRequest) -> list[RawTensor]:
    """The inputs of a request, typed or raw."""
    return _tensors(request.inputs, request.raw_input_contents, "raw_input_contents")


def response_tensors(response: ModelInferResponse) -> list[RawTensor]:
    """The outputs of a response, typed or raw."""
    return _tensors(response.outputs, response.raw_output_contents, "raw_output_contents")


def _tensors(
    tensors: Sequence[ModelInferRequest.InferInputTensor | ModelInferResponse.InferOutputTensor],
    raw: Sequence[bytes],
    field: str,
) -> list[RawTensor]:
    if raw and len(raw) != len(tensors):
        raise BadRequestError(
            f"{field} has {len(raw)} entries for {len(tensors)} tensors: send one for each"
        )
    found: list[RawTensor] = []
    for index, tensor in enumerate(tensors):
        name, datatype = tensor.name, tensor.datatype
        shape = shape_of(tensor)
        count = check_shape(name, datatype, shape)
        if not raw:
            data = _typed(name, datatype, count, tensor.contents)
        elif tensor.HasField("contents"):
            raise BadRequestError(f"tensor {name!r} has contents and {field}: send one of the two")
        else:
            data = raw[index]
            check_data(name, datatype, shape, count, data)
        found.append(RawTensor(name, datatype, shape, data))
    return found


def shape_of(
    tensor: ModelInferRequest.InferInputTensor | ModelInferResponse.InferOutputTensor,
) -> tuple[int, ...]:
    """The shape that it claims."""
    _check_dims(tensor.name, len(tensor.shape))
    return tuple(tensor.shape)


def _check_dims(name: str, count: int) -> None:
    if count > DIMS_MAX:
        raise BadRequestError(f"tensor {name!r} has {count} dimensions: use at most {DIMS_MAX}")


def check_shape(name: str, datatype: str, shape: tuple[int, ...]) -> int:
    """How many elements a tensor of this shape has."""
    if datatype not in DTYPES and datatype != "BYTES":
        known = ", ".join((*DTYPES, "BYTES"))
        raise BadRequestError(f"tensor {name!r} has datatype {datatype!r}: use one of {known}")
    _check_dims(name, len(shape))
    for dim in shape:
        if not 0 <= dim < 1 << 63:
            raise BadRequestError(
                f"tensor {name!r} has shape {list(shape)}: no dimension may be below 0, or above "
                "63 bits"
            )
    return math.prod(shape)


def check_data(
    name: str, datatype: str, shape: tuple[int, ...], count: int, data: bytes | memoryview
) -> None:
    """Raise unless raw contents are what datatype and shape promise."""
    if datatype == "BYTES":
        _check_lengths(name, data, count)
        return
    needed = count * DTYPES[datatype].itemsize
    if len(data) != needed:
        raise BadRequestError(
            f"tensor {name!r} has {len(data)} bytes, {datatype}{list(shape)} takes {needed}: "
            "send data and shape that agree"
        )


def _typed(name: str, datatype: str, count: int, contents: InferTensorContents) -> bytes:
    field = CONTENTS.get(datatype)
    if field is None:
        raise BadRequestError(
            f"tensor {name!r} is {datatype}, which has no typed contents: send it raw"
        )
    values: Sequence[Any] = getattr(contents, field)
    if len(values) != count:
        raise BadRequestError(
            f"tensor {name!r} has {len(values)} elements in {field}, its shape {count}: "
            "send contents, or raw contents, that agree with the shape"
        )
    if datatype == "BYTES":
        return join_bytes(values)
    given = np.array(values)
    array = given.astype(DTYPES[datatype])
    # int_contents are wider than the INT8 and INT16 they stand for, uint_contents likewise.
    if field in ("int_contents", "uint_contents") and not np.array_equal(array, given):
        first = int(np.flatnonzero(array != given)[0])
        raise BadRequestError(
            f"tensor {name!r} has {given[first]} at {first}: send values that {datatype} can hold"
        )
    return array.tobytes()


def _check_lengths(name: str, data: bytes | memoryview, count: int) -> None:
    at, end = 0, len(data)
    for index in range(count):
        if at + 4 > end:
            raise BadRequestError(
                f"tensor {name!r} ends before element {index} of {count}: "
                "write each element's length in 4 bytes, little-endian, then its bytes"
            )
        length: int = _LENGTH.unpack_from(data, at)[0]
        at += 4 + length
        if at > end:
            raise BadRequestError(
                f"tensor {name!r} gives element {index} {length} bytes, "
                f"{end - at + length} are left: send lengths that are true"
            )
    if at != end:
        raise BadRequestError(
            f"tensor {name!r} has {end - at} bytes after its {count} elements: "
            "send data and shape that agree"
        )


def split_bytes(data: bytes | memoryview) -> list[bytes]:
    """The elements of a BYTES tensor whose lengths have been checked."""
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        length: int = _LENGTH.unpack_from(data, at)[0]
        elements.append(bytes(data[at + 4 : at + 4 + length]))
        at += 4 + length
    return elements


def join_bytes(elements: Iterable[bytes]) -> bytes:
    """Raw contents of a BYTES tensor."""
    return b"".join(part for each in elements for part in (_LENGTH.pack(len(each)), each))


def to_array(tensor: RawTensor) -> Array:
    """The tensor in numpy: BYTES as objects, BF16 widened to float32; read-only, without a copy."""
    if tensor.datatype == "BYTES":
        elements = np.empty(math.prod(tensor.shape), dtype=object)
        elements[:] = split_bytes(tensor.data)
        return elements.reshape(tensor.shape)
    array: Array = np.frombuffer(tensor.data, DTYPES[tensor.datatype]).reshape(tensor.shape)
    if tensor.datatype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def from_array(name: str, array: Array, datatype: str = "") -> RawTensor:
    """A numpy array as a tensor; `datatype` only where the array's own is not meant (BF16)."""
    if array.dtype == object or array.dtype.kind in "SU":
        elements = [each.encode() if isinstance(each, str) else bytes(each) for each in array.flat]
        return RawTensor(name, "BYTES", array.shape, join_bytes(elements))
    if datatype == "BF16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        # Round half to even. A NaN keeps its upper bits: rounding up might carry it to infinity.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        kept = np.where(np.isnan(array), (bits >> 16) | 0x40, rounded)
        return RawTensor(name, "BF16", array.shape, kept.astype("<u2").tobytes())
    chosen = datatype or NAMES.get(array.dtype.newbyteorder("<"), "")
    if chosen not in DTYPES:
        raise BadRequestError(
            f"array {name!r} has dtype {array.dtype}: convert it to float32 or uint8"
        )
    data = np.ascontiguousarray(array, DTYPES[chosen]).tobytes()
    return RawTensor(name, chosen, array.shape, data)


def check_finite(tensor: RawTensor) -> None:
    """Raise if a floating-point tensor holds a NaN or an infinity.

    One such value spoils its own result only, but a model that normalises over the batch would
    carry it to its neighbours', so it is refused unless the model says that it means something.
    """
    if tensor.datatype not in FLOATS or not tensor.data:
        return
    array = to_array(tensor)
    # One pass for the common case; a sum that overflows only leads to the exact look below.
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype=np.float64)
    if np.isfinite(total):
        return
    places = np.flatnonzero(~np.isfinite(array))
    if len(places):
        first = int(places[0])
        raise BadRequestError(
            f"tensor {tensor.name!r} has {len(places)} values that are not finite, the first "
            f"({array.flat[first]}) at {first}: send finite numbers, or set allow_nan on the model"
        )


WireTensors = tuple[tuple[str, str, tuple[int, ...], bytes], ...]
"""(name, datatype, shape, data) of each tensor."""


def join_rows(parts: Sequence[WireTensors], rows: Sequence[int]) -> WireTensors:
    """Tensors of several parts, joined in their first dimension; ValueError where they differ.

    A part of one row has no such dimension.
    """
    found: list[tuple[str, str, tuple[int, ...], bytes]] = []
    for place, (name, datatype, _, _) in enumerate(parts[0]):
        each = [part[place] if place < len(part) else ("", "", (), b"") for part in parts]
        inner = {
            shape[1:] if count > 1 else shape
            for (_, _, shape, _), count in zip(each, rows, strict=True)
        }
        kinds = {(other, kind) for other, kind, _, _ in each}
        if kinds != {(name, datatype)} or len(inner) > 1:
            shapes = ", ".join(f"{kind}{list(shape)}" for _, kind, shape, _ in each[:4])
            raise ValueError(f"{name} is {shapes}")
        data = b"".join(part[3] for part in each)
        found.append((name, datatype, (sum(rows), *inner.pop()), data))
    return tuple(found)


def add_input(request: ModelInferRequest, tensor: RawTensor) -> None:
    """Append an input, raw."""
    request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    request.raw_input_contents.append(bytes(tensor.data))


def add_output(response: ModelInferResponse, tensor: RawTensor) -> None:
    """Append an output, raw."""
    response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.append(bytes(tensor.data))
