"""A frontend as clients meet it, with a router and a backend that answer by a simple rule."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from fermata.clients.wire.tensors import DTYPES
from fermata.deployments.frontend.process import FrontendProcess
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.connecting import connect
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
    PROTOCOL,
    Cancel,
    Dropped,
    Fetch,
    FleetStatus,
    Hello,
    Message,
    Payload,
    Result,
    Submit,
    Unread,
)
from fermata.router.links.transport import Link, LinkOptions, LinkServer

LINKS = LinkOptions(silence_ns=ms(5000))


class StandIn:
    """Both at once: what is submitted is fetched at once, in batches of one tick."""

    def __init__(self, node: str, delay_s: float = 0.0) -> None:
        self.node = node
        self.delay_s = delay_s
        self.heartbeat = HeartbeatThread(LINKS.beat_ns)
        self.server = LinkServer(self._router_hello, self, self.heartbeat, LINKS)
        self.backend: Link | None = None
        self.held: set[int] = set()
        self.cancelled: list[int] = []
        self.segments: dict[str, SharedMemory] = {}
        self.inline = 0
        self.term = 1

    async def tell(self, message: Message) -> None:
        """Have the frontend hear this from its router."""
        self.router_side.send(message)
        self.router_side.flush()

    def _router_hello(self) -> Hello:
        return Hello(PROTOCOL, "router", 0, self.term, "", self.node)

    async def start(self) -> str:
        return f"127.0.0.1:{await self.server.start('127.0.0.1')}"

    async def stop(self) -> None:
        if self.backend is not None:
            self.backend.close(CloseCode.SHUTDOWN, "done")
        await self.server.stop("done")
        self.heartbeat.stop()
        for segment in self.segments.values():
            segment.close()

    def on_up(self, link: Link) -> None:
        if link.session.me.role == "backend":
            return
        self.router_side = link
        link.send(FleetStatus(1, 1))
        if self.backend is None:
            self.joining = asyncio.ensure_future(self._join(link.peer.address))

    async def _join(self, address: str) -> None:
        me = Hello(PROTOCOL, "backend", 5, self.term, "", self.node)
        self.backend = await connect(address, lambda: me, self, self.heartbeat, LINKS)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        fetch: list[int] = []
        for message in messages:
            if isinstance(message, Submit):
                self.held.add(message.rid)
                if message.application == "shed":
                    link.send(Dropped(message.rid, "shed", ms(70)))
                elif message.application != "silent":
                    fetch.append(message.rid)
            elif isinstance(message, Cancel):
                self.held.discard(message.rid)
                self.cancelled.append(message.rid)
            elif isinstance(message, Payload):
                asyncio.get_running_loop().call_later(self.delay_s, self._run, message)
        if fetch:
            assert self.backend is not None
            self.backend.send(Fetch(1, tuple(fetch)))
            # A real router says so too: nobody was told where these lie.
            self.router_side.send(Unread(tuple(fetch)))

    def _run(self, payload: Payload) -> None:
        if payload.missing or self.backend is None:
            return
        data = payload.data
        if payload.segment:
            segment = self.segments.get(payload.segment)
            if segment is None:
                segment = self.segments[payload.segment] = SharedMemory(payload.segment)
            assert segment.buf is not None
            data = bytes(segment.buf[payload.offset : payload.offset + payload.length])
        else:
            self.inline += 1
        # Words have no numbers: what is summed then are their bytes.
        kind = DTYPES.get(payload.dtype, np.uint8)
        array = np.frombuffer(data, kind).astype(np.float32)
        output = np.array([array.sum(), array.min(), array.max()], np.float32)
        tensors = (("output", "FP32", (3,), output.tobytes()),)
        self.held.discard(payload.rid)
        # Shorter than any way to here and back: the rest is what the request has waited.
        self.backend.send(Result(payload.rid, "exact", 1, 0, ms(0.01), tensors))

    def on_down(self, link: Link, closed: Closed) -> None:
        if link is self.backend:
            self.backend = None

    def on_refused(self, link: Link, closed: Closed) -> None:
        pass


class RunningFrontend:
    """A frontend with its stand-in, on a loop in a thread."""

    def __init__(
        self,
        make: Callable[[], FrontendOptions],
        registry: Registry,
        delay_s: float = 0.0,
    ) -> None:
        self.registry = registry
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.call(self._start(make(), delay_s))

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    async def _start(self, options: FrontendOptions, delay_s: float) -> None:
        self.stand_in = StandIn("here", delay_s)
        address = await self.stand_in.start()

        async def resolve() -> str:
            return address

        self.frontend = FrontendProcess(options, self.registry, resolve)
        await self.frontend.start()
        while self.stand_in.backend is None or 5 not in self.frontend.hub.backends:
            await asyncio.sleep(0.005)

    async def _stop(self) -> None:
        await self.frontend.stop()
        await self.stand_in.stop()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.frontend.server.grpc_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.frontend.server.http_port}"

    def close(self) -> None:
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
