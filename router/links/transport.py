"""The IO shell of links: TCP on asyncio, one frame a peer and loop tick."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from profiles.errors import ConfigError
from router.core.units import ms
from router.links.heart import Heart
from router.links.messages import Heartbeat, Hello, Message
from router.links.session import (
    FRAME_BYTES_MAX,
    LOOKS,
    SILENCE_NS,
    LinkError,
    Session,
    encode,
    encode_the_sayable,
)
from router.links.tls import LinkTls, Seal, SealError

LOG = logging.getLogger("fermata")
CLOSE_S = 1.0
"""For the last words on a link, to a peer that does not read."""
Me = Callable[[], Hello]
"""Asked at each new link, since the highest known epoch changes over time."""
Resolve = Callable[[], Awaitable[str]]
"""Asked at each attempt: a router that was restarted listens elsewhere."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What both ends of a link should agree on, roughly."""

    silence_ns: int = SILENCE_NS
    """A peer that said nothing for so long is dead."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    buffer_bytes_max: int = 256 << 20
    """What may wait for a peer that does not read; then it is cut."""
    connect_ns: int = ms(2000)
    """From the first attempt to the peer's hello."""
    backoff_ns_min: int = ms(20)
    backoff_ns_max: int = ms(1000)
    tls: LinkTls | None = None
    """None: plain TCP."""

    @property
    def beat_ns(self) -> int:
        return self.silence_ns // LOOKS


class LinkEvents(Protocol):
    """Whoever uses links; called on the loop, never from within `send`."""

    def on_up(self, link: "Link") -> None:
        """The peer has said hello (`link.peer`)."""

    def on_messages(self, link: "Link", messages: list[Message]) -> None:
        """Everything that arrived together."""

    def on_down(self, link: "Link", reason: str) -> None:
        """Once for each link that was up."""

    def on_refused(self, link: "Link", reason: str) -> None:
        """The link ended before it was up."""


class Wire(Protocol):
    """A way past the transport's queue, for any thread; whoever uses it holds the link's lock."""

    def push(self, data: bytes) -> int:
        """How many of these bytes are on their way now."""

    def close(self) -> None: ...


