"""The HTTP sender's answers and connections, on made-up transports."""

import asyncio
from typing import Any

import numpy as np
import pytest

from benchmarks.http_load import Answers, Connection, HttpOptions, HttpSender, Pool, post
from fermata.clients.load.arrivals import single
from fermata.clients.load.ledger import LOST, OK
from fermata.clients.load.sender import Target
from fermata.clients.wire.tensors import RawTensor

MS = 1_000_000
TARGET = Target("model", RawTensor("input", "UINT8", (1,), b"x"), 50 * MS)


def answer(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_answers_come_in_pieces_of_any_size() -> None:
    whole = answer("200 OK", b"16") + answer("504 Gateway Timeout", b"") + answer("200 OK", b"7")
    expected = [(200, b"16"), (504, b""), (200, b"7")]
    assert Answers().receive(whole) == expected
    by_bytes = Answers()
    found = [each for at in range(len(whole)) for each in by_bytes.receive(whole[at : at + 1])]
    assert found == expected


def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="without a length"):
        Answers().receive(b"HTTP/1.1 200 OK\r\n\r\n")


def test_a_request_says_its_length_and_extra_headers() -> None:
    head, _, body = post("/a", b"12345", "text/plain", "X-Y: z").partition(b"\r\n\r\n")
    assert body == b"12345"
    assert head.split(b"\r\n") == [
        b"POST /a HTTP/1.1",
        b"Host: 127.0.0.1",
        b"Content-Type: text/plain",
        b"Content-Length: 5",
        b"X-Y: z",
    ]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None: ...


class Clocked(HttpSender):
    """Its time is set by hand."""

    time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns


def sender(count: int) -> Clocked:
    due = single(np.arange(count, dtype=np.int64) * MS)
    options = HttpOptions("127.0.0.1:1", 2, requests=(b"message",))
    made = Clocked(options, [TARGET], due)
    made.left = 0
    made.open = count
    return made


def connect(pool: Pool) -> Any:
    connection: Any = Connection(pool)
    connection.connection_made(Wire())
    return connection


def test_the_ledger_holds_every_request_once() -> None:
    async def scene() -> None:
        desk = sender(5)
        (pool,) = desk.make_lanes()
        first, second = connect(pool), connect(pool)
        for index in range(4):
            pool.put(index)
        # Two connections: two are under way, two wait.
        assert [second.index, first.index, len(pool.queue)] == [0, 1, 2]
        desk.time_ns = 20 * MS
        second.data_received(answer("200 OK", b"16"))
        assert [second.index, second.transport.written] == [2, [b"message", b"message"]]
        first.data_received(answer("504 Gateway Timeout", b"too late"))
        # The last is older than its SLO when a connection is free for it: it does not leave.
        desk.time_ns = 60 * MS
        pool.put(4)
        second.connection_lost(None)
        first.data_received(answer("200 OK", b"16"))
        desk.ledger.close()
        ledger = desk.ledger
        ends = [ledger.outcomes[code] for code in ledger.outcome]
        assert ends == [OK, "HTTP 504", LOST, OK, "UNSENT"]
        assert ledger.batch.tolist() == [16, 0, 0, 16, 0]
        assert ledger.answered_ns.tolist() == [20 * MS, 20 * MS, -1, 60 * MS, -1]
        assert ledger.messages == {"HTTP 504": "too late"}
        assert (ledger.duplicates, ledger.strangers) == (0, 0)

    asyncio.run(scene())


def test_a_lost_connection_is_missed_and_used_no_more() -> None:
    async def scene() -> None:
        (pool,) = sender(1).make_lanes()
        lost, kept = connect(pool), connect(pool)
        lost.connection_lost(None)
        assert pool.missing == 1
        pool.put(0)
        assert [lost.index, kept.index] == [-1, 0]

    asyncio.run(scene())
