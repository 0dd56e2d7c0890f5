"""The IO shell of links: TCP on asyncio, one frame a peer and loop tick."""

import asyncio
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import msgspec

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.links.address import join_address
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.handshake import NONCE_BYTES, Acceptor, Handshake
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.limits import SessionLimits
from fermata.router.links.lobby import Lobby
from fermata.router.links.messages import PROTOCOLS, Heartbeat, Hello, Message
from fermata.router.links.session import Session, encode, encode_valid
from fermata.router.links.tls import LinkTls, TlsChannel, TlsChannelError
from fermata.router.links.wire import SocketWire, Wire

LOG = logging.getLogger("fermata")
Me = Callable[[], Hello]
"""Asked at each new link, since the highest known term changes over time."""
Resolve = Callable[[], Awaitable[str]]
"""Asked at each attempt: a router that was restarted listens elsewhere."""


@dataclass(frozen=True, slots=True)
class LinkOptions(SessionLimits):
    """Options that both ends of a link should agree on, roughly."""

    buffer_bytes_max: int = 256 << 20
    """Bytes that may wait for a peer that does not read; then it is cut."""
    connect_ns: int = ms(2000)
    """From the first attempt to the peer's hello."""
    backoff_ns_min: int = ms(20)
    backoff_ns_max: int = ms(1000)
    tls: LinkTls | None = None
    """None: plain TCP."""
    speaks: tuple[int, ...] = PROTOCOLS
    """Versions of the protocol, the newest first."""
    secret: bytes = field(default=b"", repr=False)
    """Secret of the deployment: no proof of it, no link. Never logged or sent."""
    unproven_each_max: int = 128
    """Connections of one address without a proof; the next limit is for all addresses."""
    unproven_max: int = 512
    close_ns: int = ms(1000)
    """Time for the last messages to a peer that does not read."""


class LinkEvents(Protocol):
    """The user of links; called on the loop, never from within `send`."""

    def on_up(self, link: "Link") -> None:
        """The peer has proven itself (`link.peer`)."""

    def on_messages(self, link: "Link", messages: list[Message]) -> None:
        """Everything that arrived together."""

    def on_down(self, link: "Link", closed: Closed) -> None:
        """Once for each link that was up."""

    def on_refused(self, link: "Link", closed: Closed) -> None:
        """The link ended before it was up."""


