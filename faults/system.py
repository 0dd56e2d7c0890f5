"""The whole system in one world: who runs, who is gone, and what becomes of clients' requests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from clients.wire.tensors import RawTensor, join_bytes
from deployments.backend.process import UnfitError
from deployments.frontend.entry import Arrival
from deployments.frontend.intake import Intake
from deployments.frontend.models import Registry, ServedModel, TensorSpec
from deployments.frontend.options import FrontendOptions
from deployments.frontend.outcomes import Outcome, Refusal, RefusalReason
from faults.network import Network
from faults.processes import BackendHost, FrontendHost, RouterHost
from faults.world import BrokenError, VirtualLoop, World
from router.assembly import RouterConfig, ServedApplication, ServedVariant
from router.core.units import ms, seconds
from router.links.messages import Result
from router.links.session import LinkError
from router.links.transport import Resolve
from router.numbers import take_number

PROMISE_NS = ms(50)
"""After a request has expired: by then its client has an answer."""
FIND_NS = ms(30)
"""To ask the cluster where the router is, at most."""
RESTART_NS = ms(1400)
"""Until the cluster has a new router in place of a dead one; of a backend or frontend below."""
REPLACE_NS = ms(4000)
SETTLE_NS = seconds(75)
"""From the end of the last fault until all must be well: a replacement, and a few attempts to
reach everyone; a model that was in quarantine takes longest."""
LOOK_NS = ms(100)
HEALTH_NS = seconds(1)
OUTDATED = 0.2
"""Of the answers to where the router is."""
NUMBER_BITS = 6
"""Few, so that two processes often want the same number."""
REST_NS = seconds(3)
"""For backends that try to reach a frontend, or have given up just now."""
POLICIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("deferred", {"hold": "deferred"}),
    ("deferred", {"hold": "auto"}),
    ("eager", {}),
    ("timeout", {}),
    ("batch-queues", {}),
    ("partitioned", {}),
)
TABLES = {
    "quick-1": tuple(ms(3 + size) for size in range(1, 9)),
    "text-1": tuple(ms(6 + 2 * size) for size in range(1, 9)),
}
PLAIN = ServedModel("quick", TensorSpec("input", "INT64", (1,)), ms(80), ms(80))
ENCODED = ServedModel(
    "text",
    TensorSpec("input", "INT64", (1,)),
    ms(150),
    ms(220),
    read=lambda data: np.array([int(data)], np.int64),
)


@dataclass(slots=True)
class Sent:
    """One request in its client's ledger."""

    number: int
    model: ServedModel
    frontend: FrontendHost
    due_ns: int = 0
    """An answer has to be there by then, as long as its frontend runs."""
    held_ns: int = 0
    """How long its frontend had been held when it came."""
    rid: int = -1
    probe: bool = False
    """Sent when all is well again: it has to be served."""
    outcomes: list[Outcome] = field(default_factory=list)
    answered_at_ns: int = 0
    sent_at_ns: int = 0
    cancelled: bool = False


