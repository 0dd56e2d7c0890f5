"""Links from a backend to the frontends that it fetches from and answers to."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

import msgspec

from fermata.deployments.backend.data_reader import DataReaders, Post
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.connecting import NobodyListensError, connect
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
    LOOKS_FROM,
    DataPort,
    Fetch,
    FrontendAddress,
    Look,
    Message,
    Payload,
    Run,
    TakesLooks,
    frontend_of,
)
from fermata.router.links.session import LinkError
from fermata.router.links.transport import Link, LinkOptions, Me

MEANT = frozenset((CloseCode.SHUTDOWN, CloseCode.SUPERSEDED, CloseCode.MISDIRECTED))
"""Ends of a link after which nobody expects another one."""
StartTask = Callable[[Coroutine[object, object, None]], "asyncio.Task[None]"]


class FrontendEvents(Protocol):
    """Events of the links to frontends."""

    def on_payloads(self, payloads: list[Payload]) -> None: ...

    def on_data_lost(self, frontend: int) -> None:
        """Fetch again, over its link, what this frontend has not sent."""

    def on_frontend_down(self, frontend: int, reason: str) -> None:
        """Payloads that it has not sent will not come; `reason` is given if it was never
        reached."""

    def on_reach(self, unreachable: frozenset[int]) -> None:
        """These frontends are out of reach from now on, and all others are not."""


class LookTaker(Protocol):
    """Looks at inputs for frontends, and answers each look."""

    def told(self) -> TakesLooks:
        """The message that frontends get of it."""

    def take(self, frontend: int, looks: Sequence[Look]) -> None: ...


class FrontendPeer:
    """One frontend."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: Link | None = None
        self.waiting: list[Message] = []
        """Messages to send once the link is up."""
        self.connecting: asyncio.Task[None] | None = None
        self.judged: asyncio.TimerHandle | None = None
        """When it is out of reach, unless a link is up by then."""
        self.again: asyncio.TimerHandle | None = None
        """When it is tried again."""
        self.tries = 0
        """Attempts in a row that came to nothing."""

    def forget_timers(self) -> None:
        for timer in (self.judged, self.again):
            if timer is not None:
                timer.cancel()
        self.judged = self.again = None

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
        tries_max: int = 200,
    ) -> None:
        """Beyond `peers_max` frontends, the oldest without a link is taken for gone. So is one that
        was not reached in `tries_max` attempts, of about three seconds each."""
        self.tries_max = tries_max
        self.me = me
        self.events = events
        self.heartbeat = heartbeat
        self.options = options
        self.start = start
        self.peers_max = peers_max
        self.peers: dict[int, FrontendPeer] = {}
        self.unreachable: frozenset[int] = frozenset()
        """Frontends without a link, however often they are tried."""
        self.data: DataReaders | None = None
        """Set where large inputs come by connections of their own."""
        self.looks: LookTaker | None = None
        """Set where frontends have this backend look at inputs."""

    def read_data(self, post: Post) -> None:
        """Have large inputs come by connections of their own, each with a thread; `post` has the
        loop call something."""
        told = self.events.on_payloads, self.events.on_data_lost
        self.data = DataReaders(self.me, *told, post, self.heartbeat.clock, self.options)

    def take_looks(self, looks: LookTaker) -> None:
        """Take looks from now on, and tell all frontends that are linked."""
        self.looks = looks
        for peer in self.peers.values():
            if peer.link is not None:
                self._tell_looks(peer.link)

    def _tell_looks(self, link: Link) -> None:
        if self.looks is not None and link.peer.protocol >= LOOKS_FROM:
            link.send(self.looks.told())

    def add(self, frontend: FrontendAddress) -> None:
        """Remember where a frontend accepts links."""
        before = self.peers.get(frontend.number)
        if before is not None:
            if before.address == frontend.address:
                # Not the oldest any more: the router may have named many others since.
                self.peers[frontend.number] = self.peers.pop(frontend.number)
                return
            before.forget_timers()
            self._set_reach(frontend.number, True)
            if before.link is not None:
                before.link.close(CloseCode.SUPERSEDED, "the frontend has moved")
        self.peers.pop(frontend.number, None)
        if len(self.peers) >= self.peers_max:
            oldest = next((number for number, peer in self.peers.items() if peer.idle), None)
            # Where all are linked they are there, and the newest is needed next.
            if oldest is not None:
                self.peers.pop(oldest).forget_timers()
                self._set_reach(oldest, True)
        self.peers[frontend.number] = FrontendPeer(frontend.address)

    def is_linked(self, number: int) -> bool:
        """Whether messages go out at once."""
        peer = self.peers.get(number)
        return peer is not None and peer.link is not None

    def without_strangers(self, run: Run) -> Run:
        """The order without inputs of frontends that have no link: a fetch shows whether they can
        be reached, before anything runs for them."""
        frontends = {frontend_of(payload.rid) for payload in run.inputs}
        linked = {frontend for frontend in frontends if self.is_linked(frontend)}
        if linked == frontends:
            return run
        kept = [payload for payload in run.inputs if frontend_of(payload.rid) in linked]
        return msgspec.structs.replace(run, inputs=tuple(kept))

    def send(self, number: int, message: Message) -> bool:
        """Send a message, now or once the link is up; false if the address is not known."""
        peer = self.peers.get(number)
        if peer is None:
            return False
        if peer.link is not None:
            self._say(peer.link, message)
        else:
            peer.waiting.append(message)
            self._reach(number, peer)
        return True

    def _say(self, link: Link, message: Message) -> None:
        if self.data is not None and isinstance(message, Fetch):
            message = self.data.marked(link.peer.number, message)
        link.send(message)

    def _reach(self, number: int, peer: FrontendPeer) -> None:
        """Begin to connect, if nobody does; a frontend that takes too long is out of reach."""
        if peer.connecting is not None:
            return
        if peer.judged is None and number not in self.unreachable:
            loop, allowed_s = asyncio.get_running_loop(), self.options.silence_ns / 1e9
            peer.judged = loop.call_later(allowed_s, self._give_up, number, peer)
        peer.connecting = self.start(self._connect(number, peer))

    def _give_up(self, number: int, peer: FrontendPeer) -> None:
        """No link came up in time: leave this frontend to others until one does."""
        peer.judged = None
        if peer.link is None and self.peers.get(number) is peer:
            self._set_reach(number, False)

    def _set_reach(self, number: int, within: bool) -> None:
        changed = self.unreachable - {number} if within else self.unreachable | {number}
        if changed != self.unreachable:
            self.unreachable = changed
            self.events.on_reach(changed)

    def _try_again(self, number: int, peer: FrontendPeer) -> None:
        peer.again = None
        if self.peers.get(number) is peer and peer.idle:
            self._reach(number, peer)

    async def _connect(self, number: int, peer: FrontendPeer) -> None:
        try:
            link = await connect(peer.address, self.me, self, self.heartbeat, self.options)
            if link.peer.number != number:
                link.close(CloseCode.MISDIRECTED, f"frontend {number} was expected here")
                raise LinkError(f"{peer.address} is now frontend {link.peer.number}")
        except LinkError as error:
            self._on_unreached(number, peer, error)
            return
        finally:
            peer.connecting = None
        if link.open:
            peer.link = link
            if self.data is not None:
                self.data.on_link_up(link)
            for message in peer.waiting:
                self._say(link, message)
            self._tell_looks(link)
            peer.forget_timers()
            peer.tries = 0
            self._set_reach(number, True)
        peer.waiting.clear()

    def _on_unreached(self, number: int, peer: FrontendPeer, error: LinkError) -> None:
        # An attempt that nobody asked for is no failure of a request.
        reason = str(error) if peer.waiting else ""
        peer.waiting.clear()
        if self.peers.get(number) is not peer:
            return
        if isinstance(error, NobodyListensError):
            # It has ended, and is not cut off: the router knows that too.
            peer.forget_timers()
            self._set_reach(number, True)
        elif peer.tries >= self.tries_max:
            # Its machine must be gone. If it is not, the router tells its address again.
            peer.forget_timers()
            del self.peers[number]
            self._set_reach(number, True)
        elif peer.again is None:
            peer.tries += 1
            loop, wait_s = asyncio.get_running_loop(), self.options.backoff_ns_max / 1e9
            peer.again = loop.call_later(wait_s, self._try_again, number, peer)
        self.events.on_frontend_down(number, reason)

    async def stop(self, reason: str) -> None:
        for peer in self.peers.values():
            peer.forget_timers()
        if self.data is not None:
            self.data.stop()
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
            self._on_others(link, messages)
        if payloads:
            self.events.on_payloads(payloads)

    def _on_others(self, link: Link, messages: list[Message]) -> None:
        others = [message for message in messages if not isinstance(message, Payload)]
        if self.data is not None:
            for told in [message for message in others if isinstance(message, DataPort)]:
                self.data.on_port(link, told)
                others.remove(told)
        looks = [message for message in others if isinstance(message, Look)]
        if not others:
            return
        if self.looks is None or len(looks) < len(others):
            link.close(CloseCode.WRONG_ROLE, "a frontend sends payloads and looks it may ask for")
        else:
            self.looks.take(link.peer.number, looks)

    def on_down(self, link: Link, closed: Closed) -> None:
        peer = self.peers.get(link.peer.number)
        if closed.code is CloseCode.MISDIRECTED:
            # Nobody has asked this one for anything.
            return
        if peer is not None and peer.link in (link, None):
            peer.link = None
            if self.data is not None:
                self.data.on_link_down(link.peer.number)
            self.events.on_frontend_down(link.peer.number, "")
            if closed.code not in MEANT and peer.connecting is None:
                self._reach(link.peer.number, peer)

    def on_refused(self, link: Link, closed: Closed) -> None:
        pass
