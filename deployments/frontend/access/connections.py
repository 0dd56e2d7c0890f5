"""Limits on clients' connections: their number, and the time that a request may take to arrive."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fermata.deployments.specs.frontend import ConnectionLimits
from fermata.deployments.specs.outcomes import RefusalReason


class ConnectionGate:
    """Counts open connections against the limits. Pure."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.total = 0
        self.addresses: Counter[str] = Counter()
        self.refused = 0
        """Connections refused at a limit."""
        self.slow = 0
        """Connections cut because their request took too long to arrive."""

    def enter(self, address: str) -> tuple[int, str] | None:
        """Admit a connection: None, or the HTTP status and message of its refusal."""
        limits = self.limits
        if self.total >= limits.total_max:
            self.refused += 1
            return 503, f"{limits.total_max} connections are open here: try again later"
        if self.addresses[address] >= limits.per_address_max and address not in limits.proxies:
            self.refused += 1
            return 429, f"{address} has {limits.per_address_max} connections open here: close one"
        self.total += 1
        self.addresses[address] += 1
        return None

    def leave(self, address: str) -> None:
        self.total -= 1
        self.addresses[address] -= 1
        if not self.addresses[address]:
            del self.addresses[address]


PHRASES = {
    408: ("Request Timeout", "slow"),
    429: ("Too Many Requests", RefusalReason.TOO_MANY),
    431: ("Request Header Fields Too Large", RefusalReason.BAD_INPUT),
    503: ("Service Unavailable", RefusalReason.TOO_MANY),
}
"""HTTP's phrase and the refusal's reason, by status."""


def plain_refusal(status: int, message: str) -> bytes:
    """A whole HTTP response, for a client whose request was not read."""
    phrase, reason = PHRASES[status]
    body = json.dumps({"error": message, "reason": reason})
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return (head + body).encode()


class HttpConnection(HttpToolsProtocol):
    """One client's connection, with time limits that uvicorn itself lacks."""

    def __init__(self, gate: ConnectionGate, **given: Any) -> None:
        super().__init__(**given)
        self.gate = gate
        self.receive_s = gate.limits.receive_ns / 1e9
        self.counted = ""
        """The address that the connection counts for; empty: it was refused."""
        self.head_bytes = 0
        """Bytes since the last end of headers, or the last byte of a body."""
        self.due: asyncio.TimerHandle | None = None
        """Timer by which the request being read must have arrived."""
        self.unread: asyncio.TimerHandle | None = None
        """Timer by which the client must have read its response."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else "a local socket"
        refusal = self.gate.enter(address)
        if refusal is not None:
            self.transport = transport
            self._refuse(*refusal)
            return
        self.counted = address
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        if self.counted:
            self.gate.leave(self.counted)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.due is None:
            # Any bytes count, even those that begin no request.
            self._start_timer()
        self.head_bytes += len(data)
        super().data_received(data)
        most = self.gate.limits.head_bytes_max
        if self.head_bytes > most and not self.transport.is_closing():
            self._refuse(431, f"path and headers are above {most} bytes: send less")

    def on_message_begin(self) -> None:
        self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self.head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._limit_close()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._limit_close()

    def pause_writing(self) -> None:
        self.unread = self.loop.call_later(self.receive_s, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None
        if self.counted:
            super().resume_writing()

    def _start_timer(self) -> None:
        self._stop_timer()
        self.due = self.loop.call_later(self.receive_s, self._give_up)

    def _stop_timer(self) -> None:
        if self.due is not None:
            self.due.cancel()
            self.due = None

    def _give_up(self) -> None:
        self.due = None
        cycle = self.cycle
        answering = cycle is not None and not cycle.more_body and not cycle.response_complete
        if answering or self.pipeline:
            # The client waits for the response to an earlier request.
            self._start_timer()
            return
        self.gate.slow += 1
        self._refuse(408, f"the request did not arrive within {self.receive_s:g} s")

    def _refuse(self, status: int, message: str) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            # In the middle of another response the client could not read it.
            self.transport.abort()
            return
        self.transport.write(plain_refusal(status, message))
        self.transport.close()
        self._limit_close()

    def _limit_close(self) -> None:
        """Cut a client that does not read its last response, which would stay for ever."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.receive_s, self.transport.abort)


class HttpServer(uvicorn.Server):
    """uvicorn on given sockets, within the limits of `gate`."""

    def __init__(self, config: uvicorn.Config, gate: ConnectionGate) -> None:
        super().__init__(config)
        self.gate = gate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the sockets as uvicorn does, with connections of our own class."""
        loop = asyncio.get_running_loop()
        config, gate = self.config, self.gate
        handshake_s = gate.limits.receive_ns / 1e9 if config.ssl is not None else None
        given = {"config": config, "server_state": self.server_state, "app_state": {}}
        self.servers = [
            await loop.create_server(
                lambda: HttpConnection(gate, **given),
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=handshake_s,
            )
            for each in sockets or ()
        ]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # Ctrl-C is handled outside.
        yield
