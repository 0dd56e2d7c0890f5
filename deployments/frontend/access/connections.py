"""How many connections there may be, and how long one may take to say what it wants."""

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
    """Counts who is inside. Pure."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.total = 0
        self.addresses: Counter[str] = Counter()
        self.refused = 0
        """Connections that found no room."""
        self.slow = 0
        """Connections cut because their request took too long."""

    def enter(self, address: str) -> tuple[int, str] | None:
        """None where one more may come in; else the HTTP status and what to say."""
        limits = self.limits
        if self.total >= limits.total_max:
            self.refused += 1
            return 503, f"{limits.total_max} connections are open here: come again later"
        if self.addresses[address] >= limits.per_address_max:
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
"""By status: what HTTP calls it, and the reason as other refusals have it."""


def plain_refusal(status: int, said: str) -> bytes:
    """A whole HTTP answer, for who has not got as far as to ask anything."""
    phrase, reason = PHRASES[status]
    body = json.dumps({"error": said, "reason": reason})
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return (head + body).encode()


class HttpConnection(HttpToolsProtocol):
    """One client's connection. uvicorn itself waits for ever for the rest of a request."""

    def __init__(self, doors: ConnectionGate, **given: Any) -> None:
        super().__init__(**given)
        self.doors = doors
        self.receive_s = doors.limits.receive_ns / 1e9
        self.inside = ""
        """The address it is counted under."""
        self.head_bytes = 0
        """Since the last end of headers, and the last byte of a body."""
        self.due: asyncio.TimerHandle | None = None
        """When the request that is being read must have come."""
        self.unread: asyncio.TimerHandle | None = None
        """When the client must have taken what waits for it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else "a local socket"
        refusal = self.doors.enter(address)
        if refusal is not None:
            self.transport = transport
            self._refuse(*refusal)
            return
        self.inside = address
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        self.resume_writing()
        if self.inside:
            self.doors.leave(self.inside)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.due is None:
            # Whatever it is, even if it begins no request.
            self._expect()
        self.head_bytes += len(data)
        super().data_received(data)
        most = self.doors.limits.head_bytes_max
        if self.head_bytes > most and not self.transport.is_closing():
            self._refuse(431, f"path and headers are above {most} bytes: send less")

    def on_message_begin(self) -> None:
        self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._heard()
        self.head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._see_off()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._see_off()

    def pause_writing(self) -> None:
        self.unread = self.loop.call_later(self.receive_s, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None
        if self.inside:
            super().resume_writing()

    def _expect(self) -> None:
        self._heard()
        self.due = self.loop.call_later(self.receive_s, self._give_up)

    def _heard(self) -> None:
        if self.due is not None:
            self.due.cancel()
            self.due = None

    def _give_up(self) -> None:
        self.due = None
        cycle = self.cycle
        answering = cycle is not None and not cycle.more_body and not cycle.response_complete
        if answering or self.pipeline:
            # It waits for us: an answer to what it asked before is on its way.
            self._expect()
            return
        self.doors.slow += 1
        self._refuse(408, f"the request has not come within {self.receive_s:g} s")

    def _refuse(self, status: int, said: str) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            # In the middle of another answer nobody would understand it.
            self.transport.abort()
            return
        self.transport.write(plain_refusal(status, said))
        self.transport.close()
        self._see_off()

    def _see_off(self) -> None:
        """A client that does not read its last answer would keep the connection for ever."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.receive_s, self.transport.abort)


class HttpServer(uvicorn.Server):
    """uvicorn on sockets of ours, within the limits of `doors`."""

    def __init__(self, config: uvicorn.Config, doors: ConnectionGate) -> None:
        super().__init__(config)
        self.doors = doors

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does for sockets that it is given, with connections of ours."""
        loop = asyncio.get_running_loop()
        config, doors = self.config, self.doors
        handshake_s = doors.limits.receive_ns / 1e9 if config.ssl is not None else None
        given = {"config": config, "server_state": self.server_state, "app_state": {}}
        self.servers = [
            await loop.create_server(
                lambda: HttpConnection(doors, **given),
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
        # Ctrl-C belongs to whoever runs this process.
        yield
