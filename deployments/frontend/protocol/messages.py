"""Messages of clients, looked at before they are parsed, so that none holds the process up.

Protobuf parses with the interpreter's lock held, and megabytes of tiny parts take it a second. So
data are cut out of a large message first, and only the small rest is parsed. Tensors are taken as
they lie in the message, or unpacked by numpy in a thread.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.clients.wire.tensors import CONTENTS, DTYPES, check_shape, join_bytes

SMALL_BYTES = 64 << 10
"""A message up to this size is parsed as it is: that takes milliseconds at the worst."""
PARTS_MAX = 256
"""Fields of a large message that are looked at."""
INPUTS, RAW_CONTENTS, CONTENTS_OF_INPUT = 5, 7, 5
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
FIELDS = {
    "bool_contents": 1,
    "int_contents": 2,
    "int64_contents": 3,
    "uint_contents": 4,
    "uint64_contents": 5,
    "fp32_contents": 6,
    "fp64_contents": 7,
    "bytes_contents": 8,
}
SIGNED = ("int_contents", "int64_contents")
STEP_BYTES = 256 << 10
"""Numbers are unpacked in pieces of this size, which bounds the memory that it takes."""
VARINT_BYTES_MAX = 10

Field = tuple[int, int, memoryview, memoryview]
"""Number, wire type, value, and the whole field."""


def parse_small(raw: bytes, parse: Callable[[bytes], Any]) -> Any:
    """A message of a method that needs no large ones."""
    if len(raw) > SMALL_BYTES:
        raise BadRequestError(
            f"the message has {len(raw)} bytes: send at most {SMALL_BYTES} to this method"
        )
    return parse_bytes(raw, parse)


def parse_bytes(raw: bytes, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(raw)
    # protobuf's own DecodeError derives from it.
    except Exception as error:
        raise BadRequestError(f"the message cannot be parsed: {error}") from None


class MessageReader:
    """Reads inference requests of any size that gRPC lets pass."""

    def __init__(self, pool: Executor, bytes_max: int) -> None:
        """Large numbers are unpacked by a thread of `pool`, to no more than `bytes_max`."""
        self.pool = pool
        self.bytes_max = bytes_max

    async def read(self, raw: bytes) -> ModelInferRequest:
        if len(raw) <= SMALL_BYTES:
            return parse_request_bytes(raw)
        request, typed = cut_out(raw)
        loop = asyncio.get_running_loop()
        left = self.bytes_max
        for tensor, contents in zip(request.inputs, typed or (), strict=False):
            given = tensor.name, tensor.datatype, tuple(tensor.shape), contents, left
            unpacked = await loop.run_in_executor(self.pool, unpack, *given)
            left -= len(unpacked)
            request.raw_input_contents.append(unpacked)
        return request


def parse_request_bytes(raw: bytes) -> ModelInferRequest:
    """A request that is small enough to be parsed at once."""
    return parse_bytes(raw, ModelInferRequest.FromString)  # type: ignore[no-any-return]


def cut_out(raw: bytes) -> tuple[ModelInferRequest, list[memoryview] | None]:
    """The request with its raw contents, and the typed contents of its inputs if it has any."""
    rest: list[bytes | memoryview] = []
    data: list[memoryview] = []
    typed: list[memoryview] = []
    left = [PARTS_MAX]
    for number, kind, value, whole in fields(memoryview(raw), left):
        if number == RAW_CONTENTS and kind == BYTES:
            data.append(value)
        elif number == INPUTS and kind == BYTES:
            kept, contents = _split_input(value, left)
            rest.append(_prefixed(INPUTS, kept))
            typed.append(contents)
        else:
            rest.append(whole)
    size = sum(map(len, rest))
    if size > SMALL_BYTES:
        raise BadRequestError(
            f"the message has {size} bytes beside its tensors: send at most {SMALL_BYTES}"
        )
    request = parse_request_bytes(b"".join(rest))
    has_typed = any(len(each) for each in typed)
    if data and has_typed:
        raise BadRequestError("inputs have contents and raw_input_contents: send one of the two")
    request.raw_input_contents.extend(map(bytes, data))
    return request, typed if has_typed else None


def _split_input(value: memoryview, left: list[int]) -> tuple[bytes, memoryview]:
    """An input without its contents, and these."""
    kept: list[memoryview] = []
    contents = memoryview(b"")
    for number, kind, inner, whole in fields(value, left):
        if number == CONTENTS_OF_INPUT and kind == BYTES:
            if len(contents):
                raise BadRequestError("an input has contents twice: send them once")
            contents = inner
        else:
            kept.append(whole)
    return b"".join(kept), contents


def _prefixed(number: int, body: bytes) -> bytes:
    """A field with this body."""
    size, head = len(body), bytearray((number << 3 | BYTES,))
    while size >= 128:
        head.append(size % 128 + 128)
        size //= 128
    head.append(size)
    return bytes(head) + body


def fields(data: memoryview, left: list[int]) -> Iterator[Field]:
    """The fields of a message, of which no more than `left` in all may come."""
    at, end = 0, len(data)
    while at < end:
        left[0] -= 1
        if left[0] < 0:
            raise BadRequestError(
                f"the message has more than {PARTS_MAX} parts: send fewer, and numbers packed"
            )
        begin = at
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        size = 0
        if kind == BYTES:
            size, at = varint(data, at)
        elif kind == VARINT:
            at = varint(data, at)[1]
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise BadRequestError(f"the message cannot be parsed: wire type {kind}")
        if number == 0 or at + size > end:
            raise BadRequestError("the message cannot be parsed: it ends within a field")
        yield number, kind, data[at : at + size], data[begin : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next field begins."""
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise BadRequestError("the message cannot be parsed: a number has no end")


