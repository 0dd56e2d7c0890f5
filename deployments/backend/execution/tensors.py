"""Inputs as arrays over the bytes that frontends sent, outputs as the tensors they send on.

One request is one item: shapes on links have no batch dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fermata.clients.wire.dtypes import NAMES, NUMPY
from fermata.deployments.backend.batch_pipeline import Tensors
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.specs.served_model import OUTPUT
from fermata.foundation.errors import ServingError
from fermata.router.links.messages import Payload

Array = NDArray[Any]
Item = Any
"""One request's input: an array, or a mapping of names to arrays where there are several."""
Outputs = Any
"""A model's outputs: an array with a row for each request, a sequence with an array for each, or
a mapping of names to either."""

DTYPES = {name: dtype.name for name, dtype in NUMPY.items()}
"""numpy's names of types, by those of the Open Inference Protocol."""
NUMPY_NAMES = frozenset(DTYPES.values())


class InputError(ServingError):
    """An input does not match its declared type or shape."""

    grpc_status: ClassVar[str] = "INVALID_ARGUMENT"


class OutputError(ServingError):
    """A model returned outputs that cannot be sent."""


def numpy_dtype(name: str) -> str:
    """numpy's name of a type, given in either way."""
    found = DTYPES.get(name.upper(), name)
    if found not in NUMPY_NAMES:
        raise InputError(f"dtype {name!r} is unknown; one of BYTES, {', '.join(DTYPES)}")
    return found


def held_as(datatype: str) -> str:
    """numpy's name of the type that `view` gives."""
    return {"BYTES": "object", "BF16": "float32"}.get(datatype) or numpy_dtype(datatype)


def view(payload: Payload, segments: Segments) -> Item:
    """One request's input in place, without a copy; InputError if its size is wrong."""
    data: bytes | memoryview = payload.data
    if payload.segment:
        try:
            whole = segments.read(payload.segment)
        except OSError as error:
            raise InputError(f"cannot read segment {payload.segment!r}: {error}") from None
        end = payload.offset + payload.length
        if payload.offset < 0 or payload.length < 0 or end > len(whole):
            raise InputError(f"input ends at {end} in a segment of {len(whole)} bytes")
        data = whole[payload.offset : end]
    if payload.frame >= 0:
        return _kept_picture(data, payload)
    if not payload.tensors:
        return _array(data, payload.dtype, payload.shape)
    found: dict[str, Array] = {}
    at = 0
    for name, dtype, shape, length in payload.tensors:
        found[name] = _array(data[at : at + length], dtype, shape)
        at += length
    if at != len(data):
        raise InputError(f"inputs {', '.join(found)} take {at} bytes, not {len(data)}")
    return found


@dataclass(frozen=True, slots=True)
class KeptPicture:
    """An encoded picture that several inputs are made of."""

    data: bytes | memoryview
    """In place: where the picture is known, nobody reads it."""
    frame: int
    """The request that it came with."""
    cut: tuple[int, ...] = ()
    """Left, top, right and bottom of the part that is the input; empty: all of it."""


def _kept_picture(data: bytes | memoryview, payload: Payload) -> Array:
    """One item, as of any other encoded picture."""
    length = int.from_bytes(data[:4], "little")
    if length + 4 != len(data) or prod(payload.shape) != 1:
        raise InputError(f"{len(data)} bytes of {list(payload.shape)} pictures are not one")
    if len(payload.cut) not in (0, 4):
        raise InputError(f"a picture is cut at {list(payload.cut)}, not at four edges")
    found = np.empty(payload.shape, dtype=object)
    found.flat[0] = KeptPicture(data[4:], payload.frame, payload.cut)
    return found


