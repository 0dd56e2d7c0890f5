"""Servers for clients, gRPC and HTTP, in front of one service."""

import asyncio
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvicorn
from starlette.routing import Route

from fermata.clients.wire.service import SERVICE, STREAM
from fermata.deployments.extensions import ExtensionError
from fermata.deployments.frontend.access.address_filter import AddressFilter
from fermata.deployments.frontend.access.callers import CallGate
from fermata.deployments.frontend.access.client_sockets import ClientSocket, ClientSockets
from fermata.deployments.frontend.access.connection_watch import (
    ConnectionWatch,
    WatchLimits,
    crowded,
)
from fermata.deployments.frontend.access.connections import ConnectionGate, HttpServer
from fermata.deployments.frontend.access.grpc_server import grpc_server
from fermata.deployments.frontend.access.native_server import NativeServer, ServedCalls
from fermata.deployments.frontend.access.tls import grpc_credentials, http_context
from fermata.deployments.frontend.edge.build import EDGE
from fermata.deployments.frontend.protocol.calls import HEALTH, GrpcCalls
from fermata.deployments.frontend.protocol.grpc_service import InferenceService
from fermata.deployments.frontend.protocol.listening import Listening
from fermata.deployments.frontend.protocol.rest import Rest
from fermata.deployments.specs.frontend import ServerOptions
from fermata.foundation.errors import ConfigError, ServingError
from fermata.foundation.logs import LOG, fields
from fermata.foundation.ports import (
    Endpoint,
    bind_error,
    grpc_endpoint,
    http_endpoint,
    listeners,
    refusal,
)
from fermata.foundation.units import ms

BACKLOG = 1024
PROMPT = (*HEALTH, STREAM)
"""Methods whose calls begin at once."""
ASKED = 0.1
"""Share of the time to drain in which clients may leave by themselves; then their streams end."""
ADMITTED = 0.5
"""Share of the time to drain in which requests are still admitted; the rest is for answers."""
LOOK_REST = 20
"""Looks at connections take at most one in so many moments of CPU time."""


LOOK_NS_MAX = ms(2)
"""A look that took less goes on in the loop. Beside a busy loop, a thread gets Python's lock late
after each system call, just when a flood should be seen soon."""

GRPC_LOG = logging.getLogger("grpc._cython.cygrpc")
CLIENTS_FAULTS = ("ExecuteBatchError raised in core", "Invalid encoding on")
"""How gRPC begins to log, with a stack, that a client has left early or sent an odd header."""


