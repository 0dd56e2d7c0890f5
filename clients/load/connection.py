"""How requests travel: a stream on a connection of its own, or unary calls."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, Protocol, cast

import grpc

from fermata.clients.access import OPEN, Access
from fermata.clients.load.http2 import Http2Stream
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters as names
from fermata.clients.wire.errors import WireError
from fermata.clients.wire.parameters import integer, text
from fermata.clients.wire.service import SERVICE, STREAM

CONNECT_S = 10.0
AGAIN_S = 0.05
BUFFER_BYTES = 256 << 10
"""More than this in the socket's queue, and requests wait where their age is looked at."""
OK = "OK"
DRAINING = "draining"
"""Reason of a server that shuts down."""
CUT = "CUT"
"""Its connection ended before its answer: what gRPC calls UNAVAILABLE, and the client sees without
a word of the server."""


class LoadError(WireError):
    """The load could not be run."""


class LaneOwner(Protocol):
    """The owner of the requests, which gets the answers."""

    tail_s: float

    def message(self, index: int) -> bytes | None:
        """The request, marked as sent; None when its time is over."""

    def answer(self, request_id: str, outcome: str, message: str, batch: int) -> None: ...


class Way(Protocol):
    """To the server."""

    async def connect(self) -> None: ...

    def put(self, index: int) -> None:
        """Send that request, now or as soon as the server takes it."""

    async def close(self) -> None: ...


class RequestLane(asyncio.Protocol):
    """One stream. What the server does not take yet waits here, and grows old."""

    def __init__(self, desk: LaneOwner, server: str, access: Access = OPEN) -> None:
        self.desk = desk
        self.server = server
        self.access = access
        self.queue: deque[int] = deque()
        self.under_way: set[int] = set()
        """Sent on this connection, and not answered yet."""
        self.stream: Http2Stream | None = None
        self.full = False
        self.leaving = False
        """The server shuts down, and has said so: another one serves who connects anew."""
        self.ended = asyncio.Event()

    async def connect(self) -> None:
        """Open the first connection; after its loss others follow, while the load goes on."""
        try:
            await asyncio.wait_for(self._open(), CONNECT_S)
        except (OSError, TimeoutError) as error:
            said = str(error) or f"no answer within {CONNECT_S:g} s"
            raise LoadError(f"{self.server} cannot be reached ({said}): is it up?") from None
        self.task = asyncio.ensure_future(self._reopen())

    async def _open(self) -> None:
        host, _, port = self.server.rpartition(":")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()
        self.headers = self.access.headers()
        context = self.access.context()
        name = None
        if context is not None:
            context.set_alpn_protocols(["h2"])
            name = self.access.server_name or host
        await loop.create_connection(
            lambda: self, host, int(port), ssl=context, server_hostname=name
        )

    async def _reopen(self) -> None:
        while True:
            await self.ended.wait()
            await asyncio.sleep(AGAIN_S)
            with suppress(OSError):
                await self._open()

    def put(self, index: int) -> None:
        self.queue.append(index)
        self._push()

    def _push(self) -> None:
        stream = self.stream
        if stream is None:
            return
        queue = self.queue
        while queue and stream.ready and not self.full and not self.leaving:
            index = queue.popleft()
            message = self.desk.message(index)
            if message is not None:
                self.under_way.add(index)
                stream.send(message)
                self._write()

    def _write(self) -> None:
        assert self.stream is not None
        data = self.stream.take()
        if data:
            self.transport.write(data)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if self.stream is not None:
            self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # Not before: an attempt that fails is followed by others.
        self.ended.clear()
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        scheme = "https" if self.access.tls else "http"
        self.stream = Http2Stream(self.server, f"/{SERVICE}/{STREAM}", scheme, self.headers)
        self.full = self.leaving = False
        self.transport.write(self.stream.open())
        self._push()

    def data_received(self, data: bytes) -> None:
        stream = self.stream
        assert stream is not None
        for message in stream.receive(data):
            self._on_response(pb.ModelStreamInferResponse.FromString(message))
        self._write()
        self.leaving |= stream.leaving
        if stream.closed or (self.leaving and not self.under_way):
            self.transport.abort()
        else:
            self._push()

    def _on_response(self, message: pb.ModelStreamInferResponse) -> None:
        response = message.infer_response
        if response.id.isdecimal():
            self.under_way.discard(int(response.id))
        given = response.parameters
        if message.error_message:
            status = text(given, names.STATUS) or "UNKNOWN"
            self.leaving |= text(given, names.REASON) == DRAINING
            self.desk.answer(response.id, status, message.error_message, 0)
        else:
            self.desk.answer(response.id, OK, "", integer(given, names.BATCH_SIZE) or 0)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._push()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None
        for index in sorted(self.under_way):
            self.desk.answer(str(index), CUT, "the connection ended", 0)
        self.under_way.clear()
        self.ended.set()


class Calls:
    """Unary calls on one connection, by gRPC's own client."""

    def __init__(self, desk: LaneOwner, server: str, access: Access = OPEN) -> None:
        self.desk = desk
        self.server = server
        self.access = access
        self.tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        # Channels to one address would share a connection, and so one frontend of several.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self.channel = self.access.aio_channel(self.server, options)
        self.headers = self.access.headers()
        self.call: Any = self.channel.unary_unary(
            f"/{SERVICE}/ModelInfer", response_deserializer=pb.ModelInferResponse.FromString
        )
        try:
            await asyncio.wait_for(self.channel.channel_ready(), CONNECT_S)
        except TimeoutError:
            raise LoadError(f"{self.server} does not answer within {CONNECT_S:g} s") from None

    def put(self, index: int) -> None:
        task = asyncio.ensure_future(self._one(index))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _one(self, index: int) -> None:
        data = self.desk.message(index)
        if data is None:
            return
        try:
            response = await self.call(data, timeout=self.desk.tail_s, metadata=self.headers)
        except grpc.aio.AioRpcError as error:
            self.desk.answer(str(index), error.code().name, str(error.details()), 0)
            return
        self.desk.answer(str(index), OK, "", integer(response.parameters, names.BATCH_SIZE) or 0)

    async def close(self) -> None:
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.channel.close()
