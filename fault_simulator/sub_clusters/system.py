"""Two sub-clusters, each with a router and backends of its own, and one control plane."""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from random import Random

from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.served.pipelines import served_pipelines
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.fault_simulator.actors import KeptTerms, RpcConditions, SimulatedActor
from fermata.fault_simulator.clients import SimulatedClients
from fermata.fault_simulator.control import SeenCluster
from fermata.fault_simulator.environment.network import SimulatedNetwork
from fermata.fault_simulator.environment.world import VirtualLoop, World, new_process
from fermata.fault_simulator.processes import LINKS, BackendHost, FrontendHost, RouterHost
from fermata.fault_simulator.sub_clusters.pair import PAIR, PIPELINE, STAGES, judge
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.leadership.process import Other
from fermata.router.links.session import LinkError
from fermata.router.links.transport import Resolve

COUNT = 2
NAMES = ("red", "green", "blue", "grey")
TABLE = tuple(ms(3 + size) for size in range(1, 9))
TABLES = {f"{name}-1": TABLE for name in NAMES}
SLO_NS = ms(150)
BEGIN_NS = ms(100)
"""Until the cluster has started a router, at most; below, until it has one in place of a dead one,
and of anything else."""
RESTART_NS = ms(1400)
REPLACE_NS = ms(4000)
SETTLED_NS = ms(2500)
"""Until frontends and backends have linked to a new standby, and it follows its leader."""
EPOCHS = {"every_s": 1, "solve_s": 0.2, "move_s": 3, "imbalance": 0.0}


def model(name: str) -> ServedModel:
    return ServedModel(name, TensorSpec("input", "INT64", (1,)), SLO_NS, SLO_NS)


MODELS = tuple(map(model, NAMES))


@dataclass(frozen=True, slots=True)
class Shape:
    """A deployment, as a seed draws it."""

    standby: bool
    """Every router has a second one that waits."""
    spread: tuple[str, ...]
    """Applications that live in both sub-clusters."""
    room: int
    """Models that a backend has room for; the least is half of them."""
    pipeline: bool = False
    """Two of the applications run the stages of one."""
    policies: tuple[str, ...] = ("eager",)
    """Policies of the applications, in turn."""


def drawn_shape(rng: Random) -> Shape:
    """Any shape in which all applications have room."""
    spread = NAMES[-1:] if rng.random() < 0.4 else ()
    least = len(spread) + math.ceil((len(NAMES) - len(spread)) / COUNT)
    standby, room = rng.random() < 0.5, rng.randint(least, len(NAMES))
    return Shape(standby, spread, room, rng.random() < 0.5)


def configuration(backends: int, shape: Shape) -> DeploymentConfig:
    """Four applications in two sub-clusters, placed anew every second."""
    return read_config(
        {
            "name": "world",
            "applications": [
                {
                    "name": name,
                    "slo_ms": SLO_NS / 1e6,
                    "policy": policy,
                    "variants": [
                        {
                            "name": f"{name}-1",
                            "latency_ms": [each / 1e6 for each in TABLE],
                            "accuracy": 0.8,
                            "input_size": 64,
                        }
                    ],
                }
                for name, policy in zip(NAMES, itertools.cycle(shape.policies), strict=False)
            ],
            "backend": {"count": backends, "device": "emulated"},
            "router": {"policy": "eager", "standby": shape.standby},
            "sub_clusters": {"count": COUNT, "spread": list(shape.spread)},
            "epochs": EPOCHS,
            "pipelines": [PIPELINE] if shape.pipeline else [],
        }
    )