class FrontendServer:
    """Both servers of one process, on its loop."""

    def __init__(
        self, service: InferenceService, options: ServerOptions, extra: tuple[Route, ...] = ()
    ) -> None:
        self.service = service
        self.options = options
        self.extra = extra
        self.grpc_port = 0
        self.http_port = 0
        self.gate = ConnectionGate(options.connections)
        self.calls = CallGate(options.connections, options.calls_max, service.driver.clock)
        self.connections = ConnectionWatch(
            self.calls,
            service.driver.table.limits.payload_bytes_max,
            options.message_bytes_max,
            WatchLimits(),
        )
        self.rest = Rest(service, options.message_bytes_max)
        self.listening = Listening(options.deployment, options.reuse_port)
        self._http: HttpServer | None = None
        self._http_task: asyncio.Task[None] | None = None
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen; afterwards `grpc_port` and `http_port` are set."""
        options, listening = self.options, self.listening
        grpc_at = grpc_endpoint(options.host, options.grpc_port)
        http_at = http_endpoint(options.host, options.http_port)
        await listening.wait_for(grpc_at)
        if options.http_port >= 0:
            await listening.wait_for(http_at)
        GRPC_LOG.addFilter(is_ours_to_mend)
        calls = GrpcCalls(self.service, self.calls)
        # gRPC's servers have no types.
        self._grpc: Any = self._native_server(calls) or grpc_server(
            grpc_options(options),
            SERVICE,
            calls.methods,
            calls,
            busy="ModelInfer",
            line_up=calls.line_up,
            prompt=PROMPT,
        )
        self.grpc_port = self._bind_grpc(grpc_at)
        if options.http_port >= 0:
            self._start_http(http_at)
        await self._grpc.start()
        try:
            await listening.mark(replace(grpc_at, port=self.grpc_port))
            await listening.mark(replace(http_at, port=self.http_port))
        except ConfigError:
            await self.stop()
            raise
        self._watches = [
            asyncio.ensure_future(self.service.watch()),
            asyncio.ensure_future(self._watch_connections()),
        ]

    @property
    def native(self) -> bool:
        """Whether the native edge serves gRPC."""
        return isinstance(self._grpc, NativeServer)

    def _native_server(self, calls: GrpcCalls) -> NativeServer | None:
        """The native edge, where it is asked for and can be used; the log says why it is not."""
        if self.options.edge != "native":
            return None
        try:
            edge = EDGE.load()
        except ExtensionError as error:
            LOG.warning("gRPC's own server serves", extra=fields(native_edge=str(error)))
            return None
        LOG.info("the native edge serves")
        given = ServedCalls(SERVICE, calls.methods, calls, calls.line_up, calls.on_vain, PROMPT)
        return NativeServer(
            edge, self.options, given, self.service.driver.table.limits.payload_bytes_max
        )

    async def _watch_connections(self) -> None:
        """Hold connections to their limits, for as long as the server runs."""
        sockets = ClientSockets(self.grpc_port)
        # Over TLS a connection is counted by its gate only once hands were shaken.
        shaking = ClientSockets(self.http_port) if self.options.tls is not None else None
        limits, clock, spent_ns = self.options.connections, self.calls.clock, 0
        kept_out, loop = AddressFilter(), asyncio.get_running_loop()
        # A thread of its own: those that decode may be busy for long.
        with ThreadPoolExecutor(1, thread_name_prefix="sockets") as thread:
            while True:
                wait_ns = limits.look_soon_ns if self.connections.is_pressed else limits.look_ns
                with suppress(TimeoutError):
                    wait_s = max(wait_ns, LOOK_REST * spent_ns) / 1e9
                    await asyncio.wait_for(self.calls.alarm.wait(), wait_s)
                self.calls.alarm.clear()
                found, spent_ns = (
                    _timed(sockets)
                    if spent_ns <= LOOK_NS_MAX
                    else await loop.run_in_executor(thread, _timed, sockets)
                )
                for each in self.connections.judge(clock(), found):
                    each.cut()
                kept_out.keep_out(self.connections.penalties, self.listening.sockets)
                if shaking is not None:
                    found, more_ns = await loop.run_in_executor(thread, _timed, shaking)
                    spent_ns += more_ns
                    for each in crowded(found, limits):
                        self.gate.refused += 1
                        each.cut()

    def _bind_grpc(self, endpoint: Endpoint) -> int:
        tls = self.options.tls
        try:
            if tls is None:
                return int(self._grpc.add_insecure_port(str(endpoint)))
            return int(self._grpc.add_secure_port(str(endpoint), grpc_credentials(tls)))
        except RuntimeError as error:
            reason = bind_error(endpoint)
            if reason is not None:
                raise refusal(endpoint, reason, listeners(endpoint)) from None
            raise ConfigError(
                f"{endpoint} is not available ({error}): set another {endpoint.name}"
            ) from None

    def check(self) -> None:
        """Raise where clients cannot get in any more."""
        if self.listening.is_lost() or (self._http_task is not None and self._http_task.done()):
            raise ServingError(
                f"port {self.grpc_port} or {self.http_port} is not listened on any more"
            )

    def _start_http(self, endpoint: Endpoint) -> None:
        options, tls = self.options, self.options.tls
        listener = listen(endpoint, options.reuse_port)
        self.http_port = listener.getsockname()[1]
        app = self.rest.app(self.extra)
        # A log configuration of its own would close the handlers of Serve, whose controller would
        # take this replica for broken after a restart.
        config = uvicorn.Config(
            app,
            log_config=None,
            # Any client can cause warnings, as often as it likes.
            log_level="error",
            server_header=False,
            lifespan="off",
            ws="none",
            access_log=False,
            ssl_context_factory=None if tls is None else lambda *_: http_context(tls),
        )
        self._http = HttpServer(config, self.gate)
        self._http_task = asyncio.ensure_future(self._http.serve(sockets=[listener]))

    async def stop(self) -> None:
        """Send clients elsewhere, finish what is in flight, and close.

        gRPC tells clients first that their connections end: a stream that was ended before that
        would be begun anew right here. Those who heed it leave, and what others send is served.
        """
        drain_s = self.options.drain_ns / 1e9
        grpc_ends = asyncio.ensure_future(self._grpc.stop(drain_s))
        self.service.leave()
        loop = asyncio.get_running_loop()
        loop.call_later(ASKED * drain_s, self.service.end_streams)
        loop.call_later(ADMITTED * drain_s, self.service.drain)
        for watch in self._watches:
            watch.cancel()
        if self._http is not None and self._http_task is not None:
            self._http.should_exit = True
            # A connection that never ends its request would block the shutdown for ever.
            _, late = await asyncio.wait([self._http_task], timeout=drain_s)
            if late:
                self._http.force_exit = True
                await self._http_task
        await self.rest.json_process.close()
        await grpc_ends
        self.listening.close()


def is_ours_to_mend(record: logging.LogRecord) -> bool:
    """Whether a line of gRPC's log tells of more than any client can cause, and often."""
    return not str(record.msg).startswith(CLIENTS_FAULTS)


