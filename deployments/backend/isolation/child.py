"""The process of a model in an environment of its own, and the arrays that it exchanges.

Another interpreter runs this file by its path. Its environment has numpy and what the model needs,
and nothing of Fermata. So this file imports nothing else, and keeps to the words of Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import mmap
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Value = Array | Sequence[Array]

ALIGNMENT = 64
LENGTH = struct.Struct("<I")
NUMBERS, TEXTS = "biuf", "OSU"
"""Kinds of numpy's types that can be exchanged."""
PR_SET_PDEATHSIG = 1
REASON_LENGTH_MAX = 500
OUTPUT = "output"
BARE = ""
"""Name of an array that is given or returned without one."""
GROWTH = 2
"""A memory that is too small grows to so many times what is needed."""


class Start(NamedTuple):
    """The model to load, and the open files that the process was started with."""

    model: str
    """`module:function`."""
    size: int | None
    device: str
    folders: list[str]
    """Where users' own modules are, after those of the environment."""
    parent: int = 0
    channel: int = 0
    inputs: int = 0
    outputs: int = 0


class ArrayPlace(NamedTuple):
    """An array in shared memory."""

    kind: str
    """numpy's word for its type; empty for texts."""
    shape: list[int]
    start: int
    length: int


class Column(NamedTuple):
    """The values of one name: an array, or a list of them."""

    name: str
    listed: bool
    places: list[ArrayPlace]


class Question(NamedTuple):
    """A message to the process."""

    do: str
    columns: Sequence[Column] = ()
    named: bool = False
    """The model takes arrays by name."""
    ids: Sequence[int] = ()


class Reply(NamedTuple):
    """A message of the process: outputs, what it says of itself once it is loaded, or an error."""

    columns: Sequence[Column] = ()
    named: bool = False
    held_bytes: int = 0
    ends_sequences: bool = False
    failed: str = ""
    """Name of the error; empty where there is none."""
    reason: str = ""
    memory: bool = False
    """It was a lack of memory."""


