"""Load and victims of a run, drawn from the seed."""

import random

from fermata.fault_simulator.control import ControlHost, Controller
from fermata.fault_simulator.deployment import ENCODED, PLAIN
from fermata.fault_simulator.environment.world import VirtualLoop
from fermata.fault_simulator.processes import BackendHost, FrontendHost, RouterHost
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import SECOND, ms

Host = RouterHost | FrontendHost | BackendHost | ControlHost | Controller
SWING_NS = (ms(400), ms(1500))
SWING_RPS = (15.0, 60.0, 250.0)


class Draws:
    """Sends requests to a deployment at random, and picks the processes that faults hit."""

    def __init__(self, system: SimulatedDeployment, rng: random.Random) -> None:
        self.system = system
        self.world = system.world
        self.rng = rng

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

    # Victims

    def backend(self) -> BackendHost | None:
        hosts = self.system.backend_hosts()
        here = [each for each in hosts if each.loop.alive and not each.leaving]
        if not here:
            return None
        host = self.rng.choice(here)
        self.system.harm.excused.add(host.process.settings.number)
        return host

    def frontend(self) -> FrontendHost | None:
        """Any backend may wait for its inputs, whatever happens to it."""
        self.excuse_all()
        here = [each for each in self.system.frontends if each.up and not each.draining]
        return self.rng.choice(here) if here else None

    def excuse_all(self) -> None:
        hosts = self.system.backend_hosts()
        self.system.harm.excused.update(each.process.settings.number for each in hosts)

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