def _timed(sockets: ClientSockets) -> tuple[list[ClientSocket], int]:
    """A look, and its CPU time: on a crowded machine the next look must not come later for it."""
    began_ns = time.thread_time_ns()
    found = sockets.look()
    return found, time.thread_time_ns() - began_ns


def grpc_options(options: ServerOptions) -> list[tuple[str, int]]:
    """Channel arguments of the gRPC server."""
    limits = options.connections
    age_ms = options.connection_age_ns_max // 1_000_000
    return [
        ("grpc.max_receive_message_length", options.message_bytes_max),
        ("grpc.max_send_message_length", options.message_bytes_max),
        ("grpc.so_reuseport", int(options.reuse_port)),
        ("grpc.max_connection_age_ms", age_ms),
        # Streams of that age end by themselves; this is for calls that hang.
        ("grpc.max_connection_age_grace_ms", 60_000),
        # A connection to a client that vanished is closed.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Streaming clients may ping as often as this without being cut.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_allowed_incoming_connections", limits.total_max),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        # Answered calls are released a little later, and count meanwhile. At the limit gRPC resets
        # streams that its client was free to begin.
        ("grpc.http2.max_deallocating_streams", limits.calls_per_connection_max),
        # By default gRPC cancels calls at random once a thousand wait to be taken, without a
        # reason, and whoever sent them. Ours are taken, and refused by name.
        ("grpc.server.max_pending_requests", limits.calls_waiting_max),
        ("grpc.server.max_pending_requests_hard_limit", limits.calls_waiting_max),
        # Time for the handshakes of HTTP/2 and TLS.
        ("grpc.server_handshake_timeout_ms", limits.receive_ns // 1_000_000),
        ("grpc.max_connection_idle_ms", limits.idle_ns // 1_000_000),
    ]


def listen(endpoint: Endpoint, reuse_port: bool) -> socket.socket:
    """A listening TCP socket."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((endpoint.host, endpoint.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise refusal(endpoint, error, listeners(endpoint)) from None
    listener.setblocking(False)
    return listener