class System:
    """Everything that runs, and the ledger."""

    def __init__(
        self,
        world: World,
        backends: int,
        frontends: int,
        plant: Callable[[object], None] | None = None,
        standby: bool | None = None,
    ) -> None:
        """`standby`: a second router waits to lead; None: the seed decides."""
        self.world = world
        world.network = Network(world)
        self.rng = world.rng("system")
        policy, options = self.rng.choice(POLICIES)
        self.config = RouterConfig(
            (
                ServedApplication("quick", ms(80), (ServedVariant("quick-1", TABLES["quick-1"]),)),
                ServedApplication("text", ms(150), (ServedVariant("text-1", TABLES["text-1"]),)),
            ),
            policy,
            options,
            fair_shares=True,
        )
        self.counts: dict[str, int] = {}
        self.owners: dict[tuple[str, int], str] = {}
        """Of the numbers of each kind of process, as the cluster remembers them."""
        self.standby = self.rng.random() < 0.5 if standby is None else standby
        self.seats: list[RouterHost | None] = [None, None] if self.standby else [None]
        """The routers that the cluster names when asked."""
        self.resolvers = [partial(self._resolver, seat) for seat in range(len(self.seats))]
        self.routers: list[RouterHost] = []
        self.last_epoch = 0
        """What the cluster remembers."""
        self.frontends: list[FrontendHost] = []
        self.backends: list[BackendHost] = []
        self.ledger: list[Sent] = []
        self.poison = ""
        """A variant that kills whatever process runs it."""
        self.excused: set[int] = set()
        """Backends to which something has happened: they may be taken for hung."""
        self.starting = 0
        """Processes that the cluster is about to start."""
        self.open: dict[int, Sent] = {}
        """By number: no answer yet."""
        self.on_start: list[Callable[[object], None]] = [] if plant is None else [plant]
        """Told of each process before it runs; planted bugs come in here."""
        for seat in range(len(self.seats)):
            self.start_router(seat)
        for _ in range(frontends):
            self.start_frontend()
        for _ in range(backends):
            self.start_backend()
        self._check_health()

    def _check_health(self) -> None:
        """As Serve does: whoever says that it is unfit is replaced."""
        for host in tuple(self.backends):
            if not host.loop.held and not host.leaving:
                try:
                    host.process.check()
                except UnfitError as error:
                    self.world.say(host.loop.name, "is unfit:", error)
                    if not host.process.retired and not host.machine.hangs:
                        raise BrokenError(f"{host.loop.name} was fit: {error}") from None
                    self.lose_backend(host)
        self.world.after(HEALTH_NS, self._check_health)

    def _name(self, kind: str) -> str:
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        return f"{kind}-{count}"

    def _name_and_number(self, kind: str) -> tuple[str, int]:
        name = self._name(kind)

        def claim(number: int) -> str:
            return self.owners.setdefault((kind, number), name)

        return name, take_number(name, claim, NUMBER_BITS)

    # Processes

    @property
    def router(self) -> RouterHost | None:
        """The one that leads; where nobody waits to, the one that there is."""
        if not self.standby:
            return self.seats[0]
        leading = [each for each in self.seats if each is not None and each.leads]
        return max(leading, key=lambda each: each.epoch, default=None)

    def start_router(self, seat: int = 0) -> None:
        name = self._name("router")
        other = self.resolvers[1 - seat] if self.standby else None
        host = RouterHost(
            self.world, name, self.config, self.last_epoch, self._stand_down, seat, other
        )
        self.last_epoch = max(self.last_epoch, host.epoch)
        self.routers.append(host)
        self.seats[seat] = host
        self._started(host)
        host.loop.start(host.run(self._on_router_up))

    def _stand_down(self, host: RouterHost) -> None:
        if host in self.seats:
            self.lose_router(host)
        else:
            host.loop.die()

    def _on_router_up(self, host: RouterHost) -> None:
        self._started(host.live)

    def start_frontend(self) -> None:
        name, number = self._name_and_number("frontend")
        options = FrontendOptions(number, link_host="world", node="world", shared_memory=False)
        host = FrontendHost(
            self.world, name, options, Registry.of((PLAIN, ENCODED)), self.resolvers
        )
        self.frontends.append(host)
        self._started(host)
        host.loop.start(host.run())

    def start_backend(self) -> None:
        name, number = self._name_and_number("backend")
        host = BackendHost(self.world, name, number, TABLES, self.resolvers, self.lose_backend)
        host.machine.poison = self.poison
        self.backends.append(host)
        self._started(host)
        host.loop.start(host.run())

    def _started(self, what: object) -> None:
        for call in self.on_start:
            call(what)

    def _resolver(self, seat: int, loop: VirtualLoop) -> Resolve:
        async def resolve() -> str:
            await loop.run_in_executor(None, lambda: None)
            router = self.seats[seat]
            before = [each for each in self.routers if each.number == seat]
            if loop.rng.random() < OUTDATED and len(before) > 1:
                # Whoever was asked had not heard of the new one yet.
                router = before[-2]
            if router is None or not router.loop.alive or not router.address:
                raise LinkError("router is not there")
            return router.address

        return resolve

    def lose_router(self, host: RouterHost | None = None, back_in_ns: int = RESTART_NS) -> None:
        """A router dies, the one that leads unless said; the cluster starts it again."""
        host = host or self.router
        if host is not None and host in self.seats:
            host.loop.die()
            self.seats[host.number] = None
            self._start_later(back_in_ns, partial(self.start_router, host.number))

    def lose_backend(self, host: BackendHost, back_in_ns: int = REPLACE_NS) -> None:
        if host.loop.alive:
            host.loop.die()
            # One that was leaving has its successor.
            if host in self.backends:
                self.backends.remove(host)
                self._start_later(back_in_ns, self.start_backend)

    def lose_frontend(self, host: FrontendHost, back_in_ns: int = REPLACE_NS) -> None:
        """Its clients see their connections end: that is their answer."""
        if host.loop.alive:
            host.loop.die()
            self.frontends.remove(host)
            for number in [n for n, sent in self.open.items() if sent.frontend is host]:
                del self.open[number]
            self._start_later(back_in_ns, self.start_frontend)

    def _start_later(self, wait_ns: int, start: Callable[[], None]) -> None:
        def now() -> None:
            self.starting -= 1
            start()

        self.starting += 1
        self.world.after(wait_ns, now)

    # Peace

    def settle(self) -> None:
        """Play on until everyone has found everyone, and what came last has ended."""
        world, give_up_at_ns = self.world, self.world.now_ns + SETTLE_NS
        while not self._whole() and world.now_ns < give_up_at_ns:
            world.run_until(world.now_ns + LOOK_NS)
        world.run_until(world.now_ns + REST_NS)

    def _whole(self) -> bool:
        live = self.router.live if self.router is not None else None
        if self.starting or live is None or live.presence.barred:
            return False
        if not all(each is not None and self._seated(each) for each in self.seats):
            return False
        linked = all(
            each.process.slot.announced and not each.machine.hangs for each in self.backends
        )
        return (
            linked
            and sorted(live.backends) == self.backend_numbers()
            and sorted(live.frontends) == self.frontend_numbers()
        )

    def backend_numbers(self) -> list[int]:
        return sorted(each.process.settings.number for each in self.backends)

    def frontend_numbers(self) -> list[int]:
        return sorted(each.board.options.number for each in self.frontends)

    def _seated(self, host: RouterHost) -> bool:
        """It leads and is the only one, or watches the one that does."""
        if host.watcher is None or host is self.router:
            return True
        return not host.leads and host.watcher.watched is not None

    # Clients

    def send(self, model: ServedModel, frontend: FrontendHost, probe: bool = False) -> Sent:
        """One request, now or as soon as its frontend looks."""
        sent = Sent(len(self.ledger), model, frontend, probe=probe)
        self.ledger.append(sent)
        self.world.enter(self.world.now_ns, lambda: self._open(sent), frontend.loop)
        return sent

    def _open(self, sent: Sent) -> None:
        model, world = sent.model, self.world
        encoded = model.read is not None
        if encoded:
            data = join_bytes([str(sent.number).encode()])
            tensor = RawTensor("input", "BYTES", (1,), data)
        else:
            tensor = RawTensor("input", "INT64", (1,), sent.number.to_bytes(8, "little"))
        arrival = Arrival(model.name, model.slo_ns, model.hard_limit_ns, 8)
        intake = Intake(model, "1", "", arrival, tensor, encoded, batched=False)
        sent.sent_at_ns = world.now_ns
        sent.due_ns = world.now_ns + model.hard_limit_ns + PROMISE_NS
        sent.held_ns = sent.frontend.loop.held_ns
        self.open[sent.number] = sent
        answer = sent.frontend.board.desk.open(
            intake, lambda _, outcome: self._close(sent, outcome)
        )
        if isinstance(answer, Refusal):
            self._close(sent, answer)
        else:
            sent.rid = answer

    def cancel(self, sent: Sent) -> None:
        """Its client leaves."""
        if sent.number in self.open and sent.rid >= 0 and sent.frontend.loop.alive:
            sent.cancelled = True
            call = sent.frontend.board.desk.cancel
            self.world.enter(self.world.now_ns, lambda: call(sent.rid), sent.frontend.loop)

    def _close(self, sent: Sent, outcome: Outcome) -> None:
        sent.outcomes.append(outcome)
        sent.answered_at_ns = self.world.now_ns
        if len(sent.outcomes) > 1:
            self._broken(f"request {sent.number} was answered twice: {sent.outcomes}")
        self.open.pop(sent.number, None)
        if isinstance(outcome, Result):
            value = int(np.frombuffer(outcome.tensors[0][3], np.int64)[0])
            if value != sent.number:
                self._broken(f"request {sent.number} got the answer of {value}")
        elif outcome.reason == RefusalReason.FAILED:
            self._check_failed(sent)

    def _broken(self, what: str) -> None:
        """Said after this step: whoever answers survives what a client raises."""
        self.world.trouble.append(what)

    def _check_failed(self, sent: Sent) -> None:
        """Nobody is told of a failure while a backend that does not fail is at it."""
        live = self.router.live if self.router is not None else None
        for host in self.backends:
            number = host.process.settings.number
            has_it = any(sent.rid in job.inputs for job in host.process.slot.jobs)
            if live is None or not has_it or host.machine.fails or number not in live.backends:
                continue
            state = live.engine.backend_rank[number].backends[number]
            known = [each for each in (state.running, state.queued) if each is not None]
            granted = any(sent.rid == each.rid for batch in known for each in batch.requests)
            if granted and number in sent.frontend.board.backends:
                self._broken(f"request {sent.number} failed while {host.loop.name} had it")
