"""Invariants of every step, and of the end, when all is well again."""

from collections import Counter

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.actors import Call, SimulatedActor
from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.control import ControlHost
from fermata.fault_simulator.deployment import WINDOW_S
from fermata.fault_simulator.environment.world import InvariantViolationError, VirtualLoop
from fermata.fault_simulator.processes import BackendHost, RouterHost
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds
from fermata.router.core.events import Dispatch
from fermata.router.core.matching.matcher import RULES
from fermata.router.links.messages import FleetStatus
from fermata.router.live.driver import LiveRouter

LOOK_NS = ms(5)
YOUNG_NS = seconds(3 * WINDOW_S) - LOOK_NS
"""A control plane cannot have seen three windows before."""
SEEN_NS = seconds(4)
"""Until a control plane has met the router that leads, while both run and calls arrive."""


OVERLOAD = frozenset(("window", "shed", "full"))
"""Refusals that speak of too much load."""


class Invariants:
    """Looks at a process after each of its steps, and at the ledger every few milliseconds."""

    def __init__(self, system: SimulatedDeployment) -> None:
        self.system = system
        self.obeyed: dict[VirtualLoop, int] = {}
        """The highest term whose orders a backend has taken."""
        self.given_up: dict[int, set[int]] = {}
        """By term: backends that seemed to hang."""
        self.hosts: dict[VirtualLoop, object] = {}
        self.told = system.wanted
        """How many backends a control plane has asked for last."""
        self.meeting: tuple[ControlHost, RouterHost] | None = None
        """The control plane and the router that should know each other, or soon will."""
        self.met_at_ns = 0
        system.world.looks.append(self.look)
        system.clients.on_refused = self.check_reason
        system.on_start.append(self._meet)
        for host in (*system.frontends, *system.backends, *system.controls):
            self._meet(host)
        self._tick()

    def _meet(self, what: object) -> None:
        if isinstance(what, RouterHost | BackendHost | ControlHost):
            self.hosts[what.loop] = what
        elif isinstance(what, SimulatedActor):
            what.on_call.append(self._check_call)

    def look(self, loop: VirtualLoop) -> None:
        if self.system.world.trouble:
            raise InvariantViolationError(self.system.world.trouble[0])
        host = self.hosts.get(loop)
        if isinstance(host, RouterHost):
            if host.live is not None:
                check_grants(host.live)
                self._check_given_up(host.live)
                self._check_ejected(host.live)
        elif isinstance(host, BackendHost):
            self._check_backend(host)

    def _check_call(self, call: Call) -> None:
        """The number of backends stays within its limits, and no control plane releases any before
        it has seen for long enough that they are idle."""
        host, spec = self.hosts.get(call.caller), self.system.deployment.autoscaler
        if call.name != "set_target" or not isinstance(host, ControlHost):
            return
        assert spec is not None
        wanted = sum(call.given[0])
        if not spec.minimum <= wanted <= spec.maximum:
            raise InvariantViolationError(f"{host.loop.name} asks for {wanted} backends")
        young = self.system.world.now_ns - host.started_at_ns < YOUNG_NS
        if host.alone and young and wanted < min(self.told, self.system.wanted):
            raise InvariantViolationError(
                f"{host.loop.name} has just come and asks for {wanted} backends, not {self.told}"
            )
        self.told = wanted

    def _check_given_up(self, live: LiveRouter) -> None:
        """Only a backend to which something has happened may seem to hang."""
        if not live.supervisor.given_up:
            return
        given_up = self.given_up.setdefault(live.term, set())
        for backend in set(live.supervisor.given_up) - given_up:
            given_up.add(backend)
            if backend not in self.system.harm.excused and not self._has_hung(backend):
                raise InvariantViolationError(
                    f"backend {backend} was given up, and nothing was wrong with it"
                )

    def _has_hung(self, backend: int) -> bool:
        """Whether an input has hung a backend of this number."""
        return any(
            host.machine.hung_on
            for host in self._backend_hosts()
            if host.process.settings.number == backend
        )

    def _backend_hosts(self) -> list[BackendHost]:
        """Every backend that has ever been."""
        return [each for each in self.hosts.values() if isinstance(each, BackendHost)]

    def _check_ejected(self, live: LiveRouter) -> None:
        """Only a backend that itself has failed may be ejected: no input's fault is its own."""
        ejected = live.supervisor.outliers.ejected
        if ejected and (innocent := ejected.keys() - self.system.harm.failed):
            raise InvariantViolationError(
                f"backends {sorted(innocent)} were ejected and had not failed"
            )

    def _tick(self) -> None:
        world = self.system.world
        for sent in self.system.clients.open.values():
            loop = sent.frontend.loop
            if not loop.held and world.now_ns > sent.due_ns + loop.held_ns - sent.held_ns:
                raise InvariantViolationError(
                    f"request {sent.number} of {loop.name} has no answer in time"
                )
        for frontend in self.system.frontends:
            table = frontend.hub.table
            held = sum(entry.size_bytes for entry in table.entries.values())
            if held != table.payload_bytes:
                raise InvariantViolationError(
                    f"{frontend.loop.name} counts {table.payload_bytes} not {held}"
                )
        self._check_hanging_inputs()
        self._check_meeting()
        world.after(LOOK_NS, self._tick)

    def _check_hanging_inputs(self) -> None:
        """An input that hangs a backend is not given to another one, router changes aside, nor
        backends that were lost for a fault of their own before they were found to hang."""
        system = self.system
        if not system.harm.hanging or len(system.routers) > len(system.seats):
            return
        met = Counter(
            number
            for host in self._backend_hosts()
            if host.process.settings.number not in system.harm.excused
            for number in host.machine.hung_on
        )
        for number, count in met.items():
            if count > 1:
                raise InvariantViolationError(f"request {number} has hung {count} backends")

    def check_reason(self, sent: Sent, refusal: Refusal) -> None:
        """Nobody is told of overload while there is no backend at all."""
        leader = self.system.router
        live = leader.live if leader is not None else None
        if refusal.reason not in OVERLOAD or live is None:
            return
        heard = sent.frontend.hub.readiness.fleet
        if heard is not None and heard.backends:
            # A link keeps the order: this was said while there was one, and is late.
            return
        up = [host for host in self.system.backends if host.loop.alive]
        if not up and not live.fleet.backends:
            self.system.clients.broken(f"request {sent.number} was refused as {refusal.reason}")

    def _check_meeting(self) -> None:
        """The control plane hears from the router that leads, whatever became of others."""
        system, now_ns = self.system, self.system.world.now_ns
        control, leader = system.control, system.router
        meeting = None
        if control is not None and leader is not None and control.ready:
            held = control.loop.held or leader.loop.held
            if leader.live is not None and not held and system.weather.calm:
                meeting = (control, leader)
        if meeting is None or meeting != self.meeting:
            self.meeting, self.met_at_ns = meeting, now_ns
        elif now_ns > self.met_at_ns + SEEN_NS:
            check_view(*meeting)

    def _check_backend(self, host: BackendHost) -> None:
        process = host.process
        if self.system.spares is not None:
            self.system.spares.check(host)
        router = process.router
        if router is not None and router.open:
            term, highest = router.peer.term, self.obeyed.get(host.loop, 0)
            if term < highest:
                raise InvariantViolationError(f"{host.loop.name} obeys term {term} after {highest}")
            self.obeyed[host.loop] = term
        if len(process.pipeline.jobs) > 1 + RULES.queued_max:
            raise InvariantViolationError(
                f"{host.loop.name} has {len(process.pipeline.jobs)} batches"
            )

    # When all is well again

    @staticmethod
    def check_served(probes: list[Sent]) -> None:
        """Requests sent after everything had healed were all served."""
        for sent in probes:
            outcome = sent.outcomes[0] if sent.outcomes else None
            if outcome is None or isinstance(outcome, Refusal):
                raise InvariantViolationError(
                    f"request {sent.number} was not served when all was well: {outcome}"
                )

    def check_clean(self) -> None:
        """Nothing is left of requests that have ended."""
        system = self.system
        self._check_control()
        if system.clients.open:
            raise InvariantViolationError(f"{len(system.clients.open)} requests have no answer")
        for frontend in system.frontends:
            hub = frontend.hub
            if hub.table.entries or hub.driver.waiters or hub.table.payload_bytes:
                raise InvariantViolationError(
                    f"{frontend.loop.name} keeps requests that have ended"
                )
            if hub.arena.extents.used and not hub.table.lent:
                raise InvariantViolationError(
                    f"{frontend.loop.name} keeps memory of requests that have ended"
                )
        for backend in system.backend_hosts():
            process = backend.process
            # One that tries to reach a frontend whose machine is gone does so for a while, and
            # models are loaded beside the batches.
            working = len(process.tasks) > len(process.variants.loading)
            busy = working and not process.frontends.unreachable
            if process.pipeline.jobs or busy or not process.pipeline.announced:
                raise InvariantViolationError(
                    f"{backend.loop.name} is not free: {process.pipeline.jobs}"
                )
        router = system.router
        assert router is not None
        live = router.live
        assert live is not None
        if live.engine.outbox.queued or live.fleet.in_flight.rids:
            raise InvariantViolationError(f"{router.loop.name} keeps requests that have ended")
        self._check_known(live)
        self._check_trusted(live)
        self._check_connections()

    def _check_control(self) -> None:
        """One control plane, with routers of its own making and as many backends as it wants."""
        system = self.system
        if not system.controlled():
            raise InvariantViolationError(
                "the control plane is not there, or has not what it wants"
            )
        assert system.control is not None
        assert system.control.control is not None
        system.control.control.check()
        assert system.router is not None
        check_view(system.control, system.router)
        scaling = system.control.control.scaling
        scaled = system.deployment.autoscaler is not None
        if scaling is not None and scaled and sum(scaling.targets) != len(system.backends):
            raise InvariantViolationError(
                f"{len(system.backends)} backends, wanted are {scaling.targets}"
            )
        alive = [each.loop.name for each in system.controls if each.loop.alive]
        if alive != [system.control.loop.name]:
            raise InvariantViolationError(f"control planes live on: {alive}")
        living = {each for each in system.routers if each.loop.alive}
        if living != set(system.seats):
            names = sorted(each.loop.name for each in living)
            raise InvariantViolationError(f"routers live on: {names}")

    def _check_known(self, live: LiveRouter) -> None:
        system = self.system
        wanted = system.backend_numbers()
        if sorted(live.fleet.backends) != wanted:
            raise InvariantViolationError(
                f"the router has backends {sorted(live.fleet.backends)}, not {wanted}"
            )
        wanted = system.frontend_numbers()
        if sorted(live.fleet.frontends) != wanted:
            raise InvariantViolationError(
                f"the router has frontends {sorted(live.fleet.frontends)}, not {wanted}"
            )
        fleet = FleetStatus(len(live.fleet.frontends), len(live.fleet.backends))
        for frontend in system.frontends:
            if frontend.hub.readiness.fleet != fleet:
                raise InvariantViolationError(f"{frontend.loop.name} has not heard of {fleet}")
        for number in live.fleet.backends:
            state = live.fleet.state_of(number)
            if state.batches():
                raise InvariantViolationError(f"backend {number} is thought to be busy")

    def _check_trusted(self, live: LiveRouter) -> None:
        """No backend, model or pair of processes is avoided any more."""
        ejected, cuts = live.supervisor.outliers.ejected, live.fleet.separation.cuts
        known = set(self.system.frontend_numbers())
        cut = {frontend: backends for frontend, backends in cuts.items() if frontend in known}
        if ejected or cut or live.fleet.availability.quarantined:
            raise InvariantViolationError(
                f"still avoided: backends {sorted(ejected)}, pairs {cut},"
                f" models {sorted(live.fleet.availability.quarantined)}"
            )

    def _check_connections(self) -> None:
        pairs = Counter(
            frozenset(each.loops)
            for each in self.system.world.network.connections
            if not any(end.over for end in each.ends)
        )
        for pair, count in pairs.items():
            if count > 1:
                names = sorted(loop.name for loop in pair)
                raise InvariantViolationError(f"{count} connections between {names}")


