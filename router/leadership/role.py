"""The role of a router: leader, or standby that watches the leader.

Every router has a term of its own, and a standby's is above the leader's: all it takes to lead is
to say so. Frontends and backends follow the highest term that they have met, so an old leader that
comes back finds no followers, and ends itself.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from fermata.foundation.units import ms, seconds
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.connecting import PersistentLink
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import PROTOCOL, STANDBY, Hello, Message, TakesLead
from fermata.router.links.transport import Link, LinkOptions, Resolve
from fermata.router.live.driver import LiveRouter


@dataclass(frozen=True, slots=True)
class FailoverTiming:
    """Times of a leader and its standby."""

    silence_ns: int = ms(100)
    """A leader that is silent for so long is given up. A takeover by mistake harms the old leader
    alone."""
    beat_ns: int = ms(20)
    """Interval between heartbeats of a router with a standby."""
    hung_ns: int = seconds(2)
    """A router whose loop has not turned for so long ends itself."""
    first_wait_s: float = 0.5
    """Time in which the first router looks for a leader, before it leads itself."""
    second_wait_s: float = 3.0


TIMING = FailoverTiming()


class LeaderRole:
    """Stands between links and a router (`LinkEvents`); a standby takes no messages."""

    def __init__(self, live: LiveRouter, leads: bool = True) -> None:
        self.live = live
        self.leads = leads
        self.waiting: dict[Link, None] = {}
        """Links of processes that would follow this router, and of the one that watches it."""
        self.standbys: set[Link] = set()
        """Links of routers that would take this one's place."""

    def hello(self) -> Hello:
        hello = self.live.hello()
        return hello if self.leads else msgspec.structs.replace(hello, role=STANDBY)

    def lead(self) -> None:
        """Take the lead, and announce that on every link."""
        if self.leads:
            return
        self.leads = True
        waiting, self.waiting = self.waiting, {}
        for link in waiting:
            self.on_up(link)

    # LinkEvents

    def on_up(self, link: Link) -> None:
        if not self.leads:
            self.waiting[link] = None
            return
        if link.session.me.role == STANDBY:
            # The peer was greeted by a standby.
            link.send(TakesLead(self.live.term))
            link.flush()
        if link.peer.role == STANDBY:
            self.standbys.add(link)
        else:
            self.live.on_up(link)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        if self.leads and link.peer.role != STANDBY:
            self.live.on_messages(link, messages)

    def on_down(self, link: Link, closed: Closed) -> None:
        self.standbys.discard(link)
        waited = link in self.waiting
        self.waiting.pop(link, None)
        if waited or link.peer.role == STANDBY:
            self.live.on_refused(link, closed)
        else:
            self.live.on_down(link, closed)

    def on_refused(self, link: Link, closed: Closed) -> None:
        self.live.on_refused(link, closed)


class StandbyMonitor:
    """Keeps a link from a standby to the leader, and takes its place when it is gone
    (`LinkEvents`)."""

    def __init__(
        self,
        role: LeaderRole,
        other: Resolve,
        first: bool,
        heartbeat: HeartbeatThread,
        options: LinkOptions,
        report: Callable[[str], None] = lambda reason: None,
        note: Callable[[int], None] = lambda term: None,
        timing: FailoverTiming = TIMING,
    ) -> None:
        """`first`: it leads where no other does. `report` takes the reason of a takeover; `note`
        has the cluster record a term that the cluster did not give."""
        self.role = role
        self.first = first
        self.report = report
        self.note = note
        self.timing = timing
        quick = replace(options, silence_ns=timing.silence_ns)
        self.kept = PersistentLink(other, self._hello, self, heartbeat, quick)
        self.link: Link | None = None
        self.watched: Link | None = None
        """The same, where the other one leads."""

    def start(self) -> None:
        self.kept.start()
        timing = self.timing
        wait_s = timing.first_wait_s if self.first else timing.second_wait_s
        asyncio.get_running_loop().call_later(wait_s, self._give_up)

    async def stop(self, reason: str) -> None:
        await self.kept.stop(reason)

    def _hello(self) -> Hello:
        # Its own term is above the leader's, which would take that for the end of its time.
        return Hello(PROTOCOL, STANDBY, 0, 0)

    def _give_up(self) -> None:
        if self.watched is None:
            self._lead(f"no other router leads ({self.kept.trouble or 'the one there is waits'})")

    def _lead(self, reason: str) -> None:
        if not self.role.leads:
            self.report(reason)
            self.role.lead()
            # From now on the other router is the standby.
            self.kept.task.cancel()
            if self.link is not None:
                self.link.close(CloseCode.SUPERSEDED, "leads now")

    def _watch(self, link: Link) -> None:
        self.watched = link
        live = self.role.live
        if live.term <= link.peer.term:
            # Terms of the two seats differ in their last bit.
            live.term = link.peer.term + 1
            self.note(live.term)

    # LinkEvents

    def on_up(self, link: Link) -> None:
        self.link = link
        if link.peer.role != STANDBY:
            self._watch(link)
        elif self.first:
            self._lead("the other router waits too")

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        if isinstance(messages[0], TakesLead):
            link.now_leads(messages[0].term)
            self._watch(link)

    def on_down(self, link: Link, closed: Closed) -> None:
        self.link = None
        if link is self.watched:
            self.watched = None
            self._lead(f"the router that led is gone ({closed})")

    def on_refused(self, link: Link, closed: Closed) -> None:
        pass
