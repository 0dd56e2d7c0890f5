"""The live router: a driver of the engine. It makes no decisions, and carries out the engine's."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fermata.foundation.logs import LOG, fields
from fermata.foundation.precise_timer import PreciseTimer
from fermata.foundation.units import ms
from fermata.partitioner.plan import Plan
from fermata.router.assembly import Assembly, RouterConfig, assemble
from fermata.router.core.engine import Engine
from fermata.router.core.events import (
    Advise,
    Answer,
    Compute,
    Dispatch,
    Drop,
    DropReason,
    EndSession,
    Load,
    Unload,
    Verdict,
)
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.directory import Directory
from fermata.router.links.messages import (
    PROTOCOL,
    RID_BITS,
    BackendStats,
    Cancel,
    ClientNetworkReport,
    Done,
    Drained,
    EndSequence,
    Evidence,
    FrontendStats,
    HandedOn,
    Hello,
    LoadVariant,
    Message,
    Place,
    Ready,
    Submit,
    Truth,
    UnloadVariant,
)
from fermata.router.live.clients.client_mapping import Assignments, ClientMapping
from fermata.router.live.computations import Computations
from fermata.router.live.dispatcher import BatchDispatcher
from fermata.router.live.fleet.fleet import Fleet
from fermata.router.live.fleet.peers import LinkPeer
from fermata.router.live.lead.lead_time import LeadTimeEstimator
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.policy_change import PolicySet, change_policies
from fermata.router.live.requests.doubtful_drops import DoubtfulDrops
from fermata.router.live.requests.submissions import Submissions
from fermata.router.live.subprocess_worker import Then, Work, run_now
from fermata.router.live.supervisor import BackendSupervisor
from fermata.router.policies.auto import notes
from fermata.router.telemetry.meters import Meters

REPLY_NS = ms(2)
"""Taken off a client's SLO by frontends, where the configuration does not say how much."""
REPLACED = Closed(CloseCode.LOST, "its spare has taken over")
OVERDUE = Closed(CloseCode.OVERDUE, "its batch should have ended long ago")


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
        make_timer: Callable[[Callable[[], None]], PreciseTimer],
        submit_work: Callable[[Work, Then], None] = run_now,
        stand_down: Callable[[str], None] = lambda reason: None,
        make_meters: Callable[[RouterConfig, Assembly], Meters] = Meters,
        confirm: Callable[[int, Callable[[], None]], None] = lambda term, then: then(),
    ) -> None:
        """`submit_work` has work done off the loop. `stand_down` is called once there is a newer
        router: this one must not go on. `confirm` takes a term that peers claim, and calls back
        where the cluster's record has it too."""
        config = self.config = _with_reply(config)
        self.term = term
        self.clock = clock
        self.call_soon = call_soon
        self.stand_down = stand_down
        self.confirm = confirm
        built = self.built = assemble(config)
        for note in notes(config.applications, config.policy):
            LOG.info(note)
        self.engine: Engine = built.engine
        self.fleet = Fleet(config, built)
        self.lead = LeadTimeEstimator(config, built)
        self.meters = make_meters(config, built)
        self.strays = 0
        """Messages that their sender had no business to send."""
        self.clients = ClientMapping(built)
        self.computations = Computations(self.engine, clock, submit_work, self._settle_soon)
        self.notifier = FrontendNotifier(built, self.fleet, self.clients)
        self.supervisor = BackendSupervisor(built, self.fleet, self.notifier)
        self.doubtful = DoubtfulDrops(built, self.fleet)
        self.submissions = Submissions(
            *(built, self.fleet, self.lead, self.meters),
            *(self.clients, self.notifier, self.supervisor, self.doubtful),
        )
        self.queries = self.submissions.queries
        self.dispatcher = BatchDispatcher(
            built, self.fleet, self.lead, self.meters, self.notifier, self.supervisor, self.queries
        )
        self.settling = False
        self.stale = ""
        """Reason why this router must not go on: a newer one has been met."""
        self.started_at_ns = clock()
        for rank in self.engine.ranks:
            rank.settled_at_ns = self.started_at_ns
        self.timer = make_timer(self._on_timer)

    def hello(self, address: str = "", node: str = "") -> Hello:
        """The first message of this router on every link."""
        return Hello(PROTOCOL, "router", 0, self.term, address, node)

    # Links

    def on_up(self, link: LinkPeer) -> None:
        role = link.peer.role
        if role == "frontend":
            self.fleet.add_frontend(link)
            self.lead.on_origins(self.fleet.origins)
            self.notifier.on_frontend_up(link)
            self._settle_soon()
        elif role != "backend":
            detail = f"a router takes frontends and backends, not a {role}"
            link.close(CloseCode.WRONG_ROLE, detail)

    def on_down(self, link: LinkPeer, closed: Closed) -> None:
        self._end_link(self.clock(), link, closed)

    def _end_link(self, now_ns: int, link: LinkPeer, closed: Closed) -> None:
        number, role = link.peer.number, link.peer.role
        if role == "frontend" and self.fleet.has_frontend(link):
            self.fleet.remove_frontend(number)
            self.lead.on_origins(self.fleet.origins)
            self.notifier.on_frontend_down(number)
            self.meters.on_gone(role, number)
            queued = self.engine.outbox.queued
            if self.queries is not None:
                self.queries.on_frontend_down(now_ns, number)
            for rid in [rid for rid in queued if rid >> RID_BITS == number]:
                self.engine.on_cancel(now_ns, rid)
        elif role == "backend" and self.fleet.spares.take(link) is not None:
            self.meters.on_gone(role, number)
            LOG.info("spare gone", extra=fields(backend=number, reason=str(closed)))
        elif role == "backend" and self.fleet.backend_of(link) is not None:
            running = self.fleet.state_of(number).running
            self._remove_backend(now_ns, number, closed)
            if running is not None and closed.code is CloseCode.LOST and not closed.by_peer:
                self.supervisor.on_crash(now_ns, number, link.peer.node, running)
        self._settle_soon()
        self.on_refused(link, closed)

    def on_refused(self, link: LinkPeer, closed: Closed) -> None:
        """End a link that was not up; only a peer that has proven itself can have sent STALE."""
        if closed.code is CloseCode.STALE:
            self.confirm(closed.term, partial(self._on_stale, str(closed)))

    def _on_stale(self, reason: str) -> None:
        self.stale = reason
        self.stand_down(reason)

    def on_messages(self, link: LinkPeer, messages: list[Message]) -> None:
        now_ns = self.clock()
        if link.peer.role == "frontend":
            queries = self.queries
            for message in messages:
                if isinstance(message, Submit):
                    self.submissions.submit(now_ns, link, message)
                    continue
                if isinstance(message, HandedOn):
                    self._hand_on(now_ns, link, message)
                    continue
                if queries is not None:
                    queries.pass_on(now_ns, link)
                if isinstance(message, Cancel):
                    if queries is not None:
                        queries.on_cancel(now_ns, message.rid)
                    self.engine.on_cancel(now_ns, message.rid)
                elif isinstance(message, ClientNetworkReport):
                    self.clients.on_report(now_ns, link, message)
                elif isinstance(message, Evidence):
                    self._on_evidence(now_ns, message)
                elif isinstance(message, Place):
                    self._place(message)
                elif isinstance(message, Truth):
                    self._on_truth(message)
                elif isinstance(message, FrontendStats):
                    self._on_stats(link, message)
                else:
                    self._stray(link, message)
            if queries is not None:
                queries.pass_on(now_ns, link)
        else:
            for message in messages:
                if isinstance(message, Done):
                    self.strays += not self.dispatcher.on_done(now_ns, link, message)
                    self.doubtful.stale = True
                elif isinstance(message, Ready):
                    self._on_ready(now_ns, link, message)
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

    def _on_stats(self, link: LinkPeer, stats: FrontendStats) -> None:
        if self.meters.on_frontend(link.peer.number, stats):
            self.notifier.send_shares(link, stats)
        else:
            self.strays += 1
            link.close(CloseCode.MALFORMED, "FrontendStats that do not add up")

    def _hand_on(self, now_ns: int, link: LinkPeer, message: HandedOn) -> None:
        queries = self.queries
        if queries is not None and not queries.on_handed_on(now_ns, link, message):
            self.strays += 1
            link.close(CloseCode.MALFORMED, f"{message.rid} was handed on to other stages")

    def _place(self, place: Place) -> None:
        """Load or unload it on every backend that is here; one that comes later brings what its
        configuration says."""
        fleet, order = self.fleet, LoadVariant if place.load else UnloadVariant
        if fleet.availability.on_ask(place.application, place.load):
            self.notifier.publish_unavailable()
        for variant in fleet.availability.variants.get(place.application, ()):
            for backend in fleet.backends.values():
                fleet.send(backend.link, order(variant))

    def _on_evidence(self, now_ns: int, evidence: Evidence) -> None:
        if evidence.votes:
            self.built.on_votes(now_ns, evidence.rid, evidence.votes, evidence.answers)
        else:
            self.engine.on_update(now_ns, evidence.rid, evidence.accuracies)

    def _on_truth(self, truth: Truth) -> None:
        told = truth.label, truth.variant, truth.answer, truth.tenant
        self.built.on_truth(truth.application, *told)

    # Backends

    def _on_ready(self, now_ns: int, link: LinkPeer, ready: Ready) -> None:
        number, fleet = link.peer.number, self.fleet
        leaves = not ready.variants and not ready.empty
        spare = fleet.spares.take(link) if leaves or ready.spare_of < 0 else None
        if leaves:
            self._drain(now_ns, link)
            return
        if ready.spare_of >= 0:
            if fleet.backend_of(link) is None:
                fleet.on_spare(link, ready)
            else:
                self._stray(link, ready)
            return
        if spare is not None and spare.first in fleet.backends:
            # Its process has ended, though the end of its link has not been read yet.
            ended = fleet.backends[spare.first].link
            self._end_link(now_ns, ended, REPLACED)
            ended.close(REPLACED.code, REPLACED.detail)
        if fleet.backend_of(link) is None:
            if number in fleet.backends:
                # It came back before its old link was seen to end.
                closed = Closed(CloseCode.SUPERSEDED, "it came anew")
                self._remove_backend(now_ns, number, closed)
            self.lead.on_backend_up(number, link.peer.node)
            self.supervisor.on_up(now_ns, number)
        if fleet.on_ready(now_ns, link, ready):
            self.notifier.publish_unavailable()

    def _drain(self, now_ns: int, link: LinkPeer) -> None:
        """Let a backend go; one that has not announced itself here has nothing to finish. One that
        holds sequences goes on until they have ended, or it waits no longer."""
        if self.fleet.backend_of(link) is not None:
            if not self.fleet.vacate(now_ns, link):
                return
            self.fleet.drain(now_ns, link.peer.number)
            # Batches granted in this tick go out before the message that nothing more comes.
            self._carry_out(now_ns)
        self.fleet.send(link, Drained())

    def _remove_backend(self, now_ns: int, number: int, closed: Closed) -> None:
        held = self.fleet.remove_backend(now_ns, number, hung=closed is OVERDUE)
        self.meters.on_gone("backend", number)
        self.lead.on_backend_gone(number)
        self.supervisor.on_gone(number, closed, held)

    # The control plane

    def place(self, plan: Plan) -> list[str]:
        """Serve applications by this plan; returns those still on their way. Requests that wait,
        now or later, for one which lives elsewhere are handed back."""
        now_ns, known = self.clock(), self.built.applications
        going = self.fleet.placement.place(now_ns, plan)
        self.fleet.rehoused = self.fleet.placement.moves
        self.doubtful.stale = True
        served = self.fleet.placement.served
        away = frozenset(number for name, number in known.items() if name not in served)
        if self.queries is not None:
            self.queries.on_away(now_ns, away)
        self.engine.set_away(now_ns, away)
        self.clients.on_away(away)
        for drop in self.doubtful.hand_back():
            self._tell(now_ns, drop)
        self._settle_soon()
        return going

    def set_directory(self, directory: Directory) -> None:
        """Tell frontends where applications live."""
        self.notifier.set_directory(directory)
        self._settle_soon()

    def withdraw(self, application: str, reason: str) -> None:
        """Serve an application no more; requests that it has are still served."""
        self.fleet.availability.withdraw(application, reason)
        self.notifier.publish_unavailable()
        self._settle_soon()

    def set_target(self, wanted: Sequence[int]) -> None:
        """Set the number of backends that each sub-cluster should have."""
        self.fleet.placement.set_target(self.clock(), wanted)
        self.doubtful.stale = True
        self._settle_soon()

    def take_plans(self, plans: Assignments) -> None:
        """Map the clients as decided."""
        self.clients.take_plans(self.clock(), plans)
        self._settle_soon()

    def set_policies(self, wanted: PolicySet) -> list[str]:
        """Serve by these policies from now on; returns the applications that are served otherwise.
        Queued requests stay queued, and batches that run end as they would have."""
        # What has been decided so far is carried out: it belongs to the policies that were.
        self._settle()
        now_ns = self.clock()
        changed = change_policies(now_ns, self.built, wanted)
        self.fleet.rehoused = self.fleet.placement.moves
        self.config = self.built.config
        for name in changed:
            self.computations.trouble.pop(self.built.applications[name], None)
        self.clients.renew()
        self.fleet.even_out(now_ns)
        self._settle_soon()
        return changed

    # Time and effects

    def _settle_soon(self) -> None:
        """Once for all that this loop tick brings, so that a burst is batched together."""
        if not self.settling:
            self.settling = True
            self.call_soon(self._settle)

    def _on_timer(self) -> None:
        now_ns = self.clock()
        late_ns = now_ns - self.engine.wake_at_ns()
        if late_ns >= 0:
            self.lead.on_timer(late_ns)
            self.meters.timer_late.add(late_ns)
        self._settle()

    def _settle(self) -> None:
        self.settling = False
        now_ns = self.clock()
        for link in self.fleet.vacated(now_ns) if self.fleet.vacating else ():
            self._drain(now_ns, link)
        for backend in self.supervisor.hung(now_ns):
            link, running = self.fleet.backends[backend].link, self.fleet.state_of(backend).running
            # It may come back when it has ended its batch.
            self._remove_backend(now_ns, backend, OVERDUE)
            link.close(OVERDUE.code, OVERDUE.detail)
            if running is not None:
                self.supervisor.on_hang(now_ns, backend, link.peer.node, running)
        self.supervisor.check(now_ns)
        self.engine.on_time(now_ns)
        # A verdict may eject a backend, whose queue then goes elsewhere.
        while self.engine.outbox.effects:
            self._carry_out(now_ns)
        if self.fleet.rehoused and self.fleet.divide(now_ns):
            self.clients.renew()
            self._carry_out(now_ns)
        if self.doubtful.held:
            for drop in self.doubtful.release(now_ns):
                self._tell(now_ns, drop)
        self.notifier.publish_fleet()
        self.fleet.flush()
        wake_at_ns = min(self.engine.wake_at_ns(), self.supervisor.wake_at_ns())
        self.timer.set(min(wake_at_ns, self.doubtful.wake_at_ns()))

    def _carry_out(self, now_ns: int) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Dispatch):
                # A backend that was lost in the same tick: its requests are queued again.
                if self.engine.is_current(effect):
                    self.dispatcher.dispatch(now_ns, effect.backend, effect.batch)
            elif isinstance(effect, Drop):
                self.meters.on_drop(now_ns, effect)
                if not self.doubtful.hold(now_ns, effect):
                    self._tell(now_ns, effect)
                if effect.reason == DropReason.LATE:
                    self.lead.on_late(now_ns, effect.request)
            elif isinstance(effect, Answer):
                self.meters.on_short_circuit(effect.request)
                self.notifier.short_circuit(effect)
            elif isinstance(effect, Verdict):
                self.supervisor.on_verdict(now_ns, effect)
            elif isinstance(effect, Advise):
                self.notifier.advise(effect)
            elif isinstance(effect, Compute):
                self.computations.begin(effect)
            elif isinstance(effect, EndSession):
                if effect.backend in self.fleet.backends:
                    link = self.fleet.backends[effect.backend].link
                    name = self.built.variants[effect.variant]
                    self.fleet.send(link, EndSequence(name, effect.key))
            elif isinstance(effect, Load | Unload) and effect.backend in self.fleet.backends:
                name = self.built.variants[effect.variant]
                order = LoadVariant(name) if isinstance(effect, Load) else UnloadVariant(name)
                self.fleet.send(self.fleet.backends[effect.backend].link, order)

    def _tell(self, now_ns: int, drop: Drop) -> None:
        """Tell the frontend, and the query that it is part of, why a request was dropped."""
        self.notifier.on_drop(now_ns, drop)
        if self.queries is not None:
            self.queries.on_drop(now_ns, drop)

    def stop(self) -> None:
        self.timer.close()


def _with_reply(config: RouterConfig) -> RouterConfig:
    """The same, with what its frontends take off an SLO for the reply."""
    applications = tuple(
        replace(each, reply_ns=REPLY_NS) if each.reply_ns is None else each
        for each in config.applications
    )
    return replace(config, applications=applications)
