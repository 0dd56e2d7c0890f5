"""The live router: the third driver of the engine. It decides nothing; it only carries out."""

from collections.abc import Callable, Sequence
from functools import partial

from fermata.partitioner.plan import Plan
from fermata.router.assembly import Assembly, RouterConfig, assemble
from fermata.router.core.engine import Engine
from fermata.router.core.events import (
    Advise,
    Answer,
    Batch,
    Compute,
    Dispatch,
    Drop,
    DropReason,
    Load,
    Request,
    Unload,
    Verdict,
)
from fermata.router.core.lane import BackendState
from fermata.router.health.availability import Availability
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import (
    PROTOCOL,
    RID_BITS,
    BackendStats,
    Cancel,
    ClientNetworkReport,
    Done,
    Drained,
    Dropped,
    Evidence,
    FrontendAddress,
    FrontendStats,
    Hello,
    LoadVariant,
    Message,
    Place,
    Ready,
    Run,
    Submit,
    UnloadVariant,
)
from fermata.router.live.accelerator_types import AcceleratorTypes
from fermata.router.live.batch_limits import BatchSizeLimits
from fermata.router.live.client_mapping import ClientMapping
from fermata.router.live.in_flight import InFlight
from fermata.router.live.lead_time import LeadTimeEstimator
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.peers import BackendPeer, LinkPeer
from fermata.router.live.precise_timer import PreciseTimer
from fermata.router.live.subprocess_worker import Failed, Then, Work, run_now
from fermata.router.live.supervisor import BackendSupervisor
from fermata.router.placement.live_placement import LivePlacement
from fermata.router.policies.jellyfish.mapping_problem import Assignment
from fermata.router.telemetry.meters import Meters

UNKNOWN = "unknown-application"


