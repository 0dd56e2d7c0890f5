"""Kinds of faults: each strikes at once, and returns how to undo what does not end by itself."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fermata.fault_simulator.actors import end_actor
from fermata.fault_simulator.control import ControlHost, Controller
from fermata.fault_simulator.faults.disks import full_disk, slow_disk
from fermata.fault_simulator.faults.draws import Draws
from fermata.fault_simulator.processes import LINKS, BackendHost, RouterHost
from fermata.fault_simulator.strangers import crowd
from fermata.foundation.units import SECOND, ms
from fermata.router.links.address import split_address
from fermata.router.links.messages import PROTOCOLS

Heal = Callable[[], None]


def _kill(draws: Draws) -> None:
    host = draws.host()
    if isinstance(host, RouterHost):
        draws.system.lose_router(host)
    elif isinstance(host, BackendHost):
        draws.system.lose_backend(host)
    elif isinstance(host, ControlHost):
        draws.system.lose_control()
    elif isinstance(host, Controller):
        draws.system.lose_controller()
    elif host is not None:
        draws.system.lose_frontend(host)


def _hold(stopped: bool) -> Callable[[Draws], Heal | None]:
    def play(draws: Draws) -> Heal | None:
        host = draws.host()
        if host is None or host.loop.held:
            return None
        host.loop.hold(stopped)
        return host.loop.go_on

    return play


def _loop_hangs(draws: Draws) -> None:
    """A router's loop does not come back, while its heartbeat goes on."""
    draws.excuse_all()
    host = draws.router()
    if host is not None and host.live is not None and not host.loop.held:
        host.loop.hold(stopped=False)


def _cut(draws: Draws) -> None:
    pair = draws.pair()
    if pair is not None:
        draws.world.network.cut(*pair)


def _flap(draws: Draws) -> None:
    """A connection that comes and goes, while another one is slow."""
    pair, other = draws.pair(), draws.pair()
    if pair is None or other is None:
        return
    network, rng = draws.world.network, draws.rng
    network.delay(*other, rng.randrange(ms(1), ms(60)))
    at_ns = 0
    for _ in range(rng.randint(2, 8)):
        at_ns += rng.randrange(ms(10), ms(80))
        draws.world.after(at_ns, partial(network.cut, *pair))
    draws.world.after(at_ns, partial(network.delay, *other, 0))


def _part(draws: Draws) -> Heal | None:
    pair = draws.pair()
    if pair is None:
        return None
    draws.world.network.part(*pair)
    return lambda: draws.world.network.join(*pair)


def _part_one_way(draws: Draws) -> Heal | None:
    pair = draws.pair()
    if pair is None:
        return None
    draws.world.network.part_one_way(*pair)
    return lambda: draws.world.network.join(*pair)


def _delay(draws: Draws) -> Heal | None:
    pair = draws.pair()
    if pair is None:
        return None
    draws.world.network.delay(*pair, draws.rng.randrange(ms(1), ms(250)))
    return lambda: draws.world.network.delay(*pair, 0)


def _slow(draws: Draws) -> Heal | None:
    host = draws.backend()
    if host is None:
        return None
    machine = host.machine
    machine.slowness = draws.rng.uniform(1.5, 16.0)

    def heal() -> None:
        machine.slowness = 1.0

    return heal


def _hang(draws: Draws) -> Heal | None:
    host = draws.backend()
    if host is None:
        return None
    machine = host.machine
    machine.hangs = True

    def heal() -> None:
        machine.hangs = False

    return heal


def _failing(at_once: bool) -> Callable[[Draws], Heal | None]:
    def play(draws: Draws) -> Heal | None:
        host = draws.backend()
        if host is None:
            return None
        machine = host.machine
        machine.fails, machine.at_once = True, at_once
        draws.system.harm.failed.add(host.process.settings.number)

        def heal() -> None:
            machine.fails = False

        return heal

    return play


