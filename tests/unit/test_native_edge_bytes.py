"""The native edge's HTTP/2, without a socket: what comes of bytes, and of those meant to hurt."""

import random
import struct
import time
import tracemalloc
from typing import Any

import pytest

from fermata.clients.load.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    length_of,
    literal,
)
from fermata.deployments.frontend.edge.build import EDGE

pytestmark = pytest.mark.skipif(bool(EDGE.reason_not()), reason="the native edge is not built here")
PEER = "ipv4:10.0.0.1:4000"
MESSAGE_MAX = 1 << 20
CALLS_MAX = 256
CONTINUATION, PRIORITY = 9, 2
WINDOW = 1 << 20
FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Method"),
    (":authority", "here"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


@pytest.fixture(scope="module")
def edge() -> Any:
    return EDGE.load(EDGE.build())


class Wire:
    """A connection, and what it has told."""

    def __init__(self, edge: Any, knows: bool = True) -> None:
        """`knows`: the client has taken note of the settings."""
        self.edge = edge
        self.connection = edge.Connection(PEER, MESSAGE_MAX, CALLS_MAX)
        self.events: list[tuple[int, Any, Any]] = []
        self.written = b""
        self.give(PREFACE + frame(SETTINGS, 0, 0, b""))
        if knows:
            self.give(frame(SETTINGS, ACK, 0, b""))

    def give(self, data: bytes) -> None:
        self.events += self.connection.receive(data)
        while found := self.connection.output():
            self.written += found
        self.events += self.connection.events()

    def kinds(self) -> list[int]:
        return [kind for kind, _, _ in self.events]

    def of(self, kind: int) -> list[Any]:
        return [data for each, _, data in self.events if each == kind]

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and body of each frame that was written."""
        found, at, data = [], 0, self.written
        while at < len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            kind, flags, stream = struct.unpack(">BBI", data[at + 3 : at + 9])
            found.append((kind, flags, stream, data[at + 9 : at + 9 + size]))
            at += 9 + size
        return found


def headers(stream: int = 1, flags: int = 0, more: tuple[tuple[str, str], ...] = ()) -> bytes:
    block = b"".join(literal(name, value) for name, value in (*FIELDS, *more))
    return frame(HEADERS, END_HEADERS | flags, stream, block)


def message(data: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def call_of(wire: Wire) -> Any:
    return wire.events[0][1]


def test_a_call_and_its_answer(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers(more=(("grpc-timeout", "5S"), ("a", "b"), ("odd", "\xff"))))
    wire.give(frame(DATA, END_STREAM, 1, message(b"hello")))
    assert wire.kinds() == [edge.BEGUN, edge.MESSAGE, edge.ENDED]
    assert wire.of(edge.MESSAGE) == [b"hello"]
    call = call_of(wire)
    assert (call.path, call.peer, call.timeout, call.valid) == (
        "/test.Service/Method",
        PEER,
        "5S",
        True,
    )
    assert call.headers == [("a", "b"), ("odd", "\xff".encode())]
    wire.written = b""
    call.send(b"answer")
    call.finish(((b"grpc-status", b"0"),))
    wire.give(b"")
    (_, _, _, first), (kind, _, _, body), (_, flags, _, last) = wire.frames()
    assert first
    assert (kind, body) == (DATA, message(b"answer"))
    assert flags & END_STREAM
    assert last
    assert wire.of(edge.CLOSED) == [0]
    assert call.closed


def test_messages_are_the_same_however_their_bytes_are_cut(edge: Any) -> None:
    sent = [b"", b"x", bytes(range(256)), b"y" * 2000]
    body = b"".join(map(message, sent))
    data = headers() + frame(DATA, PADDED, 1, b"\x07" + body[:700] + bytes(7))
    data += frame(DATA, 0, 1, b"") + frame(DATA, END_STREAM, 1, body[700:])
    for at in range(len(data)):
        wire = Wire(edge)
        wire.give(data[:at])
        wire.give(data[at:])
        assert wire.of(edge.MESSAGE) == sent
        assert wire.kinds()[-1] == edge.ENDED
    wire = Wire(edge)
    for one in data:
        wire.give(bytes((one,)))
    assert wire.of(edge.MESSAGE) == sent


def test_a_long_message_comes_whole_from_frames_of_any_size(edge: Any) -> None:
    chance = random.Random(1)
    for first in (0, 7, 600_000):
        wire = Wire(edge)
        # One that waits for its rest has the memory that is given at once.
        wire.give(headers() + frame(DATA, 0, 1, message(bytes(first))[:-1]))
        wire.give(headers(3))
        sent = chance.randbytes(MESSAGE_MAX - chance.randrange(10))
        body, at = message(sent), 0
        while at < len(body):
            size = chance.choice((1, 1000, 16_384, 100_000))
            wire.give(frame(DATA, 0, 3, body[at : at + size]))
            at += size
        assert wire.of(edge.MESSAGE) == [sent]


def test_a_length_alone_costs_no_memory(edge: Any) -> None:
    wire = Wire(edge)
    tracemalloc.start()
    for stream in range(1, 2 * CALLS_MAX, 2):
        wire.give(headers(stream) + frame(DATA, 0, stream, struct.pack(">BI", 0, MESSAGE_MAX)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A quarter of a megabyte is set aside for each, and touched as bytes come.
    assert held < CALLS_MAX * (300 << 10) + MESSAGE_MAX
    assert wire.of(edge.MESSAGE) == []


def test_a_message_above_the_limit_is_told_and_not_taken(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers() + frame(DATA, 0, 1, struct.pack(">BI", 0, MESSAGE_MAX + 1) + bytes(1000)))
    wire.give(frame(DATA, 0, 1, bytes(10_000)))
    assert wire.kinds() == [edge.BEGUN, edge.TOO_LARGE]
    assert wire.of(edge.TOO_LARGE) == [MESSAGE_MAX + 1]
    call_of(wire).finish(((b"grpc-status", b"8"),))
    wire.give(b"")
    # Its client need not send the rest.
    assert (RESET, 1, struct.pack(">I", 0)) in [(k, s, b) for k, _, s, b in wire.frames()]
    assert wire.of(edge.CLOSED) == [0]


def test_flags_that_there_are_not_are_told(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers() + frame(DATA, 0, 1, message(b"abc", compressed=2)))
    assert wire.of(edge.TOO_LARGE) == [0]
    wire.give(headers(3) + frame(DATA, 0, 3, message(b"abc", compressed=1)))
    assert wire.of(edge.COMPRESSED) == [b"abc"]


def test_half_a_message_is_none(edge: Any) -> None:
    for half in (b"\x00", b"\x00\x00\x00\x00\x05ab"):
        wire = Wire(edge)
        wire.give(headers() + frame(DATA, END_STREAM, 1, half))
        assert wire.of(edge.MESSAGE) == []
        assert wire.of(edge.CLOSED) == [1]


def test_messages_that_nobody_reads_wait_as_bytes_within_the_window(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers())
    empty = message(b"") * (WINDOW // 5)
    for at in range(0, len(empty), 16_380):
        wire.give(frame(DATA, 0, 1, empty[at : at + 16_380]))
    assert len(wire.of(edge.MESSAGE)) == 16
    wire.written = b""
    # The window is used up: whoever sends more breaks the protocol.
    wire.give(frame(DATA, 0, 1, bytes(100)))
    assert (RESET, 3) in [(kind, body[3]) for kind, _, _, body in wire.frames() if body[3:4]]
    call = call_of(wire)
    assert call.closed


def test_what_waited_comes_as_messages_are_read_and_then_the_end(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(
        headers() + frame(DATA, END_STREAM, 1, b"".join(message(b"%d" % i) for i in range(100)))
    )
    assert len(wire.of(edge.MESSAGE)) == 16
    assert edge.ENDED not in wire.kinds()
    for _ in range(100):
        call_of(wire).read(2)
    wire.give(b"")
    assert wire.of(edge.MESSAGE) == [b"%d" % i for i in range(100)]
    assert wire.kinds()[-1] == edge.ENDED


def test_windows_of_nothing_hold_answers_back_and_are_told(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + headers())
    call = call_of(wire)
    assert call.send(bytes(100_000)) == 100_005 + 1024
    assert call.wait()
    wire.give(b"")
    assert edge.DRAINED not in wire.kinds()
    assert not [each for each in wire.frames() if each[0] == DATA]
    for _ in range(100):
        wire.give(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1000)))
    # That of the connection still holds back what is above 64 KB.
    assert sum(len(body) for kind, _, _, body in wire.frames() if kind == DATA) == 65_535
    assert edge.DRAINED not in wire.kinds()
    wire.give(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 100_000)))
    assert edge.DRAINED in wire.kinds()
    assert sum(len(body) for kind, _, _, body in wire.frames() if kind == DATA) == 100_000


def test_too_many_headers_are_told_and_cost_no_memory(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers(more=tuple((f"h{i}", "v" * 100) for i in range(130))))
    assert call_of(wire).overflow
    assert len(call_of(wire).headers) < 200


def test_a_bomb_of_indexed_headers(edge: Any) -> None:
    """One header of 4 KB in the table, and then named ten thousand times by a byte each."""
    large = b"\x40" + length_of(b"bomb") + b"bomb" + length_of(b"v" * 3900) + b"v" * 3900
    block = b"".join(literal(name, value) for name, value in FIELDS) + large + b"\xbe" * 10_000
    wire = Wire(edge)
    tracemalloc.start()
    began_s = time.process_time()
    for stream in range(1, 100, 2):
        wire.give(frame(HEADERS, END_HEADERS, stream, block))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - began_s < 5
    assert most < 4 << 20
    assert all(call.overflow for kind, call, _ in wire.events if kind == edge.BEGUN)


def test_a_flood_of_continuations_ends_the_connection(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(frame(HEADERS, 0, 1, literal(":method", "POST")))
    for _ in range(1000):
        wire.give(frame(CONTINUATION, 0, 1, literal("a", "b" * 1000)))
    assert wire.connection.dead
    assert edge.BEGUN not in wire.kinds()


def test_rapid_resets_leave_no_calls_and_end_the_connection(edge: Any) -> None:
    wire = Wire(edge)
    begun = 0
    for stream in range(1, 20_000, 2):
        wire.give(headers(stream) + frame(RESET, 0, stream, struct.pack(">I", 8)))
        begun += wire.kinds().count(edge.BEGUN)
        assert all(call.closed for _, call, _ in wire.events)
        wire.events.clear()
        if wire.connection.dead:
            break
    assert begun <= 10_000


def test_calls_beyond_the_limit_are_refused_and_of_one_who_knew_it_end_the_connection(
    edge: Any,
) -> None:
    for knows in (False, True):
        wire = Wire(edge, knows)
        for stream in range(1, 4 * CALLS_MAX, 2):
            wire.give(headers(stream))
        assert wire.kinds().count(edge.BEGUN) == CALLS_MAX
        assert wire.connection.dead is knows
        refused = [body[3] for kind, _, _, body in wire.frames() if kind == RESET]
        assert refused == ([] if knows else [7] * CALLS_MAX)


def test_floods_of_pings_and_settings_without_reading_end_the_connection(edge: Any) -> None:
    for each in (frame(PING, 0, 0, bytes(8)), frame(SETTINGS, 0, 0, b"")):
        wire = Wire(edge)
        wire.connection.receive(each * 100_000)
        while wire.connection.output():
            pass
        assert wire.connection.dead


def test_a_connection_that_ends_ends_its_calls(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers() + frame(DATA, 0, 1, message(b"abc")[:6]))
    call = call_of(wire)
    wire.give(b"\xff" * 100)
    assert wire.connection.dead
    assert call.closed
    assert edge.CLOSED in wire.kinds()
    assert call.send(b"late") == 0
    call.finish(())
    call.reset(8)
    call.read(3)
    assert not call.wait()


def test_a_call_outlives_its_connection(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers())
    call = call_of(wire)
    call.send(b"unsent")
    wire.events.clear()
    del wire
    assert call.closed
    assert call.send(b"late") == 0


def test_what_is_no_grpc_and_what_is_no_http2(edge: Any) -> None:
    wire = Wire(edge)
    block = b"".join(literal(name, value) for name, value in FIELDS[:4])
    wire.give(frame(HEADERS, END_HEADERS | END_STREAM, 1, block))
    call = call_of(wire)
    assert not call.valid
    call.refuse("415")
    wire.give(b"")
    assert wire.of(edge.CLOSED) == [0]
    other = edge.Connection(PEER, MESSAGE_MAX, CALLS_MAX)
    assert other.receive(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + bytes(30)) == []
    assert other.dead


def test_leaving_is_told_twice_and_calls_under_way_end(edge: Any) -> None:
    wire = Wire(edge)
    wire.give(headers())
    wire.connection.leave(1)
    wire.give(b"")
    assert [body[3] for kind, _, _, body in wire.frames() if kind == GOAWAY] == [255]
    (asked,) = [body for kind, flags, _, body in wire.frames() if kind == PING and not flags]
    wire.give(frame(PING, ACK, 0, asked))
    assert [body[3] for kind, _, _, body in wire.frames() if kind == GOAWAY] == [255, 1]
    call = call_of(wire)
    call.finish(((b"grpc-status", b"0"),))
    assert not wire.connection.dead
    wire.give(frame(DATA, END_STREAM, 1, b""))
    assert wire.connection.dead


def test_random_frames_do_no_harm(edge: Any) -> None:
    for seed in range(300):
        chance = random.Random(seed)
        wire = Wire(edge)
        for _ in range(60):
            kind = chance.choice((DATA, HEADERS, PRIORITY, RESET, SETTINGS, 5, PING, GOAWAY, 8, 9))
            stream = chance.choice((0, 1, 1, 3, 3, 5, 2**31 - 1))
            if chance.random() < 0.4:
                wire.give(headers(chance.choice((1, 3, 5, 7)), chance.choice((0, END_STREAM))))
            size = chance.choice((0, 4, 5, 8, 6, 100))
            wire.give(frame(kind, chance.choice((0, 1, 4, 5, 8)), stream, chance.randbytes(size)))
            for _, call, _ in wire.events:
                action = chance.randrange(12)
                if action == 0:
                    call.send(chance.randbytes(chance.choice((0, 10, 70_000))))
                elif action == 1:
                    call.finish(((b"grpc-status", b"0"),))
                elif action == 2:
                    call.read(100)
                elif action == 3:
                    call.reset(8)
        closed = [call for kind, call, _ in wire.events if kind == edge.CLOSED]
        assert len(closed) == len(set(map(id, closed)))
