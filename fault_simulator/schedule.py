"""The faults of a run, their times and spans: drawn from the seed."""

import random
from collections.abc import Callable
from functools import partial

from fermata.fault_simulator.control import ControlHost, Controller
from fermata.fault_simulator.deployment import ENCODED, PLAIN
from fermata.fault_simulator.processes import BackendHost, FrontendHost, RouterHost
from fermata.fault_simulator.strangers import crowd
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.fault_simulator.world import VirtualLoop
from fermata.foundation.units import SECOND, ms
from fermata.router.links.address import split_address

Heal = Callable[[], None]
Host = RouterHost | FrontendHost | BackendHost | ControlHost | Controller
SWING_NS = (ms(400), ms(1500))
SWING_RPS = (15.0, 60.0, 250.0)


class FaultSchedule:
    """Draws faults and load, and undoes what does not end by itself."""

    def __init__(
        self, system: SimulatedDeployment, rng: random.Random, kinds: tuple[str, ...] = ()
    ) -> None:
        self.system = system
        self.world = system.world
        self.rng = rng
        self.kinds = kinds or tuple(FAULTS)
        self.heals: list[Heal] = []

    def load(self, from_ns: int, to_ns: int, rate: float) -> None:
        """Requests at random, a few of them cancelled."""
        at_ns = from_ns + int(self.rng.expovariate(rate) * SECOND)
        while at_ns < to_ns:
            self.world.enter(at_ns, self._send)
            at_ns += int(self.rng.expovariate(rate) * SECOND)

    def swings(self, from_ns: int, to_ns: int) -> None:
        """Much, little, much: so that backends are asked for and released."""
        while from_ns < to_ns:
            until_ns = min(to_ns, from_ns + self.rng.randrange(*SWING_NS))
            self.load(from_ns, until_ns, self.rng.choice(SWING_RPS))
            from_ns = until_ns

    def _send(self) -> None:
        up = [each for each in self.system.frontends if each.up and not each.draining]
        if not up:
            return
        model = PLAIN if self.rng.random() < 0.7 else ENCODED
        sent = self.system.clients.send(model, self.rng.choice(up))
        if self.rng.random() < 0.05:
            self.world.after(self.rng.randrange(ms(40)), lambda: self.system.clients.cancel(sent))

    def faults(self, from_ns: int, to_ns: int, count: int) -> None:
        for _ in range(count):
            kind = self.rng.choice(self.kinds)
            at_ns = self.rng.randrange(from_ns, to_ns)
            self.world.enter(at_ns, partial(self._play, kind))

    def _play(self, kind: str) -> None:
        self.world.say("fault:", kind)
        heal = FAULTS[kind](self)
        if heal is not None:
            self.heals.append(heal)
            self.world.after(self._span_ns(), lambda: self._undo(heal))

    def _span_ns(self) -> int:
        """Short ones mostly: what lasts is noticed, what nearly lasts is harder."""
        return int(ms(20) * 100 ** self.rng.random())

    def _undo(self, heal: Heal) -> None:
        if heal in self.heals:
            self.heals.remove(heal)
            heal()

    def heal(self) -> None:
        """End everything that still goes on."""
        for heal in tuple(self.heals):
            self._undo(heal)

    # Whom it hits

    def backend(self) -> BackendHost | None:
        here = [each for each in self.system.backends if each.loop.alive and not each.leaving]
        if not here:
            return None
        host = self.rng.choice(here)
        self.system.excused.add(host.process.settings.number)
        return host

    def frontend(self) -> FrontendHost | None:
        """Any backend may wait for its inputs, whatever happens to it."""
        self.excuse_all()
        here = [each for each in self.system.frontends if each.up and not each.draining]
        return self.rng.choice(here) if here else None

    def excuse_all(self) -> None:
        self.system.excused.update(each.process.settings.number for each in self.system.backends)

    def host(self) -> Host | None:
        kind = self.rng.randrange(4)
        if kind == 0:
            self.excuse_all()
            return self.router()
        if kind == 1:
            system = self.system
            return system.control if self.rng.random() < 0.75 else system.controller
        return self.backend() if kind == 2 else self.frontend()

    def router(self) -> RouterHost | None:
        """The one that leads, mostly."""
        here = [each for each in self.system.seats if each is not None and each.live is not None]
        if here and self.rng.random() < 0.25:
            return self.rng.choice(here)
        return self.system.router

    def pair(self) -> tuple[VirtualLoop, VirtualLoop] | None:
        frontend, backend = self.frontend(), self.backend()
        routers = [each for each in self.system.seats if each is not None]
        if not routers or frontend is None or backend is None:
            return None
        ends = [each.loop for each in routers] + [frontend.loop, backend.loop]
        one, other = self.rng.sample(ends, 2)
        return one, other