class LiveRouter:
    """Feeds one engine from links and a clock, and sends its effects out (`LinkEvents`).

    Nothing here is durable: when it dies, backends announce themselves and frontends submit anew.
    """

    def __init__(
        self,
        config: RouterConfig,
        term: int,
        clock: Callable[[], int],
        call_soon: Callable[[Callable[[], None]], object],
        make_wake: Callable[[Callable[[], None]], PreciseTimer],
        do_aside: Callable[[Work, Then], None] = run_now,
        stand_down: Callable[[str], None] = lambda reason: None,
        make_meters: Callable[[RouterConfig, Assembly], Meters] = Meters,
        confirm: Callable[[int, Callable[[], None]], None] = lambda term, then: then(),
    ) -> None:
        """`stand_down` is called once there is a newer router: this one must not go on. `confirm`
        takes a term that peers claim, and calls back where the cluster's record has it too."""
        self.config = config
        self.term = term
        self.clock = clock
        self.call_soon = call_soon
        self.do_aside = do_aside
        self.stand_down = stand_down
        self.confirm = confirm
        built = self.built = assemble(config)
        self.engine: Engine = built.engine
        self.frontends: dict[int, LinkPeer] = {}
        self.backends: dict[int, BackendPeer] = {}
        self.away = InFlight()
        self.placement = LivePlacement(built)
        self.lead = LeadTimeEstimator(config, built)
        self.meters = make_meters(config, built)
        self.unknown = 0
        self.strays = 0
        """Messages that made no sense from who sent them."""
        self.presence = Availability(
            {each.name: tuple(v.name for v in each.variants) for each in config.applications}
        )
        self.kinds = AcceleratorTypes(built, config.kind)
        self.room = BatchSizeLimits(built)
        self.clients = ClientMapping(built)
        self.trouble: dict[int, str] = {}
        """By application: how the last computation failed that was not made good since."""
        self.word = FrontendNotifier(
            built, self.presence, self.clients, self.frontends, self.backends, self._say
        )
        self.guard = BackendSupervisor(
            built, self.backends, self.presence, self.word, self._lose, self._spare
        )
        self.touched: dict[LinkPeer, None] = {}
        """Links that have something to say; in order, so that one seed is one story."""
        self.settling = False
        self.stale = ""
        """Why this router must not go on: a newer one has been met."""
        self.started_at_ns = clock()
        for rank in self.engine.ranks:
            rank.settled_at_ns = self.started_at_ns
        self.wake = make_wake(self._on_wake)

    def hello(self, address: str = "", node: str = "") -> Hello:
        """The first message of this router on every link."""
        return Hello(PROTOCOL, "router", 0, self.term, address, node)

    # Links

    def on_up(self, link: LinkPeer) -> None:
        number, role = link.peer.number, link.peer.role
        if role == "frontend":
            for backend in self.backends.values():
                backend.met.discard(number)
            self.word.on_frontend_up(link)
            self._settle_soon()
        elif role != "backend":
            detail = f"a router takes frontends and backends, not a {role}"
            link.close(CloseCode.WRONG_ROLE, detail)

    def on_down(self, link: LinkPeer, closed: Closed) -> None:
        number, role = link.peer.number, link.peer.role
        now_ns = self.clock()
        if role == "frontend" and self.frontends.get(number) is link:
            self.word.on_frontend_down(number)
            self.meters.on_gone(role, number)
            queued = self.engine.outbox.queued
            for rid in [rid for rid in queued if rid >> RID_BITS == number]:
                self.engine.on_cancel(now_ns, rid)
        elif role == "backend":
            backend = self.backends.get(number)
            if backend is not None and backend.link is link:
                running = self._state(number).running
                self._lose(now_ns, number, closed)
                if running is not None and closed.code is CloseCode.LOST and not closed.by_peer:
                    self.guard.on_crash(now_ns, number, link.peer.node, running)
        self._settle_soon()
        self.on_refused(link, closed)

    def on_refused(self, link: LinkPeer, closed: Closed) -> None:
        """A link has ended: only a peer that has proven itself can have said STALE."""
        if closed.code is CloseCode.STALE:
            self.confirm(closed.term, partial(self._on_stale, str(closed)))

    def _on_stale(self, reason: str) -> None:
        self.stale = reason
        self.stand_down(reason)

    def on_messages(self, link: LinkPeer, messages: list[Message]) -> None:
        now_ns = self.clock()
        if link.peer.role == "frontend":
            for message in messages:
                if isinstance(message, Submit):
                    self._submit(now_ns, link, message)
                elif isinstance(message, Cancel):
                    self.engine.on_cancel(now_ns, message.rid)
                elif isinstance(message, ClientNetworkReport):
                    self.clients.on_report(now_ns, link, message)
                elif isinstance(message, Evidence):
                    self._look(now_ns, message)
                elif isinstance(message, Place):
                    self._place(message)
                elif isinstance(message, FrontendStats):
                    self._count(link, message)
                else:
                    self._stray(link, message)
        else:
            for message in messages:
                if isinstance(message, Done):
                    self._done(now_ns, link, message)
                elif isinstance(message, Ready):
                    self._ready(now_ns, link, message)
                elif isinstance(message, BackendStats):
                    self.meters.on_backend(link.peer.number, message)
                else:
                    self._stray(link, message)
        self._settle_soon()

    def _stray(self, link: LinkPeer, message: Message) -> None:
        self.strays += 1
        detail = f"{type(message).__name__} from a {link.peer.role}"
        link.close(CloseCode.WRONG_ROLE, detail)

    # Frontends

    def _count(self, link: LinkPeer, stats: FrontendStats) -> None:
        if self.meters.on_frontend(link.peer.number, stats):
            self.word.shares(link, stats)
        else:
            self.strays += 1
            link.close(CloseCode.MALFORMED, "FrontendStats that do not add up")

    def _submit(self, now_ns: int, link: LinkPeer, submit: Submit) -> None:
        application = self.built.applications.get(submit.application)
        if application is None:
            self.unknown += 1
            self._say(link, Dropped(submit.rid, UNKNOWN))
            return
        rid = submit.rid
        outbox = self.engine.outbox
        if rid in outbox.queued or rid in outbox.granted or self.away.is_asked_again(rid):
            return
        if self.guard.quarantine.rests(now_ns, application):
            self._say(link, Dropped(rid, DropReason.QUARANTINED))
            return
        self.meters.applications[application].received += 1
        deadline_ns = now_ns + submit.slo_ns
        request = Request(
            rid,
            application,
            now_ns,
            deadline_ns,
            max(deadline_ns, now_ns + submit.hard_limit_ns),
            submit.client,
            submit.priority,
        )
        request.tenant = submit.tenant
        wishes = self.clients.wishes
        request.allowed = wishes.allowed(application, submit.accuracy_floor, submit.pinned)
        hurry = submit.slo_ns < self.lead.needs_ns[application]
        if hurry and self.lead.refuses(now_ns, link.peer.node, request):
            self._refuse(now_ns, request)
        else:
            self.engine.on_request(now_ns, request)

    def _refuse(self, now_ns: int, request: Request) -> None:
        """End a request that has no chance before anyone makes room for it."""
        drop = Drop(request, DropReason.LATE)
        self.engine.ledger.on_drop(request, drop.reason)
        self.meters.on_drop(now_ns, drop)
        self.word.dropped(drop)

    def _place(self, place: Place) -> None:
        """Every backend that is here; one that comes later brings what its configuration says."""
        if self.presence.on_ask(place.application, place.load):
            self.word.absent()
        say = LoadVariant if place.load else UnloadVariant
        for variant in self.presence.variants.get(place.application, ()):
            for backend in self.backends.values():
                self._say(backend.link, say(variant))

    def _look(self, now_ns: int, evidence: Evidence) -> None:
        if evidence.votes:
            self.built.on_votes(now_ns, evidence.rid, evidence.votes)
        else:
            self.engine.on_update(now_ns, evidence.rid, evidence.accuracies)

    # Backends

    def _ready(self, now_ns: int, link: LinkPeer, ready: Ready) -> None:
        number = link.peer.number
        names = set(ready.variants)
        resident = frozenset(
            variant for variant, name in enumerate(self.built.variants) if name in names
        )
        whole = None if len(resident) == len(self.built.variants) else resident
        if self.config.swap:
            # It can run them all, and holds none yet.
            whole = frozenset()
        known = self.backends.get(number)
        serves = bool(names) or ready.empty
        self.word.outdated = True
        if serves and self.presence.on_ready(number, names, dict(ready.trouble)):
            self.word.absent()
        here = known is not None and known.link is link
        if not serves:
            self._drain(now_ns, link, here)
            return
        self.room.on_ready(number, names, ready.limits)
        if here:
            if not self.config.swap:
                self.engine.on_resident(now_ns, number, whole)
            self.placement.on_held(now_ns, number, resident)
            return
        if known is not None:
            # It came back before its old link was seen to end.
            self._lose(now_ns, number, Closed(CloseCode.SUPERSEDED, "it came anew"))
        self.backends[number] = BackendPeer(link)
        self.lead.on_backend_up(number, link.peer.node)
        self.guard.on_up(now_ns, number)
        owner = self.built.ownership.take(number)
        kind = self.kinds.number_of(ready)
        rank = self.placement.take(number, resident)
        self.engine.on_backend_up(now_ns, number, kind, rank, owner, whole)
        self.placement.on_held(now_ns, number, resident)

    def _drain(self, now_ns: int, link: LinkPeer, here: bool) -> None:
        """A backend wants to go; one that this router has not met has nothing to finish."""
        number = link.peer.number
        if here:
            self._spare(now_ns, number)
            # Batches granted in this tick go out before the message that nothing more comes.
            self._carry_out(now_ns)
        self._say(link, Drained())

    def _spare(self, now_ns: int, number: int) -> None:
        """Give a backend nothing more."""
        self.engine.on_drain(now_ns, number)
        self.placement.on_gone(now_ns, number)

    # The control plane

    def place(self, plan: Plan) -> list[str]:
        """Serve applications by this plan; returns those still on their way."""
        going = self.placement.place(self.clock(), plan)
        self._settle_soon()
        return going

    def withdraw(self, application: str, reason: str) -> None:
        """Send nobody to an application any more; whoever it has is served."""
        self.presence.withdraw(application, reason)
        self.word.absent()
        self._settle_soon()

    def set_target(self, wanted: Sequence[int]) -> None:
        """How many backends each sub-cluster should have."""
        self.placement.set_target(self.clock(), wanted)
        self._settle_soon()

    def take_plans(self, plans: dict[int, Assignment]) -> None:
        """Map the clients as decided."""
        self.clients.take_plans(self.clock(), plans)
        self._settle_soon()

    def _state(self, backend: int) -> BackendState:
        return self.engine.backend_rank[backend].backends[backend]

    def _lose(self, now_ns: int, number: int, closed: Closed) -> None:
        del self.backends[number]
        self.meters.on_gone("backend", number)
        self.room.on_gone(number)
        self.presence.on_backend_down(number)
        state = self._state(number)
        held = 0
        for batch in (state.running, state.queued):
            if batch is not None:
                held += len(batch.requests)
                self.away.on_lost(batch)
        self.guard.on_gone(number, closed, held)
        self.built.ownership.release(number)
        self.engine.on_backend_down(now_ns, number)
        self.lead.on_backend_gone(number)
        self.placement.on_gone(now_ns, number)

    def _done(self, now_ns: int, link: LinkPeer, done: Done) -> None:
        number = link.peer.number
        backend = self.backends.get(number)
        if backend is None or backend.link is not link:
            self.strays += 1
            return
        running = self._state(number).running
        if running is None or running.batch_id != done.batch:
            self.strays += 1
            detail = f"batch {done.batch} ended, which does not run here"
            link.close(CloseCode.MALFORMED, detail)
            return
        sent_at_ns, start_in_ns, idle, frontends = backend.sent.pop(done.batch)
        node, application = link.peer.node, running.requests[0].application
        away_ns = now_ns - sent_at_ns - done.run_ns if idle else None
        ran = not done.failed and done.run_ns > 0
        if ran:
            fetch_ns = start_in_ns + done.start_late_ns
            here = self.frontends
            origins = {here[each].peer.node for each in frontends if each in here}
            self.lead.on_batch(now_ns, running, origins, node, fetch_ns, away_ns)
            if away_ns is not None:
                self.meters.round_trip.add(max(0, away_ns - max(0, fetch_ns)))
        link_ns = self.lead.links_ns.get(node, 0)
        self.meters.on_done(now_ns, number, running, done.run_ns, link_ns, ran)
        left_out = self.away.on_done(running, done, self.frontends)
        # Requests that did not run teach nothing about run times.
        size = len(running.requests) - len(left_out) if ran else 0
        if done.failed:
            self.guard.on_failed(now_ns, number, running)
        self.engine.on_done(now_ns, number, done.run_ns, size, done.failed, left_out)
        self.guard.on_done(now_ns, number, running, ran)
        self.lead.replan_waiting(now_ns, application)
        self.placement.on_idle(now_ns, number)

    # Time and effects

    def _settle_soon(self) -> None:
        """Once for all that this loop tick brings, so that a burst is batched together."""
        if not self.settling:
            self.settling = True
            self.call_soon(self._settle)

    def _on_wake(self) -> None:
        now_ns = self.clock()
        late_ns = now_ns - self.engine.wake_at_ns()
        if late_ns >= 0:
            self.lead.on_timer(late_ns)
            self.meters.timer_late.add(late_ns)
        self._settle()

    def _settle(self) -> None:
        self.settling = False
        now_ns = self.clock()
        self.guard.look(now_ns)
        self.engine.on_time(now_ns)
        # A verdict may eject a backend, whose queue then goes elsewhere.
        while self.engine.outbox.effects:
            self._carry_out(now_ns)
        self.word.fleet()
        for link in self.touched:
            link.flush()
        self.touched.clear()
        self.wake.set(min(self.engine.wake_at_ns(), self.guard.wake_at_ns()))

    def _carry_out(self, now_ns: int) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Dispatch):
                # A backend that was lost in the same tick: its requests are queued again.
                if self.engine.stands(effect):
                    self._dispatch(now_ns, effect.backend, effect.batch)
            elif isinstance(effect, Drop):
                self.meters.on_drop(now_ns, effect)
                self.word.dropped(effect)
                if effect.reason == DropReason.LATE:
                    self.lead.on_late(now_ns, effect.request)
            elif isinstance(effect, Answer):
                self.word.short_circuit(effect)
            elif isinstance(effect, Verdict):
                self.guard.on_verdict(now_ns, effect)
            elif isinstance(effect, Advise):
                self.word.advise(effect)
            elif isinstance(effect, Compute):
                self.do_aside(effect.work, partial(self._computed, effect))
            elif isinstance(effect, Load | Unload) and effect.backend in self.backends:
                name = self.built.variants[effect.variant]
                say = LoadVariant(name) if isinstance(effect, Load) else UnloadVariant(name)
                self._say(self.backends[effect.backend].link, say)

    def _computed(self, asked: Compute, result: object) -> None:
        now_ns = self.clock()
        if isinstance(result, Failed):
            self.trouble[asked.application] = result.reason
            self.engine.on_compute_failed(now_ns, asked.application, asked.work)
        else:
            self.trouble.pop(asked.application, None)
            self.engine.on_computed(now_ns, asked.application, result)
        self._settle_soon()

    def _say(self, link: LinkPeer, message: Message) -> None:
        link.send(message)
        self.touched[link] = None

    def _dispatch(self, now_ns: int, number: int, batch: Batch) -> None:
        backend = self.backends[number]
        rids = tuple([request.rid for request in batch.requests])
        frontends = {rid >> RID_BITS for rid in rids}
        for frontend in frontends - backend.met:
            link = self.frontends.get(frontend)
            if link is not None:
                backend.met.add(frontend)
                backend.link.send(FrontendAddress(frontend, link.peer.address, link.peer.node))
        self.away.rids.update(rids)
        start_in_ns = batch.start_at_ns - now_ns
        idle = self._state(number).running is batch
        backend.sent[batch.batch_id] = (now_ns, start_in_ns, idle, frontends)
        application = batch.requests[0].application
        if application in self.lead.on_trial:
            self.lead.on_dispatch(now_ns, application, backend.link.peer.node)
        if idle:
            self.guard.expect(now_ns, number, batch)
        self.meters.on_dispatch(now_ns, number, batch)
        name = self.built.variants[batch.variant]
        self._say(backend.link, Run(batch.batch_id, name, rids, start_in_ns, batch.plan_ns))
        if self.built.estimators[application] is not None:
            self.word.estimates(batch)

    def stop(self) -> None:
        self.wake.close()
