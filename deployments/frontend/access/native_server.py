"""The native edge behind the seam of gRPC's own server: cleartext connections, calls, their ends.

`fermata.deployments.frontend.edge` keeps HTTP/2 in C, on one descriptor of this loop. It hands over
what has come since the last look, all at once, and each message as one object that it came into.
Calls go through the same lines, gates and handlers as those of gRPC's own server.
"""

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import grpc

from fermata.deployments.frontend.access.grpc_server import LineUp
from fermata.deployments.frontend.access.native_call import NativeCall
from fermata.deployments.specs.frontend import ServerOptions
from fermata.foundation.logs import LOG
from fermata.foundation.units import ms, seconds

LOOK_S = 0.25
"""Interval between looks at the times of connections."""
PING_NS, PONG_NS = seconds(20), seconds(10)
"""A connection that is silent for so long is asked, and cut without an answer."""
GRACE_NS = seconds(60)
"""For calls on a connection that is too old."""
CLOSE_S = 0.5
"""Time for the last bytes to leave."""
BACKLOG = 1024


class ServedCalls(NamedTuple):
    """Handlers, and how calls get to them."""

    service: str
    methods: Mapping[str, grpc.RpcMethodHandler]
    others: grpc.GenericRpcHandler
    """Refuses calls of methods that there are not."""
    line_up: LineUp
    """Begins a call of a peer, now or later."""
    on_vain: Callable[[str], None]
    """Hears of a peer whose call has ended before it could begin."""
    prompt: Collection[str] = ()
    """Methods whose calls begin at once."""


class _Details(NamedTuple):
    method: str
    invocation_metadata: Any