def unpack(
    name: str, datatype: str, shape: tuple[int, ...], contents: memoryview, bytes_max: int
) -> bytes:
    """Typed contents as raw ones, of which `bytes_max` are the most."""
    count = check_shape(name, datatype, shape)
    field = CONTENTS.get(datatype)
    if field is None:
        raise BadRequestError(
            f"tensor {name!r} is {datatype}, which has no typed contents: send it raw"
        )
    parts = _parts(name, field, contents)
    if datatype == "BYTES":
        if len(parts) != count:
            raise _disagree(name, field, len(parts), count)
        return join_bytes(map(bytes, parts))
    wanted = DTYPES[datatype]
    if field in ("fp32_contents", "fp64_contents"):
        data = b"".join(parts)
        if len(data) != count * wanted.itemsize:
            raise _disagree(name, field, len(data) // wanted.itemsize, count)
        return data
    if count * wanted.itemsize > bytes_max:
        raise BadRequestError(
            f"tensor {name!r} takes {count * wanted.itemsize} bytes: send at most {bytes_max}"
        )
    return _unpack_varints(name, datatype, field, b"".join(parts), count)


def _parts(name: str, field: str, contents: memoryview) -> list[memoryview]:
    parts: list[memoryview] = []
    for number, kind, value, _ in fields(contents, [PARTS_MAX]):
        if number != FIELDS[field]:
            raise BadRequestError(f"tensor {name!r} has other contents than {field}: send these")
        if kind != BYTES:
            raise BadRequestError(f"tensor {name!r} has numbers that are not packed: pack them")
        parts.append(value)
    return parts


def _unpack_varints(name: str, datatype: str, field: str, data: bytes, count: int) -> bytes:
    wanted = DTYPES[datatype]
    found, total, at = [], 0, 0
    while at < len(data):
        piece = np.frombuffer(data, np.uint8, min(STEP_BYTES, len(data) - at), at)
        ends = np.flatnonzero(piece < 128)
        if not len(ends):
            raise BadRequestError("the message cannot be parsed: a number has no end")
        at += int(ends[-1]) + 1
        total += len(ends)
        values = _values(piece, ends)
        given = values.view(np.int64) if field in SIGNED else values
        narrow = given.astype(wanted)
        if field != "bool_contents" and not np.array_equal(narrow, given):
            raise BadRequestError(f"tensor {name!r} has values that {datatype} cannot hold")
        found.append(narrow.tobytes())
    if total != count:
        raise _disagree(name, field, total, count)
    return b"".join(found)


def _values(piece: "np.ndarray[Any, np.dtype[np.uint8]]", ends: Any) -> Any:
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    longest = int(sizes.max())
    if longest > VARINT_BYTES_MAX:
        raise BadRequestError("the message cannot be parsed: a number has no end")
    values = np.zeros(len(ends), np.uint64)
    for place in range(longest):
        here = sizes > place
        digits = piece[starts[here] + place].astype(np.uint64) & np.uint64(127)
        values[here] |= digits << np.uint64(7 * place)
    return values


def _disagree(name: str, field: str, found: int, count: int) -> BadRequestError:
    return BadRequestError(
        f"tensor {name!r} has {found} elements in {field}, its shape {count}: "
        "send contents, or raw contents, that agree with the shape"
    )