class SocketWire:
    """The socket itself, by a descriptor that stays ours whatever the transport does."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self.fd = os.dup(transport.get_extra_info("socket").fileno())

    def push(self, data: bytes) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # The transport will see the same error, or an end of file, and end the link.
            return len(data)

    def close(self) -> None:
        os.close(self.fd)


class Link(asyncio.Protocol):
    """One connection to one peer. `send` from the loop's thread only."""

    def __init__(
        self, me: Me, events: LinkEvents, heart: Heart, options: LinkOptions, taken: bool
    ) -> None:
        """`taken`: the peer has connected to us, and not we to it."""
        self.loop = asyncio.get_running_loop()
        self.events = events
        self.heart = heart
        self.options = options
        self.seal: Seal | None = None if options.tls is None else options.tls.seal(taken)
        """Used with the lock held alone."""
        self.session = Session(me(), heart.clock(), options.silence_ns, options.frame_bytes_max)
        self.lock = threading.Lock()
        """Held around every write: the heart's thread writes too."""
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
        self.ended: asyncio.Future[str] = self.loop.create_future()

    @property
    def peer(self) -> Hello:
        assert self.session.peer is not None, "the link is not up"
        return self.session.peer

    def now_leads(self, epoch: int) -> None:
        """The peer is a router that has waited until now."""
        self.session.peer = msgspec.structs.replace(self.peer, role="router", epoch=epoch)

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
        frames, unsayable = encode_the_sayable(messages, self.options.frame_bytes_max)
        for frame in frames:
            self._write(frame)
        for reason in unsayable:
            LOG.error("not sent: %s", reason)

    def _write(self, frame: bytes) -> None:
        with self.lock:
            if self.wire is None:
                return
            self.spoke = True
            waiting = self._put(self._sealed(frame))
        if waiting > self.options.buffer_bytes_max:
            self.close(f"cut: the peer does not read, {waiting} bytes wait for it", at_once=True)

    def _sealed(self, frame: bytes) -> bytes:
        """As it goes out; nothing, once the peer has ended its TLS: the connection ends soon."""
        if self.seal is None:
            return frame
        try:
            return self.seal.wrap(frame)
        except SealError as error:
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
        """Say that this process lives; called by the heart's thread."""
        with self.lock:
            if self.spoke or self.backlog or self.wire is None:
                self.spoke = False
                return
            # A socket that takes nothing at all is full of what will tell the peer as much; what
            # it took in part has to go on before anything else can.
            frame = self.tail or encode([Heartbeat(self.heart.clock())])[0]
            if self.seal is not None and not self.tail:
                if not self.seal.made:
                    return
                # What is sealed has its place among all that is: from here on it must go out.
                self.tail = frame = self._sealed(frame)
            sent = self.wire.push(frame)
            if sent > 0 or self.tail:
                self.tail = frame[sent:]

    def close(self, reason: str, at_once: bool = False) -> None:
        """End the link; the peer is told why, unless it would not listen."""
        if self.session.closed is not None:
            return
        self.flush()
        if at_once:
            self.session.close(reason)
            self.transport.abort()
        else:
            self._write(self.session.farewell(reason))
            self._leave()

    def _leave(self) -> None:
        """Close the connection once all has gone out that was said, or its time is up."""
        self.transport.close()
        self.watch.cancel()
        self.watch = self.loop.call_later(CLOSE_S, self.transport.abort)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # Every byte that waits counts as backlog, so that none is overtaken.
        self.transport.set_write_buffer_limits(high=0)
        # A simulated network brings a wire of its own.
        self.wire = transport.get_extra_info("wire") or SocketWire(transport)
        self._write(self.session.greeting())
        self.heart.join(self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        session = self.session
        if self.seal is not None:
            data = self._unseal(self.seal, data)
        was_up = session.peer is not None
        messages = session.receive(self.heart.clock(), data)
        if not was_up and session.peer is not None:
            self.events.on_up(self)
        if messages:
            self.events.on_messages(self, messages)
        if session.closed is not None and not self.transport.is_closing():
            self._end()

    def _unseal(self, seal: Seal, data: bytes) -> bytes:
        """What the peer has said; a session whose peer may not speak ends here."""
        with self.lock:
            try:
                heard, reply = seal.unwrap(data)
            except SealError as error:
                self._put(error.last)
                self.session.close(f"refused: TLS: {error}")
                self._leave()
                return b""
            self._put(reply)
        return heard

    def resume_writing(self) -> None:
        self.backlog = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.heart.leave(self)
        with self.lock:
            if self.wire is not None:
                self.wire.close()
            self.wire = None
        self.session.close("lost: " + (str(exc) if exc else "end of file"))
        reason = self.session.closed or ""
        self.watch.cancel()
        self.ended.set_result(reason)
        if self.session.peer is not None:
            self.events.on_down(self, reason)
        else:
            self.events.on_refused(self, reason)

    def _watch(self) -> None:
        if self.session.check(self.heart.clock()):
            self.watch = self.loop.call_later(self.options.beat_ns / 1e9, self._watch)
        elif not self.transport.is_closing():
            self._end()

    def _end(self) -> None:
        """The session has ended by itself: tell the peer, unless it was the one to say so."""
        reason = self.session.closed or ""
        if reason.startswith("goodbye"):
            self._leave()
        elif reason.startswith("silent"):
            self.transport.abort()
        else:
            self._write(self.session.farewell(reason))
            self._leave()


class LinkServer:
    """Takes links."""

    def __init__(self, me: Me, events: LinkEvents, heart: Heart, options: LinkOptions) -> None:
        self.me = me
        self.events = events
        self.heart = heart
        self.options = options
        self.links: dict[Link, None] = {}

    async def start(self, host: str, port: int = 0) -> int:
        """Listen; returns the port, which the system chooses where 0 is given."""
        if self.options.tls is not None:
            # What is wrong with the files is said now, and not to the first peer.
            self.options.tls.seal(server_side=True)
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self._take, host, port)
        return cast(int, self.server.sockets[0].getsockname()[1])

    def _take(self) -> Link:
        link = Link(self.me, self.events, self.heart, self.options, taken=True)
        self.links[link] = None
        link.ended.add_done_callback(lambda _: self.links.pop(link))
        return link

    async def stop(self, reason: str) -> None:
        """Listen no more, and say goodbye to everyone."""
        self.server.close()
        links = tuple(self.links)
        for link in links:
            link.close(reason)
        await asyncio.gather(*(link.ended for link in links))


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `host:port`; IPv6 hosts stand in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise LinkError(f"{address!r} is no address; write host:port")
    return host.strip("[]"), int(port)