class Link(asyncio.Protocol):
    """One connection to one peer. `send` from the loop's thread only."""

    def __init__(
        self,
        handshake: Handshake,
        events: LinkEvents,
        heartbeat: HeartbeatThread,
        options: LinkOptions,
        lobby: Lobby | None = None,
    ) -> None:
        """`lobby` is where a peer waits that has connected to this process."""
        self.loop = asyncio.get_running_loop()
        self.events = events
        self.heartbeat = heartbeat
        self.options = options
        self.lobby = lobby
        self.seal: TlsChannel | None = None
        """Used with the lock held alone; made when it is first needed, where there is TLS."""
        if options.tls is not None and not handshake.accepts:
            self.seal = options.tls.seal(server_side=False)
        self.session = Session(handshake, heartbeat.clock(), options)
        self.lock = threading.Lock()
        """Held around every write: the heartbeat thread writes too."""
        self.outbox: list[Message] = []
        self.wire: Wire | None = None
        """None before the connection is made and once it is lost."""
        self.backlog = False
        """Bytes wait in the transport; until they have gone, all others queue up behind them."""
        self.spoke = False
        """Something went out since the last heartbeat."""
        self.tail = b""
        """Rest of a heartbeat that the socket took only in part."""
        self.watch: asyncio.TimerHandle
        """Looks for silence while the link lives, and for an end of it afterwards."""
        self.ended: asyncio.Future[Closed] = self.loop.create_future()

    @property
    def peer(self) -> Hello:
        assert self.session.peer is not None, "the link is not up"
        return self.session.peer

    def now_leads(self, term: int) -> None:
        """The peer is a router that has waited until now."""
        self.session.peer = msgspec.structs.replace(self.peer, role="router", term=term)

    @property
    def open(self) -> bool:
        return self.session.closed is None

    # Out

    def send(self, message: Message) -> None:
        """Say this to the peer, in one frame with all else of this loop tick."""
        if not self.outbox:
            self.loop.call_soon(self.flush)
        self.outbox.append(message)

    def send_all(self, messages: Sequence[Message]) -> None:
        if messages and not self.outbox:
            self.loop.call_soon(self.flush)
        self.outbox.extend(messages)

    def flush(self) -> None:
        """Send what has been said so far, without waiting for the end of the tick."""
        messages = self.outbox
        if not messages:
            return
        self.outbox = []
        if self.session.closed is not None:
            return
        frames, invalid = encode_valid(messages, self.options.frame_bytes_max)
        for frame in frames:
            self._write(frame)
        for reason in invalid:
            LOG.error("not sent: %s", reason)

    def _write(self, frame: bytes) -> None:
        with self.lock:
            if self.wire is None:
                return
            self.spoke = True
            waiting = self._put(self._sealed(frame))
        if waiting > self.options.buffer_bytes_max:
            detail = f"the peer does not read, {waiting} bytes wait for it"
            self.close(CloseCode.CONGESTED, detail, at_once=True)

    def _sealed(self, frame: bytes) -> bytes:
        """As it goes out; nothing, once the peer has ended its TLS: the connection ends soon."""
        if self.seal is None:
            # A peer that has not begun its TLS hears nothing.
            return frame if self.options.tls is None else b""
        try:
            return self.seal.wrap(frame)
        except TlsChannelError as error:
            return error.last

    def _put(self, data: bytes) -> int:
        """Send these bytes behind all others; how many now wait. The lock is held."""
        if self.tail:
            data, self.tail = self.tail + data, b""
        if self.wire is None or not data:
            return 0
        if not self.backlog:
            sent = self.wire.push(data)
            if sent == len(data):
                return 0
            data = data[sent:]
        self.transport.write(data)
        waiting = self.transport.get_write_buffer_size()
        self.backlog = waiting > 0
        return waiting

    def beat(self) -> None:
        """Say that this process lives; called by the heartbeat thread."""
        with self.lock:
            if self.spoke or self.backlog or self.wire is None:
                self.spoke = False
                return
            # A socket that takes nothing at all is full of what will tell the peer as much; what
            # it took in part has to go on before anything else can.
            frame = self.tail or encode([Heartbeat(self.heartbeat.clock())])[0]
            if self.seal is not None and not self.tail:
                if not self.seal.made:
                    return
                # An encrypted record has its place in the sequence: from here on it must go out.
                self.tail = frame = self._sealed(frame)
            sent = self.wire.push(frame)
            if sent > 0 or self.tail:
                self.tail = frame[sent:]

    def close(self, code: CloseCode, detail: str, at_once: bool = False, term: int = 0) -> None:
        """End the link; the peer is told why, unless it would not listen."""
        if self.session.closed is not None:
            return
        self.flush()
        if at_once:
            self.session.close(code, detail)
            self.transport.abort()
        else:
            self._write(self.session.farewell(code, detail, term))
            self._leave()

    def turn_out(self) -> None:
        """Make room for others: the peer has not proven itself."""
        self.close(CloseCode.CROWDED, "too many peers have not proven themselves", at_once=True)

    def _leave(self) -> None:
        """Close the connection once all has gone out that was said, or its time is up."""
        self.transport.close()
        self.watch.cancel()
        self.watch = self.loop.call_later(self.options.close_ns / 1e9, self.transport.abort)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # Every byte that waits counts as backlog, so that none is overtaken.
        self.transport.set_write_buffer_limits(high=0)
        # A simulated network brings a wire of its own.
        self.wire = transport.get_extra_info("wire") or SocketWire(transport)
        greeting = self.session.greeting()
        if greeting:
            self._write(greeting)
        self._watch()
        if self.lobby is not None:
            found = transport.get_extra_info("peername")
            self.lobby.enter(self, found[0] if isinstance(found, tuple) else "")

    def data_received(self, data: bytes) -> None:
        session = self.session
        if self.options.tls is not None:
            data = self._unseal(self.options.tls, data)
        was_up = session.peer is not None
        messages = session.receive(self.heartbeat.clock(), data)
        if not was_up:
            self._shake()
        if messages:
            self.events.on_messages(self, messages)
        if session.closed is not None and not self.transport.is_closing():
            self._end()

    def _shake(self) -> None:
        """Go on with the handshake."""
        session = self.session
        reply = session.take_reply()
        if reply and session.closed is None:
            self._write(reply)
            # From its proof on the peer expects to hear of this end, also while its loop is busy.
            if session.peer is not None or not session.handshake.accepts:
                self.heartbeat.join(self)
        if session.peer is not None:
            if self.lobby is not None:
                self.lobby.leave(self, proven=True)
            self.events.on_up(self)

    def _unseal(self, tls: LinkTls, data: bytes) -> bytes:
        """Messages of the peer; a session whose peer may not speak ends here."""
        with self.lock:
            try:
                if self.seal is None:
                    self.seal = tls.seal(server_side=True)
                heard, reply = self.seal.unwrap(data)
            except (TlsChannelError, ConfigError) as error:
                if isinstance(error, TlsChannelError):
                    self._put(error.last)
                self.session.close(CloseCode.REFUSED, f"TLS: {error}")
                self._leave()
                return b""
            self._put(reply)
        if self.session.peer is None:
            self.session.handshake.roles = self.seal.roles
        return heard

    def resume_writing(self) -> None:
        self.backlog = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.heartbeat.leave(self)
        with self.lock:
            if self.wire is not None:
                self.wire.close()
            self.wire = None
        self.session.close(CloseCode.LOST, str(exc) if exc else "end of file")
        closed = self.session.closed
        assert closed is not None
        self.watch.cancel()
        self.ended.set_result(closed)
        if self.session.peer is not None:
            self.events.on_down(self, closed)
        else:
            if self.lobby is not None:
                self.lobby.leave(self, proven=False)
            self.events.on_refused(self, closed)

    def _watch(self) -> None:
        if self.session.check(self.heartbeat.clock()):
            self.watch = self.loop.call_later(self.options.beat_ns / 1e9, self._watch)
        elif not self.transport.is_closing():
            self._end()

    def _end(self) -> None:
        """The session has ended by itself: tell the peer, unless it was the one to say so."""
        closed = self.session.closed
        assert closed is not None
        if closed.by_peer:
            self._leave()
        elif closed.code is CloseCode.SILENT:
            self.transport.abort()
        else:
            self._write(self.session.farewell(closed.code, closed.detail, closed.term))
            self._leave()


