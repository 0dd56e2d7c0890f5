"""Open-loop load over HTTP/1.1, for peers that speak nothing else: one request a connection."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from fermata.clients.load.connection import AGAIN_S, CONNECT_S, OK, LaneOwner, LoadError
from fermata.clients.load.sender import Sender, SenderOptions

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"
MESSAGE_MAX = 200


@dataclass(frozen=True, slots=True)
class HttpOptions(SenderOptions):
    """`streams` is how many connections there are, so how many requests can be under way."""

    requests: tuple[bytes, ...] = ()
    """What is sent, head and body, for each target."""


def post(path: str, body: bytes, kind: str, *headers: str) -> bytes:
    """A whole request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}"]
    lines += [f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Answers:
    """Bytes in, (status, body) out. Pure; a length is all that tells where an answer ends."""

    def __init__(self) -> None:
        self._in = bytearray()

    def receive(self, data: bytes) -> list[tuple[int, bytes]]:
        """The answers these bytes complete; ValueError where they are none."""
        held = self._in
        held += data
        found: list[tuple[int, bytes]] = []
        while (end := held.find(HEAD_END)) >= 0:
            lines = bytes(held[:end]).split(b"\r\n")
            status = int(lines[0].split(b" ", 2)[1])
            length = next((line for line in lines if line.lower().startswith(LENGTH)), None)
            if length is None:
                raise ValueError(f"an answer without a length: {lines[0]!r}")
            start = end + len(HEAD_END)
            stop = start + int(length[len(LENGTH) :])
            if len(held) < stop:
                break
            found.append((status, bytes(held[start:stop])))
            del held[:stop]
        return found


class Connection(asyncio.Protocol):
    """Has at most one request under way."""

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.index = -1
        self.answers = Answers()

    def send(self, index: int, message: bytes) -> None:
        self.index = index
        self.transport.write(message)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.pool.on_free(self)

    def data_received(self, data: bytes) -> None:
        try:
            found = self.answers.receive(data)
        except (ValueError, IndexError):
            self.transport.abort()
            return
        for status, body in found:
            index, self.index = self.index, -1
            self.pool.on_answer(index, status, body)
            self.pool.on_free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # What was under way stays without an answer, and the ledger says so.
        self.pool.on_lost(self)


class Pool:
    """All connections of a sender. What no connection is free for waits here, and grows old."""

    def __init__(self, desk: LaneOwner, server: str, size: int) -> None:
        self.desk = desk
        host, _, port = server.rpartition(":")
        self.address = (host, int(port))
        self.size = size
        self.queue: deque[int] = deque()
        self.free: list[Connection] = []
        self.missing = 0
        self.lost = asyncio.Event()

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                for _ in range(self.size):
                    await self._open()
        except (OSError, TimeoutError) as error:
            raise LoadError(f"{self.address[1]} cannot be reached ({error}): is it up?") from None
        self.task = asyncio.ensure_future(self._reopen())

    async def _open(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Connection(self), *self.address)

    async def _reopen(self) -> None:
        while True:
            await self.lost.wait()
            self.lost.clear()
            with suppress(OSError):
                while self.missing:
                    await self._open()
                    self.missing -= 1
            if self.missing:
                self.lost.set()
                await asyncio.sleep(AGAIN_S)

    def put(self, index: int) -> None:
        self.queue.append(index)
        self._push()

    def _push(self) -> None:
        while self.queue and self.free:
            index = self.queue.popleft()
            message = self.desk.message(index)
            if message is not None:
                self.free.pop().send(index, message)

    def on_free(self, connection: Connection) -> None:
        self.free.append(connection)
        self._push()

    def on_answer(self, index: int, status: int, body: bytes) -> None:
        if status == 200:
            self.desk.answer(str(index), OK, "", int(body) if body.isdigit() else 0)
        else:
            said = body[:MESSAGE_MAX].decode(errors="replace")
            self.desk.answer(str(index), f"HTTP {status}", said, 0)

    def on_lost(self, connection: Connection) -> None:
        with suppress(ValueError):
            self.free.remove(connection)
        self.missing += 1
        self.lost.set()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        for connection in self.free:
            connection.transport.abort()


class HttpSender(Sender):
    """Sends what its options hold, in place of messages of the Open Inference Protocol."""

    options: HttpOptions

    def make_lanes(self) -> Sequence[Pool]:
        return [Pool(self, self.options.server, self.options.streams)]

    def compose(self, index: int, target: int) -> bytes:
        return self.options.requests[target]