class SimulatedSubCluster:
    """One of them, as the cluster starts what it has (`ClusterParts`)."""

    def __init__(self, system: "SeveralDeployment", number: int, backends: int) -> None:
        self.system, self.number = system, number
        self.world, self.weather = system.world, system.weather
        self.deployment, self.shape, self.mark = system.deployment, system.shape, "first"
        self.room = self.shape.room - len(self.shape.spread)
        """Models that plans may put here."""
        self.seats = range(2 if self.shape.standby else 1)
        self.resolvers = [partial(self.resolver, seat) for seat in self.seats]
        self.named: list[SimulatedActor | None] = [None, None]
        self.actors: list[SimulatedActor] = []
        self.terms = KeptTerms(system.weather)
        self.backends: list[BackendHost] = []
        self.wanted = backends
        self.since_ns: dict[str, int] = {}
        """When each router was started."""
        for _ in range(backends):
            self.start_backend()

    @property
    def backends_there(self) -> int:
        return self.wanted

    def host_at(self, seat: int) -> RouterHost | None:
        actor = self.named[seat]
        return None if actor is None else actor.host

    @property
    def router(self) -> RouterHost | None:
        """The one that leads; where nobody waits to, the one that there is."""
        if not self.shape.standby:
            return self.host_at(0)
        hosts = [self.host_at(seat) for seat in self.seats]
        leading = [each for each in hosts if each is not None and each.leads]
        return max(leading, key=lambda each: each.term, default=None)

    def has_standby(self) -> bool:
        """Whether another router has waited for long enough to know all."""
        now_ns, leader = self.world.now_ns, self.router
        hosts = [self.host_at(seat) for seat in self.seats]
        waiting = [each for each in hosts if each is not None and each is not leader]
        return leader is not None and any(
            each.address and now_ns - self.since_ns[each.loop.name] > SETTLED_NS for each in waiting
        )

    def resolver(self, seat: int, loop: VirtualLoop) -> Resolve:
        async def resolve() -> str:
            await loop.run_in_executor(None, lambda: None)
            router = self.host_at(seat)
            if router is None or not router.loop.alive or not router.address:
                raise LinkError("router is not there")
            return router.address

        return resolve

    # Routers

    def create_router(self, seat: int, plan: RouterConfig, mark: str) -> SimulatedActor:
        actor = SimulatedActor(self.world, self.weather, seat, plan, mark)
        self.actors.append(actor)
        self.named[seat] = actor
        wait_ns = self.system.rng.randrange(BEGIN_NS)
        self.world.after(wait_ns, partial(self.start_router, actor))
        return actor

    def start_router(self, actor: SimulatedActor) -> None:
        if actor.ended:
            return
        name = self.system.name(f"router-{self.number}")
        self.since_ns[name] = self.world.now_ns
        other = partial(self._other, actor.seat) if self.shape.standby else None
        host = RouterHost(
            *(self.world, name, actor.plan, self.terms.last, self._stand_down),
            *(actor.seat, actor.mark, other, self.terms),
        )
        self.terms.last = max(self.terms.last, host.term)
        host.loop.start(partial(host.run, lambda up: None))
        actor.up(host)

    def _other(self, seat: int, loop: VirtualLoop) -> Other:
        return Other(self.resolvers[1 - seat](loop), seat > 0)

    def _stand_down(self, host: RouterHost) -> None:
        if host in [self.host_at(seat) for seat in self.seats]:
            self.lose_router(host)
        else:
            host.loop.die()

    def lose_router(self, host: RouterHost) -> None:
        """It dies, and the cluster starts it again."""
        for actor in self.named:
            if actor is not None and actor.host is host:
                self.world.say(host.loop.name, "dies")
                host.loop.die()
                actor.host = None
                self.world.after(RESTART_NS, partial(self.start_router, actor))

    # Backends

    def start_backend(self) -> None:
        number = self.system.next_number()
        host = BackendHost(
            self.world,
            f"backend-{self.number}-{number}",
            number,
            TABLES,
            self.resolvers,
            self.lose_backend,
            self.shape.room,
        )
        self.backends.append(host)
        host.loop.start(host.run)

    def lose_backend(self, host: BackendHost) -> None:
        if host in self.backends:
            self.world.say(host.loop.name, "dies")
            host.loop.die()
            self.backends.remove(host)
            self.world.after(REPLACE_NS, self.start_backend)


class SeveralControl:
    """The control plane's process."""

    def __init__(self, system: "SeveralDeployment", name: str) -> None:
        self.loop = new_process(system.world, name)
        self.loop.may_fail = (NoAnswerError,)
        self.leaving = False
        self.system = system
        self.control: SeveralRouters | None = None

    async def run(self) -> None:
        parts = self.system.parts
        self.control = SeveralRouters(
            self.system.deployment,
            lambda config, number: SeenCluster(parts[number], self),
            self.system.world.wall_ms,
        )


class SeveralDeployment:
    """Everything that runs, and the ledger."""

    def __init__(
        self, world: World, backends: int, frontends: int, shape: Shape | None = None
    ) -> None:
        self.world, self.rng = world, world.rng("system")
        world.network = SimulatedNetwork(world)
        self.weather = RpcConditions(world.rng("weather"))
        self.shape = shape or drawn_shape(world.rng("shape"))
        self.deployment = configuration(COUNT * backends, self.shape)
        self.numbers = 0
        self.counts: dict[str, int] = {}
        self.parts = [SimulatedSubCluster(self, number, backends) for number in range(COUNT)]
        self.frontends: list[FrontendHost] = []
        self.models = [*MODELS, *served_pipelines(self.deployment, MODELS)]
        self.clients = SimulatedClients(world, lambda sent: None)
        self.clients.judge_query = partial(judge, self.clients)
        for _ in range(frontends):
            self._start_frontend()
        self.control = self._start_control()

    def name(self, kind: str) -> str:
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        return f"{kind}-{count}"

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _start_frontend(self) -> None:
        number = self.next_number()
        options = FrontendOptions(
            number, link_host="world", node="world", shared_memory=False, links=LINKS
        )
        resolvers = [each.resolvers for each in self.parts]
        registry = Registry.of(self.models)
        host = FrontendHost(
            self.world, f"frontend-{number}", options, registry, resolvers[0], resolvers[1:]
        )
        self.frontends.append(host)
        host.loop.start(host.run)

    def _start_control(self) -> SeveralControl:
        control = SeveralControl(self, self.name("control"))
        control.loop.start(control.run)
        return control

    def lose_control(self) -> None:
        """It dies, and Serve takes another one; routers go on. It has one at a time."""
        if not self.control.loop.alive:
            return
        self.world.say("control plane dies")
        self.control.loop.die()

        def follow() -> None:
            self.control = self._start_control()

        self.world.after(REPLACE_NS, follow)

    def touched_by(self, sub_cluster: int) -> set[str]:
        """Applications and pipelines that live in a sub-cluster, come to it or leave it."""
        control = self.control.control
        if control is None or control.moves is None:
            return {*NAMES, PAIR}
        found = set(control.moves.served_at(sub_cluster))
        return found if found.isdisjoint(STAGES) else found | {PAIR}
