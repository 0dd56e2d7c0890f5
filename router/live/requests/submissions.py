"""Requests as frontends submit them: each is queued, joins a query, or is refused."""

from collections.abc import Sequence

from fermata.router.assembly import Assembly
from fermata.router.core.events import Drop, DropReason, Request, SequenceStep
from fermata.router.links.messages import Dropped, Submit
from fermata.router.live.clients.client_mapping import ClientMapping
from fermata.router.live.fleet.fleet import Fleet
from fermata.router.live.fleet.peers import LinkPeer
from fermata.router.live.lead.lead_time import LeadTimeEstimator
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.requests.doubtful_drops import DoubtfulDrops
from fermata.router.live.requests.queries import LiveQueries
from fermata.router.live.requests.siblings import each_of
from fermata.router.live.supervisor import BackendSupervisor
from fermata.router.telemetry.meters import Meters

UNKNOWN = "unknown-application"


class Submissions:
    """Passes each new request to the engine, or answers it."""

    def __init__(
        self,
        built: Assembly,
        fleet: Fleet,
        lead: LeadTimeEstimator,
        meters: Meters,
        clients: ClientMapping,
        notifier: FrontendNotifier,
        supervisor: BackendSupervisor,
        doubtful: DoubtfulDrops,
    ) -> None:
        self.engine = built.engine
        self.applications = built.applications
        self.fleet = fleet
        self.lead = lead
        self.meters = meters
        self.clients = clients
        self.notifier = notifier
        self.quarantine = supervisor.quarantine
        self.doubtful = doubtful
        self.queries = LiveQueries(built, fleet, self.refuse) if built.config.pipelines else None
        """None where there are no pipelines."""
        self.unknown = 0
        """Requests of applications that no router serves."""

    def submit(self, now_ns: int, link: LinkPeer, submit: Submit) -> None:
        """Take a request in, unless it is here already."""
        if submit.beside:
            self._submit_together(now_ns, link, submit)
            return
        application = self.fleet.placement.served.get(submit.application)
        if application is None:
            self._hand_back(link, submit)
            return
        rid = submit.rid
        outbox = self.engine.outbox
        if rid in outbox.queued or rid in outbox.granted or rid in self.doubtful.held:
            return
        if self.fleet.in_flight.note_resubmission(rid):
            return
        if self.queries is not None and rid in self.queries.waiting:
            return
        if submit.part is not None and self._submit_part(now_ns, link, submit):
            return
        if self.quarantine.is_quarantined(now_ns, application):
            self._drop(link, submit, DropReason.QUARANTINED)
            return
        self.meters.applications[application].received += 1
        request = self._request(now_ns, application, submit)
        if self.fleet.separation.active and not self._set_apart(now_ns, request):
            return
        hurry = submit.slo_ns < self.lead.needs_ns[application]
        if hurry and self.lead.refuses(now_ns, link.peer.node, request):
            self.refuse(now_ns, request)
        else:
            self.engine.on_request(now_ns, request)

    def _request(self, now_ns: int, application: int, submit: Submit) -> Request:
        deadline_ns = now_ns + submit.slo_ns
        request = Request(
            submit.rid,
            application,
            now_ns,
            deadline_ns,
            max(deadline_ns, now_ns + submit.hard_limit_ns),
            submit.client,
            submit.priority,
        )
        request.tenant = submit.tenant
        request.rows = max(1, submit.rows)
        request.ticket = submit.payload
        request.retried = submit.retried
        if submit.sequence is not None:
            request.sequence = SequenceStep(*submit.sequence)
        wishes = self.clients.wishes
        request.allowed = wishes.allowed(application, submit.accuracy_floor, submit.pinned)
        return request

    def _submit_part(self, now_ns: int, link: LinkPeer, submit: Submit) -> bool:
        """Take a request that is part of a query, or begins one; false where no such pipeline is
        known here, and it stands alone."""
        queries, quarantine = self.queries, self.quarantine
        if queries is None:
            return False
        if any(quarantine.is_quarantined(now_ns, each) for each in queries.stages_of(submit)):
            self._drop(link, submit, DropReason.QUARANTINED)
            return True
        if self.fleet.separation.active and self._refuse_blamed(now_ns, queries, submit):
            return True
        known = queries.on_submit(now_ns, submit)
        if known:
            application = self.applications[submit.application]
            self.meters.applications[application].received += 1
        return known

    def _refuse_blamed(self, now_ns: int, queries: LiveQueries, submit: Submit) -> bool:
        """Refuse a query whose party any of its stages refuses: its parts would hang there."""
        for application in queries.stages_of(submit):
            request = self._request(now_ns, application, submit)
            if self.fleet.separation.refused_ns(now_ns, request):
                self.meters.applications[application].received += 1
                self.refuse(now_ns, request, DropReason.BLAMED)
                return True
        return False

    def _submit_together(self, now_ns: int, link: LinkPeer, submit: Submit) -> None:
        """Take all parts of a message at once, or each by itself where some are here already, or
        there is more to ask about them."""
        parts, queries = each_of(submit), self.queries
        application = self.fleet.placement.served.get(submit.application)
        if (
            application is not None
            and queries is not None
            and self._are_new(parts)
            and queries.on_siblings(parts)
        ):
            self.meters.applications[application].received += len(parts)
            return
        for each in parts:
            self.submit(now_ns, link, each)

    def _are_new(self, parts: Sequence[Submit]) -> bool:
        """Whether nothing is known of any of these requests."""
        rids, outbox = {each.rid for each in parts}, self.engine.outbox
        return (
            len(rids) == len(parts)
            # Never the other way: that would look at all that is queued.
            and outbox.queued.keys().isdisjoint(rids)
            and rids.isdisjoint(outbox.granted)
            and self.doubtful.held.keys().isdisjoint(rids)
            and rids.isdisjoint(self.fleet.in_flight.rids)
        )

    def _hand_back(self, link: LinkPeer, submit: Submit) -> None:
        """Refuse a request of an application that is not served here; where it has another home,
        the frontend asks there. One that still runs here is handed back once that fails."""
        if self.fleet.in_flight.note_resubmission(submit.rid):
            return
        moved = self.notifier.lives_elsewhere(submit.application)
        self.unknown += not moved
        self._drop(link, submit, DropReason.MOVED if moved else UNKNOWN)

    def _drop(self, link: LinkPeer, submit: Submit, reason: str) -> None:
        """Answer a request that the engine never hears of."""
        self.fleet.send(link, Dropped(submit.rid, reason, unread=submit.payload is not None))

    def _set_apart(self, now_ns: int, request: Request) -> bool:
        """Set a request apart where it has to be; false where its party is refused. One of a
        sequence runs where the state is, in any company."""
        separation = self.fleet.separation
        if separation.refused_ns(now_ns, request):
            self.refuse(now_ns, request, DropReason.BLAMED)
            return False
        if request.sequence is None:
            request.apart = separation.apart(now_ns, request)
        return True

    def refuse(self, now_ns: int, request: Request, reason: str = DropReason.LATE) -> None:
        """Drop a request that has no chance, before it takes another one's place."""
        self.engine.on_refused(now_ns, request)
        drop = Drop(request, self.engine.outbox.true_reason(request, reason))
        self.engine.ledger.on_drop(request, drop.reason)
        self.meters.on_drop(now_ns, drop)
        self.notifier.on_drop(now_ns, drop)