class NativeServer:
    """Has the methods of gRPC's asyncio server that a frontend uses."""

    def __init__(
        self, edge: ModuleType, options: ServerOptions, calls: ServedCalls, held_bytes_max: int
    ) -> None:
        """While messages of more than `held_bytes_max` wait for their rest or for a reader, no more
        comes from connections that hold some."""
        self.options = options
        self.calls = calls
        self.held_bytes_max = held_bytes_max
        self.handlers = {f"/{calls.service}/{name}": each for name, each in calls.methods.items()}
        self.prompt = {f"/{calls.service}/{name}" for name in calls.prompt}
        self.under_way: set[asyncio.Task[None]] = set()
        self._edge = edge
        self._loop = asyncio.get_running_loop()
        self._server: Any = None
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_touched = False
        self._on_event: dict[int, Callable[[Any, Any], None]] = {
            edge.BEGUN: self._on_begun,
            edge.MESSAGE: self._on_message,
            edge.COMPRESSED: self._on_compressed,
            edge.TOO_LARGE: self._on_too_large,
            edge.ENDED: self._on_ended,
            edge.CLOSED: self._on_closed,
            edge.DRAINED: self._on_drained,
        }

    def add_insecure_port(self, address: str) -> int:
        """Listen on `host:port`; raises RuntimeError as gRPC does."""
        host, _, port = address.rpartition(":")
        try:
            self._listener = _listen(host.strip("[]"), int(port), self.options.reuse_port)
        except OSError as error:
            raise RuntimeError(str(error)) from None
        return int(self._listener.getsockname()[1])

    async def start(self) -> None:
        assert self._listener is not None
        options, limits = self.options, self.options.connections
        self._server = self._edge.Server(
            listener=self._listener.fileno(),
            message_max=options.message_bytes_max,
            calls_max=limits.calls_per_connection_max,
            count_max=limits.total_max,
            handshake_ms=limits.receive_ns // ms(1),
            held_max=self.held_bytes_max,
            idle_ms=limits.idle_ns // ms(1),
            age_ms=options.connection_age_ns_max // ms(1),
            grace_ms=GRACE_NS // ms(1),
            ping_ms=PING_NS // ms(1),
            pong_ms=PONG_NS // ms(1),
        )
        self._loop.add_reader(self._server.fileno(), self._poll)
        self._look()

    async def stop(self, grace_s: float | None) -> None:
        """Ask clients to leave, wait for calls under way, and close."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        if self._server is None:
            listener.close()
            return
        self._take(self._server.leave(self._now_ms()))
        listener.close()
        end_s = self._loop.time() + (grace_s or 0.0)
        while self.under_way and (left_s := end_s - self._loop.time()) > 0:
            # Connections that are open may bring further calls.
            await asyncio.wait(set(self.under_way), timeout=left_s)
        for task in self.under_way:
            task.cancel()
        if self.under_way:
            await asyncio.wait(set(self.under_way))
        close_at_s = self._loop.time() + CLOSE_S
        while self._server.connections and self._loop.time() < min(close_at_s, end_s + CLOSE_S):
            self._flush()
            await asyncio.sleep(0.01)
        assert self._timer is not None
        self._timer.cancel()
        self._loop.remove_reader(self._server.fileno())
        self._take(self._server.close())

    # What has come

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        self._take(self._server.look(self._now_ms()))

    def _poll(self) -> None:
        self._take(self._server.poll(self._now_ms()))
        self._touch()

    def _touch(self) -> None:
        """Write once all that is ready now has run."""
        if not self._is_touched:
            self._is_touched = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_touched = False
        self._take(self._server.flush())

    def _take(self, events: list[tuple[int, Any, Any]]) -> None:
        on_event = self._on_event
        for kind, call, data in events:
            on_event[kind](call, data)

    def _on_begun(self, call: Any, _: None) -> None:
        # One whose client has left already is counted when its end comes.
        if call.closed:
            return
        if not call.valid:
            call.refuse("415")
            return
        context = call.context = NativeCall(call, self.options.message_bytes_max, self._touch)
        left_s = context.time_remaining()
        if left_s is not None:
            context.expiry = self._loop.call_later(left_s, context.expire)
        if call.overflow:
            context.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "the call has too many headers")
        elif call.path in self.prompt or call.path not in self.handlers:
            self._begin(context)
        else:
            self.calls.line_up(call.peer, partial(self._begin, context))

    def _begin(self, context: NativeCall) -> None:
        """Answer a call in a task of its own."""
        call = context.call
        if context.is_over:
            self.calls.on_vain(call.peer)
            return
        handler = self.handlers.get(call.path)
        if handler is None:
            details = _Details(call.path or "", context.invocation_metadata())
            handler = self.calls.others.service(details)
        if handler is None:
            context.end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        task = context.task = self._loop.create_task(_answer(context, handler))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    def _on_message(self, call: Any, message: bytes) -> None:
        if call.context is not None:
            call.context.on_message(message, False)

    def _on_compressed(self, call: Any, message: bytes) -> None:
        if call.context is not None:
            call.context.on_message(message, True)

    def _on_too_large(self, call: Any, size: int) -> None:
        if call.context is not None:
            call.context.on_too_large(size)

    def _on_ended(self, call: Any, _: None) -> None:
        if call.context is not None:
            call.context.on_half_close()

    def _on_drained(self, call: Any, _: None) -> None:
        if call.context is not None:
            call.context.on_drained()

    def _on_closed(self, call: Any, _: int) -> None:
        context, call.context = call.context, None
        if context is None:
            self.calls.on_vain(call.peer)
        else:
            context.on_closed()


async def _answer(context: NativeCall, handler: Any) -> None:
    try:
        await context.answer(handler)
    except grpc.aio.AbortError:
        pass
    except asyncio.CancelledError:
        context.drop()
    # A handler may meet whatever a client sends.
    except Exception as error:
        LOG.exception("a call has failed")
        details = f"Unexpected {type(error)}: {error}"[:500]
        context.end(grpc.StatusCode.UNKNOWN, details)


def _listen(host: str, port: int, reuse_port: bool) -> socket.socket:
    """A listening TCP socket."""
    given = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = given[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
