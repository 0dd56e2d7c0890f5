"""Notifies frontends of their requests, and of the fleet that serves them."""

from collections.abc import Callable

from fermata.router.assembly import Assembly
from fermata.router.core.events import Advise, Answer, Batch, Drop, DropReason
from fermata.router.health.availability import Availability
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import (
    RID_BITS,
    Dropped,
    Estimated,
    FleetStatus,
    FrontendStats,
    Message,
    Shares,
    ShortCircuit,
    Unavailable,
)
from fermata.router.live.client_mapping import ClientMapping
from fermata.router.live.peers import BackendPeer, LinkPeer
from fermata.router.live.retry_hint import retry_after_ns
from fermata.router.live.tenant_shares import TenantShares


class FrontendNotifier:
    """Tells them; `say` sends a message on a link."""

    def __init__(
        self,
        built: Assembly,
        presence: Availability,
        clients: ClientMapping,
        frontends: dict[int, LinkPeer],
        backends: dict[int, BackendPeer],
        say: Callable[[LinkPeer, Message], None],
    ) -> None:
        self.built = built
        self.presence = presence
        self.clients = clients
        self.frontends = frontends
        self.backends = backends
        self.say = say
        self.outdated = False
        """Somebody has come or gone, or holds other models, since frontends heard of it."""
        self.told: FleetStatus | None = None
        self.tenants = TenantShares()

    def on_frontend_up(self, link: LinkPeer) -> None:
        number = link.peer.number
        before = self.frontends.get(number)
        self.frontends[number] = link
        if before is not None:
            before.close(CloseCode.SUPERSEDED, f"frontend {number} has come anew")
        if self.presence.unavailable:
            self.absent(link)
        self.outdated, self.told = True, None

    def on_frontend_down(self, number: int) -> None:
        del self.frontends[number]
        self.tenants.on_gone(number)
        self.outdated = True

    def shares(self, link: LinkPeer, stats: FrontendStats) -> None:
        """Tell a frontend how much of tenants' rates is its part, by what it has been asked."""
        number = link.peer.number
        counts = {tenant: sum(outcomes.values()) for tenant, outcomes in stats.tenants}
        self.tenants.on_asked(number, counts)
        shares = self.tenants.of(number, self.frontends)
        if shares and len(self.frontends) > 1:
            self.say(link, Shares(shares))

    def fleet(self) -> None:
        """Tell every frontend who is there, where that is news."""
        if not self.outdated:
            return
        self.outdated = False
        ranks = self.built.engine.backend_rank
        serving = [each for each in self.backends if not ranks[each].backends[each].draining]
        not_loaded = tuple(self.presence.not_loaded(serving))
        fleet = FleetStatus(len(self.frontends), len(serving), not_loaded)
        if fleet != self.told:
            self.told = fleet
            for link in self.frontends.values():
                self.say(link, fleet)

    def absent(self, link: LinkPeer | None = None) -> None:
        """Which applications nobody serves; to one frontend, or to all."""
        absent = Unavailable(dict(sorted(self.presence.unavailable.items())))
        for each in self.frontends.values() if link is None else (link,):
            self.say(each, absent)

    def advise(self, advise: Advise) -> None:
        link, advice = self.clients.advice(advise)
        if link is not None and self.frontends.get(link.peer.number) is link:
            self.say(link, advice)

    def short_circuit(self, answer: Answer) -> None:
        request, estimate = answer.request, answer.request.estimate
        link = self.frontends.get(request.rid >> RID_BITS)
        if link is not None and estimate is not None:
            right = estimate.classes[answer.label]
            self.say(link, ShortCircuit(request.rid, answer.label, right, estimate.classes))

    def estimates(self, batch: Batch) -> None:
        """Send the expected accuracy of the answers to the frontends that asked."""
        for request in batch.requests:
            expected = self.built.expected(request, batch.variant)
            link = self.frontends.get(request.rid >> RID_BITS)
            if expected is not None and link is not None:
                self.say(link, Estimated(request.rid, expected))

    def dropped(self, drop: Drop) -> None:
        # A client that cancelled waits for no answer.
        if drop.reason == DropReason.CANCELLED:
            return
        request = drop.request
        link = self.frontends.get(request.rid >> RID_BITS)
        if link is not None:
            after_ns = retry_after_ns(self.built, drop.reason, request.application)
            detail = request.error if drop.reason == DropReason.FAILED else ""
            self.say(link, Dropped(request.rid, drop.reason, after_ns, detail))