async def connect(
    address: str, me: Me, events: LinkEvents, heart: Heart, options: LinkOptions
) -> Link:
    """A link that is up, or a LinkError that says why not."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    greeted: asyncio.Future[str] = loop.create_future()
    gate = _Gate(events, greeted)
    try:
        async with asyncio.timeout(options.connect_ns / 1e9):
            _, link = await loop.create_connection(
                lambda: Link(me, gate, heart, options, taken=False), host, port
            )
            refusal = await greeted
    except (OSError, TimeoutError, ConfigError) as error:
        # Files of TLS may be away for a moment, while somebody replaces them.
        raise LinkError(f"{address} cannot be reached: {error or 'no answer'}") from None
    if refusal:
        raise LinkError(f"{address} did not take the link: {refusal}")
    return link


class _Gate:
    """Hands a link's events on, and tells `connect` how its greeting went."""

    def __init__(self, events: LinkEvents, greeted: asyncio.Future[str]) -> None:
        self.events = events
        self.greeted = greeted

    def on_up(self, link: Link) -> None:
        if self.greeted.done():
            # Whoever asked has given up: it shall not hear of this link at all.
            link.close("too late")
            return
        link.events = self.events
        self.greeted.set_result("")
        self.events.on_up(link)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        pass

    def on_down(self, link: Link, reason: str) -> None:
        pass

    def on_refused(self, link: Link, reason: str) -> None:
        if not self.greeted.done():
            self.greeted.set_result(reason)
        self.events.on_refused(link, reason)


class Reconnecting:
    """Keeps a link to one peer, wherever it may move."""

    def __init__(
        self, resolve: Resolve, me: Me, events: LinkEvents, heart: Heart, options: LinkOptions
    ) -> None:
        self.resolve = resolve
        self.me = me
        self.events = events
        self.heart = heart
        self.options = options
        self.link: Link | None = None
        self.trouble = ""
        """Why the last attempt failed; empty while the link is up."""

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, reason: str) -> None:
        self.task.cancel()
        if self.link is not None:
            self.link.close(reason)
            await self.link.ended

    async def _run(self) -> None:
        wait_ns = self.options.backoff_ns_min
        while True:
            try:
                address = await self.resolve()
                link = await connect(address, self.me, self.events, self.heart, self.options)
            # Whatever it was: a process that stops trying never meets a router again.
            except Exception as error:
                if not isinstance(error, LinkError):
                    LOG.exception("an attempt to link failed")
                self.trouble = str(error) or type(error).__name__
                await asyncio.sleep(wait_ns / 1e9)
                wait_ns = min(2 * wait_ns, self.options.backoff_ns_max)
                continue
            self.link, self.trouble = link, ""
            wait_ns = self.options.backoff_ns_min
            self.trouble = await asyncio.shield(link.ended)
            self.link = None
            await asyncio.sleep(wait_ns / 1e9)
