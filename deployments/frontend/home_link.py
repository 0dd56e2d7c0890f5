"""A frontend's links to the routers of one sub-cluster: one leads, another may wait."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fermata.router.links.closing import Closed
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import FrontendStats, Hello, Message
from fermata.router.links.router_links import RouterLinks
from fermata.router.links.transport import Link, LinkOptions, Resolve

if TYPE_CHECKING:
    from fermata.deployments.frontend.link_hub import LinkHub


class HomeLink:
    """Follows the leader of a sub-cluster, and passes on what it says (`LinkEvents`)."""

    links: RouterLinks

    def __init__(self, hub: "LinkHub", number: int, resolves: Sequence[Resolve]) -> None:
        self.hub = hub
        self.number = number
        self.resolves = resolves
        self.term = 0
        """The highest term met: an older router is refused."""
        self.link: Link | None = None

    def start(self, heartbeat: HeartbeatThread, options: LinkOptions) -> None:
        """Keep the links; returns before any is up."""
        self.links = RouterLinks(self.resolves, self._hello, self, heartbeat, options)
        self.links.start()

    def _hello(self) -> Hello:
        return self.hub.hello(self.term)

    def send(self, stats: FrontendStats) -> None:
        """Report to the leader, where there is one."""
        if self.link is not None:
            self.link.send(stats)

    # LinkEvents

    def on_up(self, link: Link) -> None:
        self.term = max(self.term, link.peer.term)
        self.link = link
        self.hub.on_router_up(self, link)

    def on_down(self, link: Link, closed: Closed) -> None:
        if link is self.link:
            self.link = None
            self.hub.on_router_down(self, link, closed)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        self.hub.hear_router(self.number, link, messages)

    def on_refused(self, link: Link, closed: Closed) -> None:
        """Nothing to do: it is tried again, and `links.trouble` has the reason."""