def _kill(schedule: FaultSchedule) -> None:
    host = schedule.host()
    if isinstance(host, RouterHost):
        schedule.system.lose_router(host)
    elif isinstance(host, BackendHost):
        schedule.system.lose_backend(host)
    elif isinstance(host, ControlHost):
        schedule.system.lose_control()
    elif isinstance(host, Controller):
        schedule.system.lose_controller()
    elif host is not None:
        schedule.system.lose_frontend(host)


def _hold(stopped: bool) -> Callable[[FaultSchedule], Heal | None]:
    def play(schedule: FaultSchedule) -> Heal | None:
        host = schedule.host()
        if host is None or host.loop.held:
            return None
        host.loop.hold(stopped)
        return host.loop.go_on

    return play


def _loop_hangs(schedule: FaultSchedule) -> None:
    """A router's loop does not come back, while its heartbeat goes on."""
    schedule.excuse_all()
    host = schedule.router()
    if host is not None and host.live is not None and not host.loop.held:
        host.loop.hold(stopped=False)


def _cut(schedule: FaultSchedule) -> None:
    pair = schedule.pair()
    if pair is not None:
        schedule.world.network.cut(*pair)


def _flap(schedule: FaultSchedule) -> None:
    """A connection that comes and goes, while another one is slow."""
    pair, other = schedule.pair(), schedule.pair()
    if pair is None or other is None:
        return
    network, rng = schedule.world.network, schedule.rng
    network.delay(*other, rng.randrange(ms(1), ms(60)))
    at_ns = 0
    for _ in range(rng.randint(2, 8)):
        at_ns += rng.randrange(ms(10), ms(80))
        schedule.world.after(at_ns, partial(network.cut, *pair))
    schedule.world.after(at_ns, partial(network.delay, *other, 0))


def _part(schedule: FaultSchedule) -> Heal | None:
    pair = schedule.pair()
    if pair is None:
        return None
    schedule.world.network.part(*pair)
    return lambda: schedule.world.network.join(*pair)


def _delay(schedule: FaultSchedule) -> Heal | None:
    pair = schedule.pair()
    if pair is None:
        return None
    schedule.world.network.delay(*pair, schedule.rng.randrange(ms(1), ms(250)))
    return lambda: schedule.world.network.delay(*pair, 0)


def _slow(schedule: FaultSchedule) -> Heal | None:
    host = schedule.backend()
    if host is None:
        return None
    machine = host.machine
    machine.slowness = schedule.rng.uniform(1.5, 16.0)

    def heal() -> None:
        machine.slowness = 1.0

    return heal


def _hang(schedule: FaultSchedule) -> Heal | None:
    host = schedule.backend()
    if host is None:
        return None
    machine = host.machine
    machine.hangs = True

    def heal() -> None:
        machine.hangs = False

    return heal


def _failing(at_once: bool) -> Callable[[FaultSchedule], Heal | None]:
    def play(schedule: FaultSchedule) -> Heal | None:
        host = schedule.backend()
        if host is None:
            return None
        machine = host.machine
        machine.fails, machine.at_once = True, at_once
        schedule.system.failed.add(host.process.settings.number)

        def heal() -> None:
            machine.fails = False

        return heal

    return play


def _unusable(schedule: FaultSchedule) -> None:
    """An error that an accelerator's process does not recover from."""
    host = schedule.backend()
    if host is not None:
        host.machine.unusable = "RuntimeError: an illegal memory access was encountered"
        host.machine.at_once = schedule.rng.random() < 0.5
        schedule.system.failed.add(host.process.settings.number)


def _bad_inputs(schedule: FaultSchedule) -> Heal:
    """A client whose inputs a model cannot take, whatever backend runs it."""
    system = schedule.system
    system.bad_inputs = schedule.rng.choice((2, 5, 10))
    for host in system.backends:
        host.machine.bad_inputs = system.bad_inputs

    def heal() -> None:
        system.bad_inputs = 0
        for host in system.backends:
            host.machine.bad_inputs = 0

    return heal


def _no_room(schedule: FaultSchedule) -> Heal | None:
    """Somebody else takes memory of an accelerator."""
    host = schedule.backend()
    if host is None:
        return None
    machine = host.machine
    machine.room = schedule.rng.randint(1, 6)

    def heal() -> None:
        machine.room = 0

    return heal


def _hang_for_ever(schedule: FaultSchedule) -> Heal | None:
    host = schedule.backend()
    if host is None:
        return None
    machine, executor = host.machine, host.executor
    machine.hangs = True

    def heal() -> None:
        # A fault that no process has met cannot have been noticed.
        machine.hangs = executor.running is not None

    return heal


def _poison(schedule: FaultSchedule) -> Heal:
    """A model that kills every process that runs it."""
    system = schedule.system
    system.poison = schedule.rng.choice(sorted(system.tables))
    for host in system.backends:
        host.machine.poison = system.poison

    def heal() -> None:
        system.poison = ""
        for host in system.backends:
            host.machine.poison = ""

    return heal