class LinkServer:
    """Takes links."""

    def __init__(
        self, me: Me, events: LinkEvents, heartbeat: HeartbeatThread, options: LinkOptions
    ) -> None:
        self.me = me
        self.events = events
        self.heartbeat = heartbeat
        self.options = options
        self.links: dict[Link, None] = {}
        self.lobby = Lobby(options.unproven_each_max, options.unproven_max)
        self.address = ""
        """host:port, for peers to dial: they prove that this is where they want to be."""

    async def start(self, host: str, port: int = 0) -> int:
        """Listen; returns the port, which the system chooses where 0 is given."""
        if self.options.tls is not None:
            # Faults in the files are reported now, and not to the first peer.
            self.options.tls.seal(server_side=True)
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self._take, host, port)
        found = cast(int, self.server.sockets[0].getsockname()[1])
        self.address = join_address(host, found)
        return found

    def _take(self) -> Link:
        secret, nonce = self.options.secret, secrets.token_bytes(NONCE_BYTES)
        handshake = Acceptor(self.me(), secret, nonce, self.address, self.options.speaks)
        link = Link(handshake, self.events, self.heartbeat, self.options, self.lobby)
        self.links[link] = None
        link.ended.add_done_callback(lambda _: self.links.pop(link))
        return link

    async def stop(self, reason: str) -> None:
        """Listen no more, and close every link."""
        self.server.close()
        links = tuple(self.links)
        for link in links:
            link.close(CloseCode.SHUTDOWN, reason)
        await asyncio.gather(*(link.ended for link in links))
