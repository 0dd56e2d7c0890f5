"""The whole system in one world: its processes, and how the cluster starts and replaces them."""

from collections.abc import Callable
from functools import partial

from fermata.deployments.backend.process import UnfitError
from fermata.deployments.config.policies import PolicyDocument, with_policies
from fermata.deployments.config.served.pipelines import served_pipelines
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.fault_simulator.actors import KeptTerms, RpcConditions, SimulatedActor
from fermata.fault_simulator.clients import Sent, SimulatedClients
from fermata.fault_simulator.control import ControlHost, Controller
from fermata.fault_simulator.deployment import (
    ENCODED,
    NO_MORE,
    PLAIN,
    TABLES,
    MoreModels,
    Tables,
    deployment,
    drawn,
)
from fermata.fault_simulator.environment.network import SimulatedNetwork
from fermata.fault_simulator.environment.world import InvariantViolationError, VirtualLoop, World
from fermata.fault_simulator.harm import Harm
from fermata.fault_simulator.processes import (
    LINKS,
    BackendHost,
    FrontendHost,
    RouterHost,
)
from fermata.fault_simulator.spares import SimulatedSpares
from fermata.foundation.errors import ServingError
from fermata.foundation.units import ms, seconds
from fermata.router.assembly import RouterConfig
from fermata.router.leadership.process import Other
from fermata.router.leadership.process_ids import claim_process_id
from fermata.router.links.session import LinkError
from fermata.router.links.transport import LinkOptions, Resolve

BEGIN_NS = ms(100)
"""Until the cluster has started a router, at most; below, until it has one in place of a dead one,
and of anything else."""
RESTART_NS = ms(1400)
REPLACE_NS = ms(4000)
GRACE_NS = seconds(20)
"""For a process that is to end, to do so by itself."""
HEALTH_NS = seconds(1)
OUTDATED = 0.2
"""Delay of look-ups of the router's address."""
NUMBER_BITS = 6
"""Few, so that two processes often want the same number."""