def _misprofiled(schedule: FaultSchedule) -> None:
    host = schedule.backend()
    if host is not None:
        # For good; so one that may be left alone with everything must still be quick enough for
        # what is asked of it when all is well (`TABLES`).
        most = 2.0 if schedule.system.least > 1 else 1.2
        host.machine.profile_error = schedule.rng.uniform(0.5, most)


def _clock_step(schedule: FaultSchedule) -> None:
    """The wall clock is set, and the router starts anew under it."""
    schedule.world.wall_ns += schedule.rng.randrange(-3600, 3600) * SECOND
    schedule.system.lose_router()


def _usurp(schedule: FaultSchedule) -> Heal | None:
    """The router seems dead and is replaced; then it comes back."""
    old = schedule.system.router
    if old is None or not old.loop.alive or old.loop.held:
        return None
    old.loop.hold(stopped=True)
    actor = next(each for each in schedule.system.named if each is not None and each.host is old)
    schedule.system.start_router(actor)

    def heal() -> None:
        old.loop.go_on()
        # The cluster has ended it; it takes a while to hear of that.
        schedule.world.after(schedule.rng.randrange(ms(2000)), old.loop.die)

    return heal


def _usurp_control(schedule: FaultSchedule) -> Heal | None:
    """The control plane seems dead and is replaced; then it goes on, for a while."""
    system, rng = schedule.system, schedule.rng
    if system.control is None or system.control.loop.held:
        return None
    old = system.control
    old.loop.hold(stopped=True)
    system.follow_control()

    def heal() -> None:
        old.loop.go_on()
        schedule.world.after(rng.randrange(ms(2000)), old.loop.die)

    return heal


def _deploy(schedule: FaultSchedule) -> None:
    """Other code or another configuration: the next control plane wants routers of its own. The
    old one goes on beside it for a while."""
    schedule.excuse_all()
    schedule.system.mark += "+"
    schedule.system.replace_control(schedule.rng.randrange(ms(2000)))


def _end_router(schedule: FaultSchedule) -> None:
    """Somebody has the cluster end a router for good."""
    schedule.excuse_all()
    here = [each for each in schedule.system.named if each is not None]
    if here:
        schedule.system.end_router(schedule.rng.choice(here))


def _slow_cluster(schedule: FaultSchedule) -> Heal:
    """Calls to the cluster take long, and later ones may overtake."""
    weather = schedule.system.weather
    weather.slow_ns = schedule.rng.randrange(ms(10), ms(1500))

    def heal() -> None:
        weather.slow_ns = 0

    return heal


def _deaf_cluster(schedule: FaultSchedule) -> Heal:
    """Some of what is asked of the cluster comes to nothing."""
    weather = schedule.system.weather
    weather.lost = schedule.rng.uniform(0.1, 1.0)

    def heal() -> None:
        weather.lost = 0.0

    return heal


def _drain_backend(schedule: FaultSchedule) -> None:
    host = schedule.backend()
    if host is not None and not host.loop.held:
        schedule.system.drain_backend(host)
        schedule.system.start_backend()


def _drain_frontend(schedule: FaultSchedule) -> None:
    host = schedule.frontend()
    if host is not None and not host.loop.held:
        schedule.system.frontends.remove(host)
        schedule.system.start_frontend()
        host.loop.start(host.leave)


def _burst(schedule: FaultSchedule) -> None:
    now_ns = schedule.world.now_ns
    schedule.load(now_ns, now_ns + ms(150), 1200.0)


def _strangers(schedule: FaultSchedule) -> Heal:
    """Processes of somebody else talk to ours, or answer where a router used to."""
    gone = [each.address for each in schedule.system.routers if not each.loop.alive]
    left = [split_address(address)[1] for address in gone if address]
    return crowd(schedule.world, schedule.rng, left)


FAULTS: dict[str, Callable[[FaultSchedule], Heal | None]] = {
    "kill": _kill,
    "stop": _hold(stopped=True),
    "busy": _hold(stopped=False),
    "loop-hangs": _loop_hangs,
    "cut": _cut,
    "flap": _flap,
    "part": _part,
    "delay": _delay,
    "slow": _slow,
    "hang": _hang,
    "hang-for-ever": _hang_for_ever,
    "poison": _poison,
    "fail": _failing(at_once=False),
    "fail-at-once": _failing(at_once=True),
    "unusable": _unusable,
    "bad-inputs": _bad_inputs,
    "no-room": _no_room,
    "misprofiled": _misprofiled,
    "clock-step": _clock_step,
    "usurp": _usurp,
    "usurp-control": _usurp_control,
    "deploy": _deploy,
    "end-router": _end_router,
    "slow-cluster": _slow_cluster,
    "deaf-cluster": _deaf_cluster,
    "drain-backend": _drain_backend,
    "drain-frontend": _drain_frontend,
    "burst": _burst,
    "strangers": _strangers,
}