def _array(data: bytes | memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    """One tensor in place."""
    if datatype == "BYTES":
        return _strings(data, shape)
    if datatype == "BF16":
        # numpy has no such type; its bits are the upper half of a 32-bit float's.
        bits = _array(data, "UINT16", shape).astype(np.uint32) << 16
        return bits.view(np.float32)
    dtype = np.dtype(numpy_dtype(datatype))
    if any(side < 0 for side in shape):
        raise InputError(f"shape {shape} has a negative side")
    needed = prod(shape) * dtype.itemsize
    if needed != len(data):
        raise InputError(f"{datatype} {shape} takes {needed} bytes, not {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape)


class RowItems:
    """The rows of one request, each an item."""

    __slots__ = ("count", "whole")

    def __init__(self, whole: Item, count: int) -> None:
        self.whole = whole
        """Arrays whose first dimension counts the rows."""
        self.count = count

    def row(self, index: int) -> Item:
        """One of them, in place."""
        if isinstance(self.whole, Mapping):
            return {name: array[index] for name, array in self.whole.items()}
        return self.whole[index]


def view_rows(payload: Payload, segments: Segments) -> Item:
    """One request's input in place, or its rows where it has several."""
    item = view(payload, segments)
    if not payload.rows:
        return item
    arrays = item.values() if isinstance(item, Mapping) else (item,)
    if any(array.ndim == 0 or len(array) != payload.rows for array in arrays):
        raise InputError(f"input is to hold {payload.rows} rows, and does not")
    return RowItems(item, payload.rows)


def each_row(items: Sequence[Item]) -> Sequence[Item]:
    """All rows of these inputs, one after the other."""
    if not any(isinstance(item, RowItems) for item in items):
        return items
    found: list[Item] = []
    for item in items:
        if isinstance(item, RowItems):
            found += [item.row(index) for index in range(item.count)]
        else:
            found.append(item)
    return found


def is_encoded(item: Item) -> bool:
    """Whether an input holds bytes that are still to be decoded, as pictures do."""
    array = first_row(item)
    return isinstance(array, np.ndarray) and array.dtype == object


def first_row(item: Item) -> Item:
    """An input, or the first row of one that has several."""
    return item.row(0) if isinstance(item, RowItems) else item


def rows_in(items: Sequence[Item]) -> int:
    """Rows of these inputs together."""
    return sum(item.count if isinstance(item, RowItems) else 1 for item in items)


def item_bytes(item: Item) -> int:
    """Size of one request's input."""
    if isinstance(item, RowItems):
        return item_bytes(item.whole)
    if isinstance(item, Mapping):
        return sum(int(array.nbytes) for array in item.values())
    return int(item.nbytes)


def copy_of(item: Item) -> Item:
    """One request's input in memory of its own."""
    if isinstance(item, Mapping):
        return {name: np.array(array) for name, array in item.items()}
    return np.array(item)


def _strings(data: bytes | memoryview, shape: Sequence[int]) -> Array:
    """A BYTES tensor: each item after its length in four bytes, little-endian."""
    items: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            raise InputError(f"item {len(items)} of a BYTES tensor ends past its {len(data)} bytes")
        items.append(bytes(data[at + 4 : end]))
        at = end
    if prod(shape) != len(items):
        raise InputError(f"a BYTES tensor of shape {tuple(shape)} holds {len(items)} items")
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(tuple(shape))


def split(outputs: Outputs, rows: Sequence[int]) -> list[Tensors]:
    """The outputs of each request of a batch, as they are sent; `rows` is 0 for a request of one
    row, which has no dimension for it."""
    columns = outputs if isinstance(outputs, Mapping) else {OUTPUT: outputs}
    count = sum(each or 1 for each in rows)
    for name, column in columns.items():
        if len(column) != count:
            raise OutputError(f"{name} has {len(column)} items for {count} requests")
    found: list[Tensors] = []
    at = 0
    for each in rows:
        found.append(
            tuple(
                tensor(name, _together(name, column[at : at + each]) if each else column[at])
                for name, column in columns.items()
            )
        )
        at += each or 1
    return found


def _together(name: str, rows: Any) -> Any:
    """Rows of one request as one array."""
    if isinstance(rows, np.ndarray):
        return rows
    shapes = {np.shape(row) for row in rows}
    if len(shapes) > 1:
        raise OutputError(f"{name} differs in shape from row to row: {sorted(shapes)[:4]}")
    return np.stack([np.asarray(row) for row in rows])


def tensor(name: str, value: Any) -> tuple[str, str, tuple[int, ...], bytes]:
    """One output of one request."""
    array = np.asarray(value)
    dtype = NAMES.get(array.dtype)
    if dtype is None and array.dtype.name in NUMPY_NAMES:
        # It has the other byte order.
        array = array.astype(array.dtype.name)
        dtype = NAMES[array.dtype]
    if dtype is not None:
        return name, dtype, array.shape, array.tobytes()
    if array.dtype.kind not in "OSU":
        raise OutputError(
            f"{name} is {array.dtype.name}; return one of {', '.join(DTYPES.values())} or text"
        )
    items = [each if isinstance(each, bytes) else str(each).encode() for each in array.flat]
    data = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    return name, "BYTES", array.shape, data
