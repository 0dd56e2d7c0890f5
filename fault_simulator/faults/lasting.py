"""Faults that never end, chosen so that enough is left to serve every request."""

import random
from collections.abc import Callable

from fermata.fault_simulator.faults.draws import Draws
from fermata.fault_simulator.processes import BackendHost
from fermata.fault_simulator.strangers import crowd
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import NEVER


class LastingFaults(Draws):
    """Strikes backends for good, all but one of them at most, or their ways to frontends."""

    def __init__(
        self, system: SimulatedDeployment, rng: random.Random, kinds: tuple[str, ...] = ()
    ) -> None:
        super().__init__(system, rng)
        self.kinds = kinds or tuple(LASTING)
        self.spared = rng.choice(system.backends)
        """Nothing happens to this one, nor to its ways."""

    def strike(self, count: int) -> None:
        """Let so many faults begin, all at once."""
        self.excuse_all()
        for _ in range(count):
            kind = self.rng.choice(self.kinds)
            others = [each for each in self.system.backends if each is not self.spared]
            if others:
                self.world.say("lasting fault:", kind)
                LASTING[kind](self, self.rng.choice(others))


def _part(faults: LastingFaults, backend: BackendHost) -> None:
    frontend = faults.rng.choice(faults.system.frontends)
    faults.world.network.part(frontend.loop, backend.loop)


def _part_one_way(faults: LastingFaults, backend: BackendHost) -> None:
    frontend = faults.rng.choice(faults.system.frontends)
    ends = [frontend.loop, backend.loop]
    faults.rng.shuffle(ends)
    faults.world.network.part_one_way(*ends)


def _part_from_router(faults: LastingFaults, backend: BackendHost) -> None:
    for host in faults.system.seats:
        if host is not None:
            faults.world.network.part(host.loop, backend.loop)


def _machine(faults: LastingFaults, backend: BackendHost) -> None:
    """It loses its power, and there is no other machine."""
    faults.world.network.unplug(backend.loop)
    faults.system.lose_backend(backend, NEVER)


def _slow(faults: LastingFaults, backend: BackendHost) -> None:
    backend.machine.slowness = faults.rng.uniform(4.0, 16.0)


def _fail(at_once: bool) -> Callable[[LastingFaults, BackendHost], None]:
    def play(faults: LastingFaults, backend: BackendHost) -> None:
        backend.machine.fails, backend.machine.at_once = True, at_once
        faults.system.harm.failed.add(backend.process.settings.number)

    return play


def _hang(faults: LastingFaults, backend: BackendHost) -> None:
    backend.machine.hangs = True


def _no_room(faults: LastingFaults, backend: BackendHost) -> None:
    backend.machine.room = 1


def _strangers(faults: LastingFaults, backend: BackendHost) -> None:
    crowd(faults.world, faults.rng, [])


LASTING: dict[str, Callable[[LastingFaults, BackendHost], None]] = {
    "part": _part,
    "part-one-way": _part_one_way,
    "part-from-router": _part_from_router,
    "machine": _machine,
    "slow": _slow,
    "fail": _fail(at_once=False),
    "fail-at-once": _fail(at_once=True),
    "hang": _hang,
    "no-room": _no_room,
    "strangers": _strangers,
}