class Channel:
    """Messages in JSON between the two processes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: Question | Reply) -> None:
        data = json.dumps(message).encode()
        self.connection.sendall(LENGTH.pack(len(data)) + data)

    def receive(self) -> list[Any] | None:
        """The values of the next message; None where the other process has ended."""
        head = self._read(LENGTH.size)
        body = self._read(LENGTH.unpack(head)[0]) if head else b""
        return json.loads(body) if body else None

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                part = self.connection.recv(size - len(found))
            except OSError:
                part = b""
            if not part:
                return b""
            found += part
        return found


class SharedArrays:
    """Arrays in memory that both processes map; one of them writes."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.map: mmap.mmap | None = None

    def write(self, arrays: Sequence[Array]) -> list[ArrayPlace]:
        """Put arrays in place of those before."""
        packed = [_packed(array) if array.dtype.kind in TEXTS else array for array in arrays]
        places, at = [], 0
        for given, array in zip(arrays, packed):  # noqa: B905 - Python 3.9 has no strict
            kind = "" if given.dtype.kind in TEXTS else array.dtype.str
            places.append(ArrayPlace(kind, list(given.shape), at, array.nbytes))
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        whole = self._mapped(at, grow=True)
        for place, array in zip(places, packed):  # noqa: B905
            if place.length:
                there = np.frombuffer(whole, array.dtype, array.size, place.start)
                there.reshape(array.shape)[...] = array
        return places

    def read(self, places: Sequence[ArrayPlace]) -> list[Array]:
        """Copies of the arrays at these places: the next ones are written over them."""
        end = max((each.start + each.length for each in places), default=0)
        whole = self._mapped(end, grow=False)
        found = []
        for kind, shape, start, length in places:
            if kind:
                dtype = np.dtype(kind)
                flat = np.frombuffer(whole, dtype, length // dtype.itemsize, start)
                found.append(flat.reshape(shape).copy())
            else:
                found.append(_unpacked(bytes(whole[start : start + length]), shape))
        return found

    def write_values(self, values: Mapping[str, Value]) -> list[Column]:
        """Put arrays, or lists of arrays, by name."""
        columns, arrays = [], []
        for name, value in values.items():
            listed = isinstance(value, (list, tuple))
            rows = [np.asarray(each) for each in (value if listed else [value])]
            for row in rows:
                if row.dtype.kind not in NUMBERS + TEXTS:
                    label, kind = name or OUTPUT, row.dtype.name
                    raise TypeError(f"{label!r} is {kind}; return numbers, flags or text")
            columns.append((name, listed, len(rows)))
            arrays += rows
        places = iter(self.write(arrays))
        return [
            Column(name, listed, [next(places) for _ in range(count)])
            for name, listed, count in columns
        ]

    def read_values(self, columns: Sequence[Column]) -> dict[str, Value]:
        """The arrays, or lists of arrays, that the other process put there."""
        found: dict[str, Value] = {}
        for name, listed, places in columns:
            rows = self.read([ArrayPlace(*each) for each in places])
            found[name] = rows if listed else rows[0]
        return found

    def _mapped(self, size: int, grow: bool) -> mmap.mmap:
        if self.map is None or len(self.map) < size:
            if grow:
                # Not cut to size alone: where memory is short, that would end the process later.
                os.posix_fallocate(self.file, 0, max(size * GROWTH, mmap.PAGESIZE))
            self.map = mmap.mmap(self.file, 0)
        return self.map


def _packed(array: Array) -> Array:
    """Texts as bytes, each after its length."""
    items = [each if isinstance(each, bytes) else str(each).encode() for each in array.flat]
    return np.frombuffer(b"".join(LENGTH.pack(len(each)) + each for each in items), np.uint8)


def _unpacked(data: bytes, shape: Sequence[int]) -> Array:
    items, at = [], 0
    while at < len(data):
        end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
        items.append(data[at + LENGTH.size : end])
        at = end
    found = np.empty(len(items), dtype=object)
    found[:] = items
    return found.reshape(shape)


class Child:
    """The model, and the requests for it."""

    def __init__(self, model: Any, inputs: SharedArrays, outputs: SharedArrays) -> None:
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def answer(self, asked: Question) -> Reply:
        """The answer to one message; the reason where it failed."""
        doing = {"run": self.run, "end_sequences": self.end_sequences, "check": self.check}
        try:
            return doing[asked.do](asked)
        # A model is a user's code and may raise anything, SystemExit too.
        except BaseException as error:
            _release_memory()
            return described(error)

    def run(self, asked: Question) -> Reply:
        given = self.inputs.read_values(asked.columns)
        found = self.model(given if asked.named else given[BARE])
        named = isinstance(found, Mapping)
        return Reply(self.outputs.write_values(found if named else {BARE: found}), named)

    def end_sequences(self, asked: Question) -> Reply:
        self.model.end_sequences(asked.ids)
        return Reply()

    def check(self, asked: Question) -> Reply:
        """Whether the model's device still runs something."""
        torch = _torch_on_gpu()
        if hasattr(self.model, "check_device"):
            self.model.check_device()
        elif torch is not None:
            torch.zeros(1, device="cuda").add_(1).item()
        return Reply()


def described(error: BaseException) -> Reply:
    """An error in one line."""
    reason = " ".join(str(error).split())[:REASON_LENGTH_MAX]
    memory = isinstance(error, MemoryError)
    return Reply(failed=type(error).__name__, reason=reason, memory=memory)


def _torch_on_gpu() -> Any:
    torch: Any = sys.modules.get("torch")
    used = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    return torch if used else None


def _release_memory() -> None:
    torch = _torch_on_gpu()
    if torch is not None:
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()


def load(reference: str, device: str, size: int | None) -> Any:
    """The model that `module:function` returns."""
    module, _, name = reference.partition(":")
    maker = getattr(import_module(module), name)
    if not callable(maker):
        raise TypeError(f"{reference} is a {type(maker).__name__}, not a function")
    wanted: Mapping[str, inspect.Parameter] = {}
    with contextlib.suppress(TypeError, ValueError):
        wanted = inspect.signature(maker).parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = any(name != "size" and each.kind in positional for name, each in wanted.items())
    given = [device] if first else []
    model = maker(*given, size=size) if size is not None and "size" in wanted else maker(*given)
    if not callable(model):
        raise TypeError(f"{reference} returned a {type(model).__name__}, which cannot be called")
    return model


def end_with(parent: int) -> None:
    """Have the system end this process with the one that started it, whatever runs here then."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the backend has ended")


def main(start: Start) -> None:
    """Load the model, and answer until the backend closes the channel."""
    end_with(start.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=start.channel))
    # The environment's own modules come first.
    sys.path.extend(start.folders)
    try:
        model = load(start.model, start.device, start.size)
    except BaseException as error:
        channel.send(described(error))
        raise
    torch = _torch_on_gpu()
    held = 0 if torch is None else int(torch.cuda.memory_reserved())
    channel.send(Reply(held_bytes=held, ends_sequences=hasattr(model, "end_sequences")))
    child = Child(model, SharedArrays(start.inputs), SharedArrays(start.outputs))
    while True:
        asked = channel.receive()
        if asked is None:
            return
        channel.send(child.answer(Question(*asked)))


if __name__ == "__main__":
    main(Start(*json.loads(sys.argv[1])))
