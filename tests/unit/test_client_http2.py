"""The lean gRPC stream: frames by hand."""

import struct

from fermata.clients.load.http2 import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Stream,
    frame,
    length_of,
    literal,
)


def make() -> Http2Stream:
    return Http2Stream("localhost:1", "/service/method")


def message(body: bytes) -> bytes:
    return struct.pack(">BI", 0, len(body)) + body


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", data[3:9])
        found.append((kind, flags, stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return found


def test_it_opens_with_preface_settings_and_headers() -> None:
    data = make().open()
    assert data.startswith(PREFACE)
    kinds = [kind for kind, *_ in frames(data[len(PREFACE) :])]
    assert kinds == [SETTINGS, WINDOW_UPDATE, HEADERS]
    assert literal(":path", "/service/method") in data


def test_a_message_is_cut_to_frames_and_waits_for_windows() -> None:
    stream = make()
    stream.send(bytes(70_000))
    sent = frames(stream.take())
    assert [len(body) for *_, body in sent] == [16_384, 16_384, 16_384, 16_383]
    assert not stream.ready
    more = struct.pack(">I", 100_000)
    stream.receive(frame(WINDOW_UPDATE, 0, 0, more))
    assert stream.take() == b""
    stream.receive(frame(WINDOW_UPDATE, 0, 1, more))
    rest = frames(stream.take())
    assert sum(len(body) for *_, body in sent + rest) == 70_005
    assert stream.ready


def test_settings_change_the_windows_that_are_open() -> None:
    stream = make()
    stream.receive(frame(SETTINGS, 0, 0, struct.pack(">HIHI", 4, 1 << 20, 5, 1 << 16)))
    assert frames(stream.take()) == [(SETTINGS, ACK, 0, b"")]
    assert stream.stream_window == 1 << 20
    assert stream.frame_max == 1 << 16


def test_messages_come_out_however_the_bytes_are_cut() -> None:
    data = frame(HEADERS, 4, 1, b"ignored")
    data += frame(DATA, 0, 1, message(b"one") + message(b"two")[:4])
    data += frame(DATA, PADDED, 1, b"\x02" + message(b"two")[4:] + b"\x00\x00")
    for step in (1, 7, len(data)):
        stream = make()
        found: list[bytes] = []
        for at in range(0, len(data), step):
            found += stream.receive(data[at : at + step])
        assert found == [b"one", b"two"]


def test_pings_are_answered_and_ends_noticed() -> None:
    stream = make()
    stream.receive(frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, b"87654321"))
    assert frames(stream.take()) == [(PING, ACK, 0, b"12345678")]
    stream.receive(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)))
    assert not stream.closed
    for last in (
        frame(HEADERS, END_STREAM | 4, 1, b""),
        frame(RESET, 0, 1, struct.pack(">I", 8)),
        frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)),
    ):
        ended = make()
        ended.receive(last)
        assert ended.closed


def test_a_long_header_has_a_length_of_several_bytes() -> None:
    # RFC 7541, 5.1: a prefix that is full, then seven bits a byte, least significant first.
    assert [length_of(bytes(size)) for size in (0, 126, 127, 254, 255, 1337)] == [
        b"\x00",
        b"\x7e",
        b"\x7f\x00",
        b"\x7f\x7f",
        b"\x7f\x80\x01",
        b"\x7f\xba\x09",
    ]


def test_a_token_goes_with_the_stream() -> None:
    token = "Bearer " + "t" * 300
    stream = Http2Stream("localhost:1", "/service/method", "https", (("authorization", token),))
    opened = stream.open()
    assert literal(":scheme", "https") in opened
    assert literal("authorization", token) in opened
