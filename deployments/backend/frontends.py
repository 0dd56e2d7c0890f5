"""Links from a backend to the frontends that it fetches from and answers to."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.connecting import connect
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import FrontendAddress, Message, Payload
from fermata.router.links.session import LinkError
from fermata.router.links.transport import Link, LinkOptions, Me

StartTask = Callable[[Coroutine[object, object, None]], "asyncio.Task[None]"]


class FrontendEvents(Protocol):
    """Events of the links to frontends."""

    def on_payloads(self, payloads: list[Payload]) -> None: ...

    def on_frontend_down(self, frontend: int, reason: str) -> None:
        """Payloads that it has not sent will not come; `reason` is given if it was never
        reached."""


class FrontendPeer:
    """One frontend."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: Link | None = None
        self.waiting: list[Message] = []
        """Messages to send once the link is up."""
        self.connecting: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self.link is None and self.connecting is None


class Frontends:
    """All frontends that the router has named; each is linked when a message is to be sent."""

    def __init__(
        self,
        me: Me,
        events: FrontendEvents,
        heartbeat: HeartbeatThread,
        options: LinkOptions,
        start: StartTask,
        peers_max: int = 4096,
    ) -> None:
        """Beyond `peers_max` frontends, the oldest without a link is taken for gone."""
        self.me = me
        self.events = events
        self.heartbeat = heartbeat
        self.options = options
        self.start = start
        self.peers_max = peers_max
        self.peers: dict[int, FrontendPeer] = {}

    def add(self, frontend: FrontendAddress) -> None:
        """Remember where a frontend accepts links."""
        before = self.peers.get(frontend.number)
        if before is not None:
            if before.address == frontend.address:
                # Not the oldest any more: the router may have named many others since.
                self.peers[frontend.number] = self.peers.pop(frontend.number)
                return
            if before.link is not None:
                before.link.close(CloseCode.SUPERSEDED, "the frontend has moved")
        self.peers.pop(frontend.number, None)
        if len(self.peers) >= self.peers_max:
            idle = (number for number, peer in self.peers.items() if peer.idle)
            oldest = next(idle, None)
            # Where all are linked they are there, and the newest is needed next.
            if oldest is not None:
                del self.peers[oldest]
        self.peers[frontend.number] = FrontendPeer(frontend.address)

    def send(self, number: int, message: Message) -> bool:
        """Send a message, now or once the link is up; false if the address is not known."""
        peer = self.peers.get(number)
        if peer is None:
            return False
        if peer.link is not None:
            peer.link.send(message)
        else:
            peer.waiting.append(message)
            if peer.connecting is None:
                peer.connecting = self.start(self._connect(number, peer))
        return True

    async def _connect(self, number: int, peer: FrontendPeer) -> None:
        try:
            link = await connect(peer.address, self.me, self, self.heartbeat, self.options)
            if link.peer.number != number:
                link.close(CloseCode.MISDIRECTED, f"frontend {number} was expected here")
                raise LinkError(f"{peer.address} is now frontend {link.peer.number}")
        except LinkError as error:
            peer.waiting.clear()
            self.events.on_frontend_down(number, str(error))
            return
        finally:
            peer.connecting = None
        if link.open:
            peer.link = link
            link.send_all(peer.waiting)
        peer.waiting.clear()

    async def stop(self, reason: str) -> None:
        links = [peer.link for peer in self.peers.values() if peer.link is not None]
        for link in links:
            link.close(CloseCode.SHUTDOWN, reason)
        await asyncio.gather(*(link.ended for link in links))

    # LinkEvents

    def on_up(self, link: Link) -> None:
        pass

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        payloads = [message for message in messages if isinstance(message, Payload)]
        if len(payloads) < len(messages):
            link.close(CloseCode.WRONG_ROLE, "a frontend sends payloads alone")
        self.events.on_payloads(payloads)

    def on_down(self, link: Link, closed: Closed) -> None:
        peer = self.peers.get(link.peer.number)
        if closed.code is CloseCode.MISDIRECTED:
            # Nobody has asked this one for anything.
            return
        if peer is not None and peer.link in (link, None):
            peer.link = None
            self.events.on_frontend_down(link.peer.number, "")

    def on_refused(self, link: Link, closed: Closed) -> None:
        pass
