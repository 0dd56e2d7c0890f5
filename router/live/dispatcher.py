"""Batches on their way: orders to backends, and the ends that these report."""

from fermata.router.assembly import Assembly
from fermata.router.core.events import Batch, rows_of
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import (
    PLACES_FROM,
    RID_BITS,
    Done,
    FrontendAddress,
    Payload,
    Run,
    Unread,
)
from fermata.router.live.fleet.fleet import Fleet
from fermata.router.live.fleet.peers import LinkPeer, SentBatch
from fermata.router.live.lead.lead_time import LeadTimeEstimator
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.requests.queries import LiveQueries
from fermata.router.live.supervisor import BackendSupervisor
from fermata.router.telemetry.meters import Meters


class BatchDispatcher:
    """Sends batches out, and passes each end to everything that learns from it."""

    def __init__(
        self,
        built: Assembly,
        fleet: Fleet,
        lead: LeadTimeEstimator,
        meters: Meters,
        notifier: FrontendNotifier,
        supervisor: BackendSupervisor,
        queries: LiveQueries | None = None,
    ) -> None:
        self.built = built
        self.engine = built.engine
        self.fleet = fleet
        self.lead = lead
        self.meters = meters
        self.notifier = notifier
        self.supervisor = supervisor
        self.queries = queries

    def dispatch(self, now_ns: int, number: int, batch: Batch) -> None:
        """Order a backend to run a batch."""
        fleet = self.fleet
        backend = fleet.backends[number]
        rids = tuple([request.rid for request in batch.requests])
        frontends = {rid >> RID_BITS for rid in rids}
        for frontend in backend.meet(frontends & fleet.frontends.keys()):
            link = fleet.frontends[frontend]
            backend.link.send(FrontendAddress(frontend, link.peer.address, link.peer.node))
        fleet.in_flight.add(rids)
        start_in_ns = batch.start_at_ns - now_ns
        idle = fleet.state_of(number).running is batch
        backend.sent[batch.batch_id] = SentBatch(now_ns, start_in_ns, idle, frontends)
        application = batch.requests[0].application
        if application in self.lead.on_trial:
            self.lead.on_dispatch(now_ns, application, backend.link.peer.node)
        if idle:
            self.supervisor.expect(now_ns, number, batch)
        self.meters.on_dispatch(now_ns, number, batch)
        name = self.built.variants[batch.variant]
        inputs = self._take_inputs(batch, backend.link)
        order = Run(batch.batch_id, name, rids, start_in_ns, batch.plan_ns, inputs)
        fleet.send(backend.link, order)
        if self.built.estimators[application] is not None:
            self.notifier.send_estimates(batch)

    def _take_inputs(self, batch: Batch, backend: LinkPeer) -> tuple[Payload, ...]:
        """Inputs that lie in memory of the backend's node. Each is given to one backend alone,
        whose answer says that it has been read: any other one has to fetch it."""
        frontends, peer = self.fleet.frontends, backend.peer
        found: list[Payload] = []
        unread: dict[int, list[int]] = {}
        for request in batch.requests:
            payload, request.ticket = request.ticket, None
            if isinstance(payload, Payload):
                number = request.rid >> RID_BITS
                link = frontends.get(number)
                if (
                    link is not None
                    and link.peer.node == peer.node
                    and peer.protocol >= PLACES_FROM
                ):
                    found.append(payload)
                elif link is not None:
                    unread.setdefault(number, []).append(request.rid)
        for number, rids in unread.items():
            self.fleet.send(frontends[number], Unread(tuple(rids)))
        return tuple(found)

    def on_done(self, now_ns: int, link: LinkPeer, done: Done) -> bool:
        """End a batch; returns false where it does not run on that backend."""
        number, fleet = link.peer.number, self.fleet
        backend = fleet.backend_of(link)
        if backend is None:
            return False
        batch = fleet.state_of(number).running
        if batch is None or batch.batch_id != done.batch:
            detail = f"batch {done.batch} ended, which does not run here"
            link.close(CloseCode.MALFORMED, detail)
            return False
        ran = not done.failed and done.run_ns > 0
        self._learn(now_ns, link, batch, backend.sent.pop(done.batch), done, ran)
        left_out = fleet.in_flight.on_done(batch, done, fleet.frontends)
        if left_out and fleet.separation.active:
            for request in left_out:
                request.apart = fleet.separation.apart(now_ns, request)
        # Requests that did not run teach nothing about run times.
        size = batch.size - rows_of(left_out) if ran else 0
        if done.failed:
            self.supervisor.on_failed(now_ns, number, batch)
        spoilt = [each for each in batch.requests if each.rid in done.spoilt]
        spoilt = [each for each in spoilt if each not in left_out]
        if spoilt or (done.failed and batch.retry is not None):
            fleet.separation.on_error(now_ns, spoilt or batch.requests)
        if self.queries is not None and done.failed:
            self.queries.on_failed(batch, left_out)
        elif self.queries is not None:
            self.queries.on_batch(now_ns, batch, (*left_out, *spoilt), done.run_ns)
        self.engine.on_done(
            now_ns, number, done.run_ns, size, done.failed, left_out, spoilt, done.error
        )
        self.supervisor.on_done(now_ns, number, batch, ran)
        self.lead.replan_waiting(now_ns, batch.requests[0].application)
        fleet.on_idle(now_ns, number)
        return True

    def _learn(
        self, now_ns: int, link: LinkPeer, batch: Batch, sent: SentBatch, done: Done, ran: bool
    ) -> None:
        """Learn lead times and count the batch; one without results teaches no lead time."""
        number, node = link.peer.number, link.peer.node
        if ran:
            fetch_ns = sent.start_in_ns + done.start_late_ns
            away_ns = now_ns - sent.sent_at_ns - done.run_ns if sent.idle else None
            origins = self.fleet.nodes_of(sent.frontends)
            self.lead.on_batch(now_ns, batch, origins, node, fetch_ns, away_ns)
            if away_ns is not None:
                self.meters.round_trip.add(max(0, away_ns - max(0, fetch_ns)))
        link_ns = self.lead.links_ns.get(node, 0)
        self.meters.on_done(now_ns, number, batch, done.run_ns, link_ns, ran)