class SimulatedDeployment:
    """Everything that runs, and the ledger."""

    def __init__(
        self,
        world: World,
        backends: int,
        frontends: int,
        plant: Callable[[object], None] | None = None,
        standby: bool | None = None,
        scaled: bool | None = None,
        placed: bool = False,
        links: LinkOptions = LINKS,
        spared: bool = False,
        more: MoreModels = NO_MORE,
    ) -> None:
        """`standby`: a second router waits to lead; `scaled`: the number of backends follows the
        load; None: the seed decides. `placed`: two sub-clusters, where it does not. `spared`:
        backends have spares. `more` are models beside those of every deployment."""
        self.world, self.rng = world, world.rng("system")
        world.network = SimulatedNetwork(world)
        self.standby, self.scaled = drawn(self.rng, standby), drawn(self.rng, scaled)
        self.room = world.rng("placement").randint(1, 2) if placed and not self.scaled else 0
        """Models that a backend has room for; 0: it holds all of them."""
        self.more = more
        self.deployment = deployment(
            self.rng, backends, self.standby, self.scaled, self.room > 0, more
        )
        self.harm = Harm()
        self.mark = "first"
        """Version of the code and configuration that the cluster is to run."""
        self.weather = RpcConditions(world.rng("weather"))
        self.counts: dict[str, int] = {}
        self.owners: dict[tuple[str, int], str] = {}
        """Last number of each kind of process, as the cluster remembers it."""
        self.named: list[SimulatedActor | None] = [None, None]
        """The routers that the cluster names when asked, by seat."""
        self.resolvers = [partial(self._resolver, seat) for seat in range(1 + self.standby)]
        self.actors: list[SimulatedActor] = []
        self.routers: list[RouterHost] = []
        self.terms = KeptTerms(self.weather)
        self.frontends: list[FrontendHost] = []
        self.backends: list[BackendHost] = []
        """Serve's replicas, whether they serve or wait."""
        self.spares = SimulatedSpares(self) if spared else None
        self.wanted = backends
        """How many of them Serve is to have."""
        self.coming: list[object] = []
        """Those that it is about to start."""
        self.control: ControlHost | None = None
        """The one that Serve has; it may not be the only one that runs."""
        self.controls: list[ControlHost] = []
        self.controller: Controller | None = None
        self.clients = SimulatedClients(world, self._check_failed)
        self.begin_ns = BEGIN_NS
        """In which a new router has its process."""
        self.links = links
        """Options of the links of processes that start from now on."""
        self.starting = 0
        """Processes that the cluster is about to start."""
        self.on_start: list[Callable[[object], None]] = [] if plant is None else [plant]
        """Told of each process before it runs; planted bugs come in here."""
        self._start(frontends, backends)

    def _start(self, frontends: int, backends: int) -> None:
        for _ in range(frontends):
            self.start_frontend()
        for _ in range(backends):
            self.start_backend()
        self.start_control()
        self.start_controller()
        self._check_health()

    def _check_health(self) -> None:
        """As Serve does: whoever says that it is unfit is replaced."""
        for host in self.backend_hosts():
            if not host.loop.held and not host.leaving:
                try:
                    host.process.check()
                except UnfitError as error:
                    self.world.say(host.loop.name, "is unfit:", error)
                    unfit = host.process.retired or host.process.unusable
                    if not unfit and not host.machine.hangs and not host.machine.hung_on:
                        raise InvariantViolationError(
                            f"{host.loop.name} was fit: {error}"
                        ) from None
                    self.lose_backend(host)
        control = self.control
        if control is not None and control.control is not None and not control.loop.held:
            try:
                control.control.check()
            except ServingError as error:
                self.world.say(control.loop.name, "must go:", error)
                self.replace_control()
        self.world.after(HEALTH_NS, self._check_health)

    def _name(self, kind: str) -> str:
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        return f"{kind}-{count}"

    def _name_and_number(self, kind: str) -> tuple[str, int]:
        name = self._name(kind)

        def claim(number: int) -> str:
            return self.owners.setdefault((kind, number), name)

        return name, claim_process_id(name, claim, NUMBER_BITS)

    @property
    def tables(self) -> Tables:
        """Run times of its models."""
        return {**TABLES[self.scaled], **self.more.tables}

    # Processes

    @property
    def seats(self) -> list[RouterHost | None]:
        named = self.named if self.standby else self.named[:1]
        return [None if each is None else each.host for each in named]

    @property
    def router(self) -> RouterHost | None:
        """The one that leads; where nobody waits to, the one that there is."""
        if not self.standby:
            return self.seats[0]
        leading = [each for each in self.seats if each is not None and each.leads]
        return max(leading, key=lambda each: each.term, default=None)

    def create_router(self, seat: int, plan: RouterConfig, mark: str) -> SimulatedActor:
        actor = SimulatedActor(self.world, self.weather, seat, plan, mark)
        self._started(actor)
        self.actors.append(actor)
        self.named[seat] = actor
        self._start_later(self.rng.randrange(self.begin_ns), partial(self.start_router, actor))
        return actor

    def start_router(self, actor: SimulatedActor) -> None:
        if actor.ended:
            return
        name = self._name("router")
        other = partial(self._other, actor.seat) if self.standby else None
        host = RouterHost(
            *(self.world, name, actor.plan, self.terms.last, self._stand_down),
            *(actor.seat, actor.mark, other, self.terms, self.links),
        )
        self.terms.last = max(self.terms.last, host.term)
        self.routers.append(host)
        self._started(host)
        host.loop.start(partial(host.run, self._on_router_up))
        actor.up(host)

    def _other(self, seat: int, loop: VirtualLoop) -> Other:
        return Other(self.resolvers[1 - seat](loop), seat > 0)

    def _stand_down(self, host: RouterHost) -> None:
        if host in self.seats:
            self.lose_router(host)
        else:
            host.loop.die()

    def _on_router_up(self, host: RouterHost) -> None:
        self._started(host.live)

    def start_frontend(self) -> None:
        name, number = self._name_and_number("frontend")
        options = FrontendOptions(
            number, link_host="world", node="world", shared_memory=False, links=self.links
        )
        models = [PLAIN, ENCODED, *self.more.models]
        models += served_pipelines(self.deployment, self.more.models)
        registry = Registry(models, self.world.rng(f"{name}/trials"))
        host = FrontendHost(
            *(self.world, name, options, registry, self.resolvers),
            reports=self.more.reports,
        )
        self.frontends.append(host)
        self._started(host)
        host.loop.start(host.run)

    def backend_hosts(self) -> list[BackendHost]:
        """Replicas and spares."""
        return [*self.backends, *(() if self.spares is None else self.spares.hosts())]

    def start_backend(self) -> None:
        host = self.new_backend()
        self.backends.append(host)
        if self.spares is not None:
            self.spares.seat(host)
        host.loop.start(host.run)

    def new_backend(self) -> BackendHost:
        """A backend's process that does not run yet."""
        name, number = self._name_and_number("backend")
        host = BackendHost(
            *(self.world, name, number, self.tables, self.resolvers),
            *(self.lose_backend, self.room, self.links),
            extra=self.more.runners(),
        )
        self.harm.add(host.machine)
        self._started(host)
        return host

    def _started(self, what: object) -> None:
        for call in self.on_start:
            call(what)

    def _resolver(self, seat: int, loop: VirtualLoop) -> Resolve:
        async def resolve() -> str:
            await loop.run_in_executor(None, lambda: None)
            router = self.seats[seat]
            before = [each for each in self.routers if each.number == seat]
            if loop.rng.random() < OUTDATED and len(before) > 1:
                # The process that was asked did not know the new one yet.
                router = before[-2]
            if router is None or not router.loop.alive or not router.address:
                raise LinkError("router is not there")
            return router.address

        return resolve

    def lose_router(self, host: RouterHost | None = None, back_in_ns: int = RESTART_NS) -> None:
        """A router dies, the one that leads unless said; the cluster starts it again."""
        host = host or self.router
        for actor in self.named:
            if host is not None and actor is not None and actor.host is host:
                host.loop.die()
                actor.host = None
                self._start_later(back_in_ns, partial(self.start_router, actor))

    # Backends, as Serve keeps so many of them

    @property
    def backends_there(self) -> int:
        return len(self.backends) + len(self.coming)

    def want(self, count: int) -> None:
        self.wanted = count
        while self.backends_there < count:
            self._bring_backend(self.rng.randrange(REPLACE_NS))
        while self.backends_there > count:
            if self.coming:
                self.coming.pop()
            else:
                self.drain_backend(self.rng.choice(self.backends))

    def _bring_backend(self, wait_ns: int) -> None:
        token = object()
        self.coming.append(token)

        def come() -> None:
            if token in self.coming:
                self.coming.remove(token)
                self.start_backend()

        self._start_later(wait_ns, come)

    def drain_backend(self, host: BackendHost) -> None:
        self.backends.remove(host)
        if self.spares is not None:
            self.spares.on_drain(host)
        host.loop.start(host.leave)
        self.world.after(GRACE_NS, host.loop.die)

    def lose_backend(self, host: BackendHost, back_in_ns: int = REPLACE_NS) -> None:
        if host.loop.alive:
            host.loop.die()
            # One that was leaving has its successor.
            if host in self.backends:
                self.backends.remove(host)
                if self.backends_there < self.wanted:
                    self._bring_backend(back_in_ns)

    # The control plane and Serve's controller

    def start_control(self) -> None:
        name = self._name("control")
        host = self.control = ControlHost(self, name)
        self.controls.append(host)
        self._started(host)
        host.loop.start(host.run)

    def follow_control(self, wait_ns: int = RESTART_NS) -> ControlHost | None:
        """Serve takes another one, whatever becomes of the one that it had."""
        old, self.control = self.control, None
        if old is not None:
            self._start_later(wait_ns, self.start_control)
        return old

    def redeploy_policies(self, wanted: PolicyDocument) -> None:
        """Serve tells its control plane of other policies, and whoever takes its place."""
        self.world.say("policies:", wanted["router"]["policy"])
        self.deployment = with_policies(self.deployment, wanted)
        host = self.control
        if host is not None:
            host.config = self.deployment
            if host.control is not None and host.loop.alive:
                host.control.set_policies(self.deployment)

    def lose_control(self) -> None:
        old = self.follow_control(REPLACE_NS)
        if old is not None:
            old.loop.die()

    def replace_control(self, linger_ns: int = 0) -> None:
        """Serve has it end in order, and takes another meanwhile."""
        old = self.follow_control()
        if old is not None:
            self.world.after(linger_ns, lambda: old.loop.start(old.leave))
            self.world.after(linger_ns + GRACE_NS, old.loop.die)

    def start_controller(self) -> None:
        name = self._name("controller")
        self.controller = Controller(self, name)
        self._started(self.controller)
        self.controller.loop.start(self.controller.run)

    def lose_controller(self) -> None:
        if self.controller is not None:
            self.controller.loop.die()
            self.controller = None
            self._start_later(RESTART_NS, self.start_controller)

    def lose_frontend(self, host: FrontendHost, back_in_ns: int = REPLACE_NS) -> None:
        """Its clients see their connections end: that is their answer."""
        if host.loop.alive:
            host.loop.die()
            self.frontends.remove(host)
            self.clients.on_lost(host)
            self._start_later(back_in_ns, self.start_frontend)

    def _start_later(self, wait_ns: int, start: Callable[[], None]) -> None:
        def now() -> None:
            self.starting -= 1
            start()

        self.starting += 1
        self.world.after(wait_ns, now)

    def backend_numbers(self) -> list[int]:
        serving = self.backends if self.spares is None else self.spares.holders()
        return sorted(each.process.settings.number for each in serving)

    def frontend_numbers(self) -> list[int]:
        return sorted(each.hub.options.number for each in self.frontends)

    def controlled(self) -> bool:
        """The control plane is up, the routers are its own, and idle backends have gone."""
        named = [each for each in self.named if each is not None]
        return (
            self.control is not None
            and self.control.ready
            and len(named) == len(self.resolvers)
            and all(each.mark == self.mark for each in named)
            and self.backends_there == self.least
        )

    @property
    def least(self) -> int:
        """How many backends there are to be while nothing is asked of them."""
        spec = self.deployment.autoscaler
        return self.deployment.backend.count if spec is None else spec.minimum

    def _check_failed(self, sent: Sent) -> None:
        """Nobody is told of a failure while a backend that does not fail is at it."""
        live = self.router.live if self.router is not None else None
        for host in self.backend_hosts():
            number = host.process.settings.number
            has_it = any(sent.rid in job.inputs for job in host.process.pipeline.jobs)
            if live is None or not has_it or host.machine.fails or self.harm.is_bad(sent.number):
                continue
            if number not in live.fleet.backends:
                continue
            state = live.fleet.state_of(number)
            known = [each.rid for batch in state.batches() for each in batch.requests]
            granted = sent.rid in known
            if granted and number in sent.frontend.hub.backends:
                self.clients.broken(f"request {sent.number} failed while {host.loop.name} had it")
