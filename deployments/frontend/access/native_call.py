"""One call of the native edge, as handlers of gRPC's asyncio server know calls."""

import asyncio
import base64
import binascii
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

PENDING_MAX = 32 << 10
"""Unsent bytes, with a kilobyte for each answer, beyond which a handler waits for its client."""
CANCEL = 8
"""Code of HTTP/2 for a stream that is not wanted any more."""
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""How zlib reads each compression of gRPC."""
TIMEOUT_UNITS = {"H": 3_600_000_000_000, "M": 60_000_000_000, "S": 1_000_000_000, "m": 1_000_000}
TIMEOUT_UNITS |= {"u": 1_000, "n": 1}
TIMEOUT_DIGITS = 8
SPELT = frozenset(range(0x20, 0x7F)) - {ord("%")}
"""Bytes of a status message that are sent as they are."""
STATUS_NAME, MESSAGE_NAME = b"grpc-status", b"grpc-message"
OK_TRAILERS = ((STATUS_NAME, b"0"),)

Metadata = tuple[tuple[str, str | bytes], ...]


class NativeCall:
    """A call as its handler reads, writes and ends it."""

    __slots__ = (
        "_code",
        "_deadline_ns",
        "_done",
        "_finished",
        "_headers",
        "_reader",
        "_refusal",
        "_serialize",
        "_touch",
        "_writer",
        "call",
        "expiry",
        "half_closed",
        "message_max",
        "messages",
        "task",
    )

    def __init__(self, call: Any, message_max: int, touch: Callable[[], None]) -> None:
        """`touch` has what was given to `call` written soon."""
        self.call = call
        self.message_max = message_max
        self.messages: deque[tuple[bytes, bool]] = deque()
        """Messages that nobody has asked for, and whether they are compressed."""
        self.half_closed = False
        """The client sends no more."""
        self.task: asyncio.Task[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self._serialize: Callable[[Any], bytes] = bytes
        self._touch = touch
        self._headers: Metadata | None = None
        self._code: grpc.StatusCode | None = None
        self._done: list[Callable[[Any], None]] = []
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._finished = False
        self._refusal: tuple[grpc.StatusCode, str] | None = None
        timeout_ns = None if call.timeout is None else timeout_of(call.timeout)
        self._deadline_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return self._finished or self.call.closed

    def peer(self) -> str:
        return self.call.peer  # type: ignore[no-any-return]

    def invocation_metadata(self) -> Metadata:
        if self._headers is None:
            self._headers = tuple(_decoded(key, value) for key, value in self.call.headers)
        return self._headers

    def time_remaining(self) -> float | None:
        if self._deadline_ns is None:
            return None
        return max(0, self._deadline_ns - time.monotonic_ns()) / 1e9

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call it when the client has its answer, or has left."""
        self._done.append(callback)

    async def read(self) -> Any:
        """The next message, or EOF."""
        while not self.messages:
            if self._refusal is not None:
                await self.abort(*self._refusal)
            if self.half_closed:
                return grpc.aio.EOF
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message, is_compressed = self.messages.popleft()
        self.call.read(len(message))
        self._touch()
        return await self._inflated(message) if is_compressed else message

    async def write(self, response: Any) -> None:
        """Send a message; returns once few bytes wait for the client."""
        message = await self._message(response)
        pending = self.call.send(message)
        self._touch()
        if pending > PENDING_MAX and self.call.wait():
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        self.end(code, details, trailing_metadata)
        raise grpc.aio.AbortError(f"the call ends: {details}")

    async def answer(self, handler: Any) -> None:
        """Run the handler, and end the call as it says."""
        if handler.response_serializer is not None:
            self._serialize = handler.response_serializer
        if handler.response_streaming:
            await handler.stream_stream(None, self)
        else:
            response = await handler.stream_unary(None, self)
            self.call.send(await self._message(response))
        self.end(grpc.StatusCode.OK)

    async def _message(self, response: Any) -> bytes:
        message = self._serialize(response)
        if len(message) > self.message_max:
            most = f"Sent message larger than max ({len(message)} vs. {self.message_max})"
            await self.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, most)
        return message

    async def _inflated(self, message: bytes) -> bytes:
        bits = WINDOW_BITS.get(self.call.encoding or "")
        if bits is None:
            details = f"messages in {self.call.encoding!r} cannot be read: send gzip or deflate"
            accepted = (("grpc-accept-encoding", "identity,deflate,gzip"),)
            await self.abort(grpc.StatusCode.UNIMPLEMENTED, details, accepted)
        loop = asyncio.get_running_loop()
        try:
            # Megabytes take a while, and zlib needs no lock for them.
            found = await loop.run_in_executor(None, inflate, message, bits, self.message_max)
        except zlib.error as error:
            await self.abort(grpc.StatusCode.INTERNAL, f"a message cannot be inflated: {error}")
        if found is None:
            details = f"Received message larger than max ({self.message_max})"
            await self.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        return found

    def end(self, code: grpc.StatusCode, details: str = "", metadata: Any = ()) -> None:
        """End the call with a status, behind all that was written."""
        if self._finished:
            return
        self._finished, self._code = True, code
        if code is grpc.StatusCode.OK and not metadata:
            self.call.finish(OK_TRAILERS)
        else:
            self.call.finish(trailers(code, details, metadata))
        self._touch()

    def expire(self) -> None:
        """End it at its client's deadline."""
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self.task is not None:
            self.task.cancel()

    def drop(self) -> None:
        """End it without a status, where it has none."""
        if not self._finished:
            self.call.reset(CANCEL)
            self._touch()

    def on_message(self, message: bytes, is_compressed: bool) -> None:
        self.messages.append((message, is_compressed))
        self._wake_reader()

    def on_half_close(self) -> None:
        self.half_closed = True
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def on_drained(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def on_too_large(self, size: int) -> None:
        """End the call where its handler reads what was not taken in. One of no size has flags
        that there are not."""
        if size:
            most = f"Received message larger than max ({size} vs. {self.message_max})"
            self._refusal = grpc.StatusCode.RESOURCE_EXHAUSTED, most
        else:
            self._refusal = grpc.StatusCode.INTERNAL, "a message has flags that are not known"
        self._wake_reader()

    def on_closed(self) -> None:
        """The client has its answer, or has left."""
        if self.expiry is not None:
            self.expiry.cancel()
        if self.task is not None and not self.task.done():
            # One that has ended its call may still have something to tidy up.
            if not self._finished:
                self.task.cancel()
            self.on_drained()
        for each in self._done:
            each(self)
        self._done.clear()
        self.messages.clear()


def inflate(message: bytes, bits: int, size_max: int) -> bytes | None:
    """Decompress a message; None if it is larger than `size_max`. Raises `zlib.error`."""
    one = zlib.decompressobj(bits)
    found = one.decompress(message, size_max + 1)
    if len(found) > size_max:
        return None
    if not one.eof:
        raise zlib.error("it is cut off")
    return found


def trailers(code: grpc.StatusCode, details: str, metadata: Any) -> tuple[tuple[bytes, bytes], ...]:
    """The end of a call as HTTP/2 carries it."""
    found = [(STATUS_NAME, b"%d" % code.value[0])]
    if details:
        found.append((MESSAGE_NAME, spelt(details)))
    for key, value in metadata or ():
        if key.endswith("-bin"):
            raw = value if isinstance(value, bytes) else value.encode()
            found.append((key.encode(), base64.b64encode(raw)))
        else:
            found.append((key.encode(), value if isinstance(value, bytes) else value.encode()))
    return tuple(found)


def spelt(details: str) -> bytes:
    """A status message, percent-encoded as gRPC has it."""
    raw = details.encode(errors="replace")
    return b"".join(b"%c" % each if each in SPELT else b"%%%02X" % each for each in raw)


def timeout_of(text: str) -> int | None:
    """A header `grpc-timeout` in nanoseconds; None if it cannot be read."""
    digits, unit = text[:-1], text[-1:]
    if unit not in TIMEOUT_UNITS or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits) * TIMEOUT_UNITS[unit] if len(digits) <= TIMEOUT_DIGITS else None


def _decoded(key: str, value: str | bytes) -> tuple[str, str | bytes]:
    if not key.endswith("-bin") or not isinstance(value, str):
        return key, value
    try:
        return key, base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return key, b""
