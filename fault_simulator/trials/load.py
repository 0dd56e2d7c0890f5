"""Clients of mapped cameras and of a version on trial, and what must become of both."""

import random

from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.environment.world import InvariantViolationError
from fermata.fault_simulator.processes import FrontendHost
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.fault_simulator.trials.models import BAD, EYES, SIDES, SLO_NS, TRIED
from fermata.foundation.units import SECOND, ms
from fermata.router.links.messages import ClientNetworkReport
from fermata.router.links.unavailability import UnavailableCause


class TrialCamera:
    """One client that reports its network, at whichever frontend is up."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.number = number
        self.fps = rng.uniform(5.0, 15.0)
        self.bandwidth_bps = 0.0
        self.side = SIDES[0]
        self.frontend: FrontendHost | None = None

    def report(self) -> ClientNetworkReport:
        bits = 40 * self.side * self.side // 10
        return ClientNetworkReport(
            *(EYES.name, self.number, SLO_NS, self.fps, self.bandwidth_bps, self.side, bits, 0)
        )


class TrialClients:
    """Sends frames of cameras, and requests that name no version."""

    def __init__(self, system: SimulatedDeployment, rng: random.Random) -> None:
        self.system, self.rng = system, rng
        self.cameras = [TrialCamera(number, rng) for number in range(1, rng.randint(2, 5))]
        self.bad = rng.random() < 0.6
        """The version on trial turns out bad."""
        self.frames: list[Sent] = []
        self.unadvised = ""
        """A camera that has not heard what the router wants of it; empty: all have."""

    def spoil(self) -> None:
        """The version on trial fails from now on, wherever it runs."""
        if self.bad:
            self.system.world.say("fault: bad version")
            self.system.harm.bad_variant = BAD
            for host in self.system.backend_hosts():
                host.machine.bad_variant = BAD

    def load(self, from_ns: int, to_ns: int, rate: float) -> None:
        """Frames at each camera's rate, and so many other requests a second."""
        world, rng = self.system.world, self.rng
        at_ns = from_ns + int(rng.expovariate(rate) * SECOND)
        while at_ns < to_ns:
            world.enter(at_ns, self._try)
            at_ns += int(rng.expovariate(rate) * SECOND)
        for camera in self.cameras:
            # Networks change, and are unknown at first.
            camera.bandwidth_bps = rng.choice((0.0, 3e6, 8e6, 20e6)) or camera.bandwidth_bps
            at_ns = from_ns + int(rng.random() / camera.fps * SECOND)
            while at_ns < to_ns:
                world.enter(at_ns, lambda camera=camera: self._frame(camera))  # type: ignore[misc]
                at_ns += int(SECOND / camera.fps)

    def _up(self) -> list[FrontendHost]:
        return [each for each in self.system.frontends if each.up and not each.draining]

    def _try(self) -> None:
        if up := self._up():
            self.send_tried(self.rng.choice(up))

    def send_tried(self, frontend: FrontendHost) -> Sent:
        """A request that names no version."""
        model, _ = frontend.hub.registry.find(TRIED[0].name)
        return self.system.clients.send(model, frontend)

    def _frame(self, camera: TrialCamera) -> None:
        up = self._up()
        if camera.frontend not in up:
            camera.frontend = self.rng.choice(up) if up else None
        frontend = camera.frontend
        if frontend is not None:
            advice = frontend.hub.driver.advice.known.get((EYES.name, camera.number))
            camera.side = SIDES[0] if advice is None else advice.input_size
            self.frames.append(self.system.clients.send(EYES, frontend, report=camera.report()))

    def probe(self) -> list[Sent]:
        """A second of frames, and ten requests without a version on each frontend."""
        world = self.system.world
        self.frames.clear()
        self.load(world.now_ns, world.now_ns + SECOND, 1.0)
        probes = [self.send_tried(each) for each in self.system.frontends for _ in range(10)]
        world.run_until(world.now_ns + SECOND)
        self.check_mapped()
        world.run_until(world.now_ns + ms(500))
        return [*probes, *self.frames]

    def check_mapped(self) -> None:
        """Every camera has been told a size by the router that leads now."""
        router = self.system.router
        if router is None or router.live is None:
            return
        (source,) = router.live.clients.sources.values()
        for camera in self.cameras:
            if camera.frontend is None or camera.number not in source.advised:
                self.unadvised = f"camera {camera.number} is not advised"
                return
            known = camera.frontend.hub.driver.advice.known.get((EYES.name, camera.number))
            side, _, served = source.advised[camera.number]
            if known is None or (known.input_size, known.served) != (side, served):
                self.unadvised = f"camera {camera.number} was told {known}, not {side}, {served}"
                return
        self.unadvised = ""

    def check(self) -> None:
        """Judge cameras and the version on trial, when all is well."""
        if self.unadvised:
            raise InvariantViolationError(self.unadvised)
        router = self.system.router
        assert router is not None
        assert router.live is not None
        unavailable = router.live.fleet.availability.unavailable
        told = unavailable.get(TRIED[1].router_name)
        withdrawn = told is not None and told.cause is UnavailableCause.WITHDRAWN
        if self.bad and not withdrawn:
            raise InvariantViolationError(f"a bad version is still on trial: {told}")
        for frontend in self.system.frontends:
            if self.bad and frontend.hub.registry.trials:
                raise InvariantViolationError(f"{frontend.loop.name} still tries a bad version")