def _unusable(draws: Draws) -> Heal | None:
    """An error that an accelerator's process does not recover from."""
    host, system = draws.backend(), draws.system
    if host is None:
        return None
    host.machine.unusable = "RuntimeError: an illegal memory access was encountered"
    host.machine.at_once = draws.rng.random() < 0.5
    system.harm.failed.add(host.process.settings.number)

    def heal() -> None:
        # Where no batch has met the error, one would when all should be well.
        if not host.process.unusable:
            system.lose_backend(host)

    return heal


def _bad_inputs(draws: Draws) -> Heal:
    """A client whose inputs a model cannot take, whatever backend runs it."""
    system = draws.system
    system.harm.bad_inputs = draws.rng.choice((2, 5, 10))
    system.harm.divisors.add(system.harm.bad_inputs)
    for host in system.backend_hosts():
        host.machine.bad_inputs = system.harm.bad_inputs

    def heal() -> None:
        system.harm.bad_inputs = 0
        for host in system.backend_hosts():
            host.machine.bad_inputs = 0

    return heal


NEIGHBOURS = 4
"""Requests before and after one that hangs which may be in its batch."""


def _hanging_input(draws: Draws) -> Heal:
    """An input that hangs whatever backend runs it."""
    system = draws.system
    number = len(system.clients.ledger) + draws.rng.randrange(20)
    system.harm.hanging.add(number)
    # Those that may run with it as well: they too would be there to be tried again.
    system.clients.patient.update(range(number - NEIGHBOURS, number + NEIGHBOURS + 1))

    def heal() -> None:
        if not any(number in machine.hung_on for machine in system.harm.machines):
            system.harm.hanging.discard(number)

    return heal


def _machine(draws: Draws) -> None:
    """A machine loses its power: a backend, a frontend, perhaps a router, and no word from them."""
    backend, frontend = draws.backend(), draws.frontend()
    router = draws.router() if draws.rng.random() < 0.5 else None
    network = draws.world.network
    for host in (backend, frontend, router):
        if host is not None:
            network.unplug(host.loop)
    if backend is not None:
        draws.system.lose_backend(backend)
    if frontend is not None:
        draws.system.lose_frontend(frontend)
    if router is not None:
        draws.excuse_all()
        draws.system.lose_router(router)


def _rack(draws: Draws) -> None:
    """A rack loses its power, and several machines with it."""
    for _ in range(draws.rng.randint(2, 3)):
        _machine(draws)


def _no_backend(draws: Draws) -> None:
    """All backends are gone at once, under load."""
    draws.excuse_all()
    for host in tuple(draws.system.backends):
        draws.system.lose_backend(host, draws.rng.randrange(ms(500), ms(4000)))
    _burst(draws)


def _no_room(draws: Draws) -> Heal | None:
    """Somebody else takes memory of an accelerator."""
    host = draws.backend()
    if host is None:
        return None
    machine = host.machine
    machine.room = draws.rng.randint(1, 6)

    def heal() -> None:
        machine.room = 0

    return heal


def _hang_for_ever(draws: Draws) -> Heal | None:
    host = draws.backend()
    if host is None:
        return None
    machine, executor = host.machine, host.executor
    machine.hangs = True

    def heal() -> None:
        # A fault that no process has met cannot have been noticed.
        machine.hangs = executor.running is not None

    return heal


def _poison(draws: Draws) -> Heal:
    """A model that kills every process that runs it."""
    system = draws.system
    system.harm.poison = draws.rng.choice(sorted(system.tables))
    for host in system.backend_hosts():
        host.machine.poison = system.harm.poison

    def heal() -> None:
        system.harm.poison = ""
        for host in system.backend_hosts():
            host.machine.poison = ""

    return heal


def _misprofiled(draws: Draws) -> None:
    host = draws.backend()
    if host is not None:
        # For good; so one that may be left alone with everything must still be quick enough for
        # what is asked of it when all is well (`TABLES`).
        most = 2.0 if draws.system.least > 1 else 1.2
        host.machine.profile_error = draws.rng.uniform(0.5, most)


def _clock_step(draws: Draws) -> None:
    """The wall clock is set, and the router starts anew under it."""
    draws.world.wall_ns += draws.rng.randrange(-3600, 3600) * SECOND
    draws.system.lose_router()