def check_view(control: ControlHost, leader: RouterHost) -> None:
    """The control plane shows the router that leads, and that one knows its targets."""
    assert control.control is not None
    assert control.control.watch is not None
    assert leader.live is not None
    seen = control.control.watch.latest
    if seen is None or seen.router.term != leader.live.term:
        raise InvariantViolationError(
            f"{control.loop.name} does not see that {leader.loop.name} leads"
        )
    if control.config.autoscaler is not None and not leader.live.fleet.placement.wanted:
        raise InvariantViolationError(
            f"{leader.loop.name} does not know what {control.loop.name} wants"
        )


def check_grants(live: LiveRouter) -> None:
    """Each request is queued, or in one batch of one backend, and the router knows which."""
    queued = live.engine.outbox.queued
    granted: set[int] = set()
    count = 0
    for rank in live.engine.ranks:
        for state in rank.backends.values():
            for batch in state.batches():
                count += len(batch.requests)
                granted.update([request.rid for request in batch.requests])
    if len(granted) != count:
        raise InvariantViolationError("a request is in two batches")
    if not granted.isdisjoint(queued):
        raise InvariantViolationError(
            f"requests {granted & queued.keys()} are queued and granted at once"
        )
    if live.fleet.in_flight.rids != granted:
        pending = {
            request.rid
            for effect in live.engine.outbox.effects
            if isinstance(effect, Dispatch)
            for request in effect.batch.requests
        }
        if live.fleet.in_flight.rids != granted - pending:
            raise InvariantViolationError(
                f"dispatched {sorted(live.fleet.in_flight.rids - granted)} that no backend has, "
                f"{sorted(granted - pending - live.fleet.in_flight.rids)} unknown"
            )
