"""One gRPC stream on one connection, at a tenth of what a gRPC library costs.

A generator shares the machine with the server it measures, so its own cost is part of every figure.
Pure: bytes in, messages and bytes out. No compression, one stream (RFC 9113, gRPC over HTTP/2);
what the server's headers say is not read, since answers carry their own status.
"""

import struct
from collections import deque

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
STREAM = 1
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
WINDOW_MAX = (1 << 31) - 1
WINDOW_START = 65_535
FRAME_START = 16_384
GRANT_BYTES = 1 << 28
"""Received bytes are granted again in steps of this size."""


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def literal(name: str, value: str) -> bytes:
    """A header, neither indexed nor compressed (RFC 7541, 6.2.2)."""
    parts = [b"\x00"]
    for text in (name.encode(), value.encode()):
        parts += [length_of(text), text]
    return b"".join(parts)


def length_of(text: bytes) -> bytes:
    """Seven bits, and from 127 on seven more a byte (RFC 7541, 5.1)."""
    if len(text) < 127:
        return bytes((len(text),))
    rest = len(text) - 127
    coded = [127]
    while rest >= 128:
        coded.append(rest % 128 + 128)
        rest //= 128
    return bytes((*coded, rest))


class Http2Stream:
    """A bidirectional stream of gRPC messages, seen from the client."""

    def __init__(
        self,
        authority: str,
        path: str,
        scheme: str = "http",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.authority = authority
        self.path = path
        self.scheme = scheme
        self.headers = headers
        self.closed = ""
        """Why it has ended."""
        self.leaving = False
        """The server will end this connection, and has said so: another one serves who connects
        anew."""
        self.connection_window = WINDOW_START
        self.stream_window = WINDOW_START
        self.initial_window = WINDOW_START
        self.frame_max = FRAME_START
        self._in = bytearray()
        self._message = bytearray()
        self._out: list[bytes] = []
        self._waiting: deque[memoryview] = deque()
        self._granted = 0

    def open(self) -> bytes:
        """Bytes to send first."""
        settings = struct.pack(">HIHI", 2, 0, INITIAL_WINDOW_SIZE, WINDOW_MAX)
        headers = b"".join(
            literal(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", self.scheme),
                (":path", self.path),
                (":authority", self.authority),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                *self.headers,
            )
        )
        more = struct.pack(">I", WINDOW_MAX - WINDOW_START)
        return b"".join(
            (
                PREFACE,
                frame(SETTINGS, 0, 0, settings),
                frame(WINDOW_UPDATE, 0, 0, more),
                frame(HEADERS, END_HEADERS, STREAM, headers),
            )
        )

    # Out

    @property
    def ready(self) -> bool:
        """Whether the message before has left, so that the next may."""
        return not self._waiting and min(self.connection_window, self.stream_window) > 0

    def send(self, message: bytes) -> None:
        """Give a message to `take`, as far as the server's windows allow, and the rest later."""
        self._waiting.append(memoryview(struct.pack(">BI", 0, len(message)) + message))
        self._fill()

    def _fill(self) -> None:
        while self._waiting:
            size = min(self.connection_window, self.stream_window, self.frame_max)
            if size <= 0:
                return
            whole = self._waiting[0]
            part = whole[:size]
            self._out.append(struct.pack(">I", len(part))[1:] + b"\x00\x00\x00\x00\x00\x01")
            self._out.append(bytes(part))
            self.connection_window -= len(part)
            self.stream_window -= len(part)
            if len(part) == len(whole):
                self._waiting.popleft()
            else:
                self._waiting[0] = whole[size:]

    def take(self) -> bytes:
        """Bytes for the socket."""
        out, self._out = self._out, []
        return b"".join(out)

    # In

    def receive(self, data: bytes) -> list[bytes]:
        """The messages these bytes complete."""
        messages: list[bytes] = []
        buffer = self._in
        buffer += data
        at = 0
        while len(buffer) - at >= 9 and not self.closed:
            length = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at < 9 + length:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            body = bytes(buffer[at + 9 : at + 9 + length])
            at += 9 + length
            if kind == DATA:
                self._on_data(flags, body, messages)
            else:
                self._on_frame(kind, flags, body, buffer[at - length - 1])
        del buffer[:at]
        return messages

    def _on_data(self, flags: int, body: bytes, messages: list[bytes]) -> None:
        self._granted += len(body)
        if self._granted >= GRANT_BYTES:
            grant = struct.pack(">I", self._granted)
            self._out += [frame(WINDOW_UPDATE, 0, stream, grant) for stream in (0, STREAM)]
            self._granted = 0
        if flags & PADDED:
            body = body[1 : len(body) - body[0]]
        held = self._message
        held += body
        at = 0
        while len(held) - at >= 5:
            length = int.from_bytes(held[at + 1 : at + 5], "big")
            if len(held) - at < 5 + length:
                break
            messages.append(bytes(held[at + 5 : at + 5 + length]))
            at += 5 + length
        del held[:at]
        if flags & END_STREAM:
            self.closed = "the server ended the stream"

    def _on_frame(self, kind: int, flags: int, body: bytes, stream: int) -> None:
        if kind == WINDOW_UPDATE:
            size = int.from_bytes(body, "big")
            if stream:
                self.stream_window += size
            else:
                self.connection_window += size
            self._fill()
        elif kind == PING and not flags & ACK:
            self._out.append(frame(PING, ACK, 0, body))
        elif kind == SETTINGS and not flags & ACK:
            self._on_settings(body)
        elif kind == HEADERS and flags & END_STREAM:
            self.closed = "the server ended the stream"
        elif kind == RESET:
            self.closed = f"the server reset the stream, code {int.from_bytes(body, 'big')}"
        elif kind == GOAWAY:
            self.leaving = True
            # With a higher number it only says that no further stream may start here.
            if int.from_bytes(body[:4], "big") < STREAM:
                self.closed = "the server refused the stream"

    def _on_settings(self, body: bytes) -> None:
        for at in range(0, len(body), 6):
            name, value = struct.unpack_from(">HI", body, at)
            if name == INITIAL_WINDOW_SIZE:
                self.stream_window += value - self.initial_window
                self.initial_window = value
            elif name == MAX_FRAME_SIZE:
                self.frame_max = value
        self._out.append(frame(SETTINGS, ACK, 0, b""))
        self._fill()
