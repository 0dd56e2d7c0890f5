"""Links to every router that there may be: one leads, another may wait to take its place."""

from collections.abc import Sequence

from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.connecting import PersistentLink
from fermata.router.links.handshake import stale
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import STANDBY, Message, TakesLead
from fermata.router.links.transport import Link, LinkEvents, LinkOptions, Me, Resolve


class RouterLinks:
    """Keeps them; the user (`events`) hears of the leader alone.

    One router leads at a time. A newer one is followed at once, whatever became of the one before,
    and an older one never again.
    """

    def __init__(
        self,
        resolves: Sequence[Resolve],
        me: Me,
        events: LinkEvents,
        heartbeat: HeartbeatThread,
        options: LinkOptions,
    ) -> None:
        self.me = me
        self.events = events
        self.kept = [PersistentLink(resolve, me, self, heartbeat, options) for resolve in resolves]
        self.leader: Link | None = None

    def start(self) -> None:
        for each in self.kept:
            each.start()

    async def stop(self, reason: str) -> None:
        for each in self.kept:
            await each.stop(reason)

    @property
    def trouble(self) -> str:
        """Reason why no router leads; empty while one does."""
        if self.leader is not None:
            return ""
        return "; ".join(each.trouble for each in self.kept if each.trouble)

    # LinkEvents

    def on_up(self, link: Link) -> None:
        if link.peer.role != STANDBY:
            self._follow(link)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        if link is not self.leader:
            first = messages[0]
            # Messages of an older one are ignored.
            if not isinstance(first, TakesLead) or link.peer.role != STANDBY:
                return
            link.now_leads(first.term)
            self._follow(link)
            messages = messages[1:]
        if messages and link is self.leader:
            self.events.on_messages(link, messages)

    def on_down(self, link: Link, closed: Closed) -> None:
        if link is self.leader:
            self.leader = None
            self.events.on_down(link, closed)

    def on_refused(self, link: Link, closed: Closed) -> None:
        self.events.on_refused(link, closed)

    def _follow(self, link: Link) -> None:
        me = self.me()
        if link.peer.term < me.term:
            link.close(CloseCode.STALE, stale(link.peer, me), term=me.term)
            return
        before = self.leader
        if before is not None:
            self.leader = None
            self.events.on_down(before, Closed(CloseCode.SUPERSEDED, "another router leads"))
            if before.peer.term < link.peer.term:
                detail = stale(before.peer, link.peer)
                before.close(CloseCode.STALE, detail, term=link.peer.term)
            else:
                before.close(CloseCode.SUPERSEDED, "it has come anew")
        self.leader = link
        self.events.on_up(link)
