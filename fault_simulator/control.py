"""The control plane's process and Serve's controller, as the world runs them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fermata.autoscaler.serve_policy import ANSWER_S, RelayTarget
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.control.cluster import Cluster, Router
from fermata.deployments.control.control_plane import ControlPlaneCore
from fermata.deployments.control.leader_client import within
from fermata.fault_simulator.actors import Handle, RpcConditions, SimulatedActor, end_actor
from fermata.fault_simulator.environment.world import (
    InvariantViolationError,
    VirtualLoop,
    new_process,
)
from fermata.fault_simulator.processes import KIND, BackendHost
from fermata.foundation.errors import NoAnswerError
from fermata.partitioner.plan import Plan, Problem
from fermata.profiles.profile import Profile
from fermata.router.assembly import RouterConfig

if TYPE_CHECKING:
    from fermata.fault_simulator.system import SimulatedDeployment

RELAY_S = 0.5
"""Between two questions of Serve's controller for the number of backends."""
LOOK_S = 0.1
OUTDATED = 0.1
"""Delay of look-ups of a name."""


class ControlHost:
    """A control plane's process."""

    def __init__(self, system: "SimulatedDeployment", name: str) -> None:
        self.loop = new_process(system.world, name)
        # Serve replaces a control plane that says so when it is asked for its health.
        self.loop.may_fail = (NoAnswerError,)
        self.config = system.deployment
        self.cluster = SeenCluster(system, self)
        self.make: Callable[[DeploymentConfig, Cluster], ControlPlaneCore] = ControlPlaneCore
        self.control: ControlPlaneCore | None = None
        self.leaving = False
        self.started_at_ns = system.world.now_ns
        self.alone = not any(each.loop.alive for each in system.controls)
        """No other control plane had a say when it came."""

    async def run(self) -> None:
        self.control = self.make(self.config, self.cluster)

    async def leave(self) -> None:
        """As Serve ends a replica that it does not want any more."""
        self.leaving = True
        if self.control is not None:
            await self.control.end()
        self.loop.die()

    @property
    def ready(self) -> bool:
        return self.control is not None and self.control.progress()[0] == "ready"


class ClusterParts(Protocol):
    """Parts of the world that a control plane sees: a whole deployment, or one sub-cluster."""

    weather: RpcConditions
    deployment: DeploymentConfig
    mark: str
    room: int
    named: list[SimulatedActor | None]
    actors: list[SimulatedActor]
    backends: list[BackendHost]

    @property
    def backends_there(self) -> int: ...
    def create_router(self, seat: int, plan: RouterConfig, mark: str) -> SimulatedActor: ...


class ControlProcess(Protocol):
    """The process of a control plane."""

    loop: VirtualLoop
    leaving: bool


class SeenCluster:
    """The cluster as one control plane sees it (`Cluster`)."""

    def __init__(self, system: ClusterParts, host: ControlProcess) -> None:
        self.system = system
        self.host = host
        self.loop = host.loop
        self.mark = system.mark

    async def profiles(self) -> tuple[str, Mapping[str, Profile]]:
        await self.system.weather.answers()
        while not self.system.backends:
            await asyncio.sleep(LOOK_S)
        return KIND, known_profiles(self.system.deployment)

    async def find(self, seat: int) -> Router | None:
        await self.system.weather.answers()
        before = [each for each in self.system.actors if each.seat == seat]
        actor = self.system.named[seat]
        if len(before) > 1 and self.loop.rng.random() < OUTDATED:
            actor = before[-2]
        return None if actor is None else Handle(actor, self.loop)

    def create(self, seat: int, plan: RouterConfig) -> Router:
        if self.system.named[seat] is not None:
            raise NoAnswerError(f"the name of seat {seat} is taken")
        return Handle(self.system.create_router(seat, plan, self.mark), self.loop)

    def end(self, router: Router) -> None:
        assert isinstance(router, Handle)
        actor: SimulatedActor = router.actor
        if not self.host.leaving and actor.mark == self.mark and self.loop in actor.told:
            raise InvariantViolationError(
                f"{self.loop.name} ends a router that it should have adopted"
            )
        end_actor(self.system.named, actor)

    async def device_bytes(self) -> int:
        return 0

    async def router_speed(self) -> float | None:
        return None

    async def solve(self, problem: Problem, seconds: float) -> Plan:
        """Any plan with as many models together as backends have room for."""
        await self.system.weather.answers()
        await asyncio.sleep(self.loop.rng.random() * seconds)
        names, places = [model.name for model in problem.models], len(problem.sub_clusters)
        if sum(map(_size, names)) > self.system.room * places:
            raise NoAnswerError(f"{names} have no room in {places} sub-clusters")
        while True:
            home = {name: self.loop.rng.randrange(places) for name in names}
            held = Counter(at for name, at in home.items() for _ in range(_size(name)))
            if max(held.values()) <= self.system.room:
                return Plan(home)

    async def backends_there(self) -> int:
        await self.system.weather.answers()
        return self.system.backends_there

    async def backends_here(self) -> int:
        return await self.backends_there()

    async def is_followed(self) -> bool:
        try:
            await self.system.weather.answers()
        except NoAnswerError:
            # Taken for the end of Serve itself, as `RayCluster` does.
            return False
        return True


def _size(unit: str) -> int:
    """Models of a unit: those that a pipeline joins are named together."""
    return 1 + unit.count("+")


@dataclass(frozen=True, slots=True)
class Context:
    """The context that Serve gives an autoscaling policy, as far as ours reads it."""

    target_num_replicas: int
    capacity_adjusted_min_replicas: int
    capacity_adjusted_max_replicas: int


class Controller:
    """Serve's controller: asks what is wanted, and has it so."""

    def __init__(self, system: "SimulatedDeployment", name: str) -> None:
        self.system = system
        self.loop = new_process(system.world, name)
        self.loop.may_fail = (NoAnswerError,)
        self.relay = RelayTarget(("first", "second"), "world")

    async def run(self) -> None:
        spec = self.system.deployment.autoscaler
        while spec is not None:
            self.relay.on_answers(await self._ask())
            context = Context(self.system.wanted, spec.minimum, spec.maximum)
            self.system.want(self.relay.decide(context))
            await asyncio.sleep(RELAY_S)

    async def _ask(self) -> list[tuple[int, int | None]]:
        """As `RelayTarget` does in its thread."""
        answers = await asyncio.gather(
            *(
                within(ANSWER_S, Handle(actor, self.loop).target())
                for actor in self.system.named
                if actor is not None
            ),
            return_exceptions=True,
        )
        return [each for each in answers if not isinstance(each, BaseException)]