def _usurp(draws: Draws) -> Heal | None:
    """The router seems dead and is replaced; then it comes back."""
    old = draws.system.router
    if old is None or not old.loop.alive or old.loop.held:
        return None
    old.loop.hold(stopped=True)
    actor = next(each for each in draws.system.named if each is not None and each.host is old)
    draws.system.start_router(actor)

    def heal() -> None:
        old.loop.go_on()
        # The cluster has ended it; it takes a while to hear of that.
        draws.world.after(draws.rng.randrange(ms(2000)), old.loop.die)

    return heal


def _usurp_control(draws: Draws) -> Heal | None:
    """The control plane seems dead and is replaced; then it goes on, for a while."""
    system, rng = draws.system, draws.rng
    if system.control is None or system.control.loop.held:
        return None
    old = system.control
    old.loop.hold(stopped=True)
    system.follow_control()

    def heal() -> None:
        old.loop.go_on()
        draws.world.after(rng.randrange(ms(2000)), old.loop.die)

    return heal


def _deploy(draws: Draws) -> None:
    """Other code or another configuration: the next control plane wants routers of its own. The
    old one goes on beside it for a while."""
    draws.excuse_all()
    draws.system.mark += "+"
    draws.system.replace_control(draws.rng.randrange(ms(2000)))


def _end_router(draws: Draws) -> None:
    """Somebody has the cluster end a router for good."""
    draws.excuse_all()
    here = [each for each in draws.system.named if each is not None]
    if here:
        end_actor(draws.system.named, draws.rng.choice(here))


def _slow_cluster(draws: Draws) -> Heal:
    """Calls to the cluster take long, and later ones may overtake."""
    weather = draws.system.weather
    weather.slow_ns = draws.rng.randrange(ms(10), ms(1500))

    def heal() -> None:
        weather.slow_ns = 0

    return heal


def _deaf_cluster(draws: Draws) -> Heal:
    """Some of what is asked of the cluster comes to nothing."""
    weather = draws.system.weather
    weather.lost = draws.rng.uniform(0.1, 1.0)

    def heal() -> None:
        weather.lost = 0.0

    return heal


def _drain_backend(draws: Draws) -> None:
    host = draws.backend()
    if host in draws.system.backends and not host.loop.held:
        draws.system.drain_backend(host)
        draws.system.start_backend()


def _drain_frontend(draws: Draws) -> None:
    host = draws.frontend()
    if host is not None and not host.loop.held:
        draws.system.frontends.remove(host)
        draws.system.start_frontend()
        host.loop.start(host.leave)


def _burst(draws: Draws) -> None:
    now_ns = draws.world.now_ns
    draws.load(now_ns, now_ns + ms(150), 1200.0)


def _strangers(draws: Draws) -> Heal:
    """Processes of somebody else talk to ours, or answer where a router used to."""
    gone = [each.address for each in draws.system.routers if not each.loop.alive]
    left = [split_address(address)[1] for address in gone if address]
    return crowd(draws.world, draws.rng, left)


def _older(draws: Draws) -> Heal:
    """Processes that start now are of the version before, as in an upgrade or its withdrawal."""
    system = draws.system
    system.links = replace(LINKS, speaks=PROTOCOLS[1:])
    draws.rng.choice((_drain_backend, _drain_frontend, _kill))(draws)

    def heal() -> None:
        system.links = LINKS

    return heal


def _clock_pace(draws: Draws) -> Heal | None:
    """A monotonic clock goes faster or slower than the others, by far more than real ones do."""
    host = draws.host()
    if host is None:
        return None
    host.loop.set_pace(draws.rng.uniform(0.99, 1.01))
    return lambda: host.loop.set_pace(1.0)


FAULTS: dict[str, Callable[[Draws], Heal | None]] = {
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
    "part-one-way": _part_one_way,
    "hanging-input": _hanging_input,
    "machine": _machine,
    "no-backend": _no_backend,
    "older": _older,
    "clock-pace": _clock_pace,
    "slow-disk": slow_disk,
    "full-disk": full_disk,
    "rack": _rack,
}
