"""Links to peers at known addresses: one attempt, or as many as it takes."""

import asyncio
import logging
import secrets
from contextlib import suppress

import msgspec

from fermata.foundation.errors import ConfigError
from fermata.router.links.address import split_address
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.handshake import NONCE_BYTES, Connector
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import Message
from fermata.router.links.session import LinkError
from fermata.router.links.transport import Link, LinkEvents, LinkOptions, Me, Resolve

LOG = logging.getLogger("fermata")


class NobodyListensError(LinkError):
    """The host has answered that nobody listens there."""


class PeerRefusedError(LinkError):
    """The peer has said that it does not take the link."""


async def connect(
    address: str, me: Me, events: LinkEvents, heartbeat: HeartbeatThread, options: LinkOptions
) -> Link:
    """A link that is up, or a LinkError that says why not; NobodyListensError where the port is
    closed."""
    *newer, oldest = options.speaks
    for version in newer:
        # A peer of an older version refuses this one. Nothing that a stranger gives as its reason
        # counts, so every refusal is worth another attempt.
        with suppress(PeerRefusedError):
            return await _connect(address, me, version, events, heartbeat, options)
    return await _connect(address, me, oldest, events, heartbeat, options)


async def _connect(
    address: str,
    me: Me,
    version: int,
    events: LinkEvents,
    heartbeat: HeartbeatThread,
    options: LinkOptions,
) -> Link:
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    greeted: asyncio.Future[Closed | None] = loop.create_future()
    gate = _Gate(events, greeted)

    def make() -> Link:
        nonce = secrets.token_bytes(NONCE_BYTES)
        hello = msgspec.structs.replace(me(), protocol=version)
        gate.link = Link(Connector(hello, options.secret, nonce, address), gate, heartbeat, options)
        return gate.link

    try:
        async with asyncio.timeout(options.connect_ns / 1e9):
            await loop.create_connection(make, host, port)
            refusal = await greeted
    except ConnectionRefusedError as error:
        raise NobodyListensError(f"{address} cannot be reached: {error}") from None
    except (OSError, TimeoutError, ConfigError) as error:
        # Files of TLS may be missing for a moment, while they are replaced.
        raise LinkError(f"{address} cannot be reached: {error or 'no answer'}") from None
    finally:
        if not greeted.done() or greeted.cancelled():
            gate.give_up()
    if refusal is not None:
        kind = PeerRefusedError if refusal.by_peer else LinkError
        raise kind(f"{address} did not take the link: {refusal}")
    assert gate.link is not None
    return gate.link


class _Gate:
    """Hands a link's events on, and tells `connect` how its greeting went."""

    def __init__(self, events: LinkEvents, greeted: "asyncio.Future[Closed | None]") -> None:
        self.events = events
        self.greeted = greeted
        self.link: Link | None = None

    def give_up(self) -> None:
        """Leave no connection behind, to a peer that may never end its handshake."""
        if self.link is not None and self.link.wire is not None:
            self.link.close(CloseCode.SUPERSEDED, "too late", at_once=True)

    def on_up(self, link: Link) -> None:
        if self.greeted.done():
            # The caller has given up, and must not hear of this link at all.
            self.give_up()
            return
        link.events = self.events
        self.greeted.set_result(None)
        self.events.on_up(link)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        pass

    def on_down(self, link: Link, closed: Closed) -> None:
        pass

    def on_refused(self, link: Link, closed: Closed) -> None:
        if not self.greeted.done():
            self.greeted.set_result(closed)
        self.events.on_refused(link, closed)


class PersistentLink:
    """Keeps a link to one peer, wherever it may move."""

    def __init__(
        self,
        resolve: Resolve,
        me: Me,
        events: LinkEvents,
        heartbeat: HeartbeatThread,
        options: LinkOptions,
    ) -> None:
        self.resolve = resolve
        self.me = me
        self.events = events
        self.heartbeat = heartbeat
        self.options = options
        self.link: Link | None = None
        self.trouble = ""
        """Error of the last attempt; empty while the link is up."""

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, reason: str) -> None:
        self.task.cancel()
        if self.link is not None:
            self.link.close(CloseCode.SHUTDOWN, reason)
            await self.link.ended

    async def _run(self) -> None:
        wait_ns = self.options.backoff_ns_min
        while True:
            try:
                address = await self.resolve()
                link = await connect(address, self.me, self.events, self.heartbeat, self.options)
            # Any error: a process that stops trying never meets a router again.
            except Exception as error:
                if not isinstance(error, LinkError):
                    LOG.exception("an attempt to link failed")
                self.trouble = str(error) or type(error).__name__
                await asyncio.sleep(wait_ns / 1e9)
                wait_ns = min(2 * wait_ns, self.options.backoff_ns_max)
                continue
            self.link, self.trouble = link, ""
            wait_ns = self.options.backoff_ns_min
            self.trouble = str(await asyncio.shield(link.ended))
            self.link = None
            await asyncio.sleep(wait_ns / 1e9)
