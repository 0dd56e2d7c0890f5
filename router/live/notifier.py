"""Notifies frontends of their requests, and of the fleet that serves them."""

from fermata.router.assembly import Assembly
from fermata.router.core.events import Advise, Answer, Batch, Drop, DropReason
from fermata.router.links.directory import DIRECTORY_FROM, Directory, is_newer
from fermata.router.links.messages import (
    Dropped,
    Estimated,
    FleetStatus,
    FrontendStats,
    Shares,
    ShortCircuit,
    Unavailable,
)
from fermata.router.live.clients.client_mapping import ClientMapping
from fermata.router.live.clients.tenant_shares import TenantShares
from fermata.router.live.fleet.fleet import Fleet
from fermata.router.live.fleet.peers import LinkPeer
from fermata.router.live.requests.retry_hint import retry_after_ns


class FrontendNotifier:
    """Sends every message of a router to its frontends."""

    def __init__(self, built: Assembly, fleet: Fleet, clients: ClientMapping) -> None:
        self.built = built
        self.fleet = fleet
        self.clients = clients
        self.published: FleetStatus | None = None
        """The last report to all frontends; None where one of them has not heard it."""
        self.tenants = TenantShares()
        self.directory: Directory | None = None
        """Homes of all applications, where there are other routers than this one."""

    def on_frontend_up(self, link: LinkPeer) -> None:
        # First: what follows is about the applications that live here.
        self._send_directory(link)
        if self.fleet.availability.unavailable:
            self.publish_unavailable(link)
        self.published = None

    def on_frontend_down(self, number: int) -> None:
        self.tenants.on_gone(number)

    def send_shares(self, link: LinkPeer, stats: FrontendStats) -> None:
        """Send a frontend its part of tenants' rates, by the requests that it has reported."""
        number, frontends = link.peer.number, self.fleet.frontends
        counts = {tenant: sum(outcomes.values()) for tenant, outcomes in stats.tenants}
        self.tenants.on_asked(number, counts)
        shares = self.tenants.of(number, frontends)
        if shares and len(frontends) > 1:
            self.fleet.send(link, Shares(shares))

    def publish_fleet(self) -> None:
        """Send every frontend the size of the fleet, where that has changed."""
        fleet = self.fleet
        if not fleet.changed:
            return
        fleet.changed = False
        status = fleet.status()
        if status != self.published:
            self.published = status
            for link in fleet.frontends.values():
                fleet.send(link, status)

    def publish_unavailable(self, link: LinkPeer | None = None) -> None:
        """Send the applications that are not served; to one frontend, or to all."""
        fleet = self.fleet
        message = Unavailable(dict(sorted(fleet.availability.unavailable.items())))
        for each in fleet.frontends.values() if link is None else (link,):
            fleet.send(each, message)

    def set_directory(self, directory: Directory) -> None:
        """Send every frontend the homes of all applications, where they have changed."""
        if is_newer(directory, self.directory):
            self.directory = directory
            for link in self.fleet.frontends.values():
                self._send_directory(link)

    def _send_directory(self, link: LinkPeer) -> None:
        if self.directory is not None and link.peer.protocol >= DIRECTORY_FROM:
            self.fleet.send(link, self.directory)

    def lives_elsewhere(self, application: str) -> bool:
        """Whether an application that is not served here has a home."""
        return self.directory is not None and application in self.directory.applications

    def advise(self, advise: Advise) -> None:
        """Send a client's frontend the input size that the client should use."""
        link, advice = self.clients.advice(advise)
        if link is not None and self.fleet.has_frontend(link):
            self.fleet.send(link, advice)

    def short_circuit(self, answer: Answer) -> None:
        """Answer a request from its evidence."""
        request, estimate = answer.request, answer.request.estimate
        link = self.fleet.frontend_of(request.rid)
        if link is not None and estimate is not None:
            right = estimate.classes[answer.label]
            unread = request.ticket is not None
            message = ShortCircuit(request.rid, answer.label, right, estimate.classes, unread)
            self.fleet.send(link, message)

    def send_estimates(self, batch: Batch) -> None:
        """Send the expected accuracy of the answers to the frontends that asked."""
        for request in batch.requests:
            expected = self.built.expected(request, batch.variant)
            link = self.fleet.frontend_of(request.rid)
            if expected is not None and link is not None:
                self.fleet.send(link, Estimated(request.rid, expected))

    def on_drop(self, now_ns: int, drop: Drop) -> None:
        """End a request without a result."""
        request = drop.request
        unread = request.ticket is not None
        # A client that cancelled waits for no answer, but its input may be freed now.
        if drop.reason == DropReason.CANCELLED and not unread:
            return
        link = self.fleet.frontend_of(request.rid)
        if link is not None:
            recovery, application = self.fleet.recovery, request.application
            after_ns = retry_after_ns(self.built, recovery, now_ns, drop.reason, application)
            if drop.reason == DropReason.BLAMED:
                after_ns = self.fleet.separation.refused_ns(now_ns, request)
            detail = request.error if drop.reason == DropReason.FAILED else ""
            again = request.retried or request.left_out
            retried = drop.reason == DropReason.MOVED and again
            message = Dropped(request.rid, drop.reason, after_ns, detail, unread, retried)
            self.fleet.send(link, message)
