"""A live router and backends that fetch before they run, on a virtual clock; l(b) = 4 + b ms."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from router_world import TABLE, FakeLink, FakeWake

from fermata.deployments.backend.batch_pipeline import PipelineLimits
from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.messages import RID_BITS, Done, Dropped, Message, Ready, Run, Submit
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec

USUAL_NS = ms(0.3)


@dataclass(frozen=True)
class Fetch:
    """Inputs on their way to a backend."""

    now_ns: int
    application: str
    origins: frozenset[str]
    """Nodes of the frontends that hold them."""
    node: str
    """Of the backend."""
    size: int
    batch: int
    """How many batches of this application have been fetched before."""


@dataclass
class Sent:
    """A request and what became of it."""

    application: str
    at_ns: int
    deadline_ns: int
    node: str
    ended_at_ns: int = NEVER
    refused: str = ""

    @property
    def good(self) -> bool:
        return self.ended_at_ns <= self.deadline_ns


@dataclass
class Machine:
    """A backend: fetches in order, one batch ahead of the one that runs."""

    link: FakeLink
    ready_at_ns: int = 0
    free_at_ns: int = 0
    jobs: list[Run] = field(default_factory=list)


class FetchWorld:
    """Clients, frontends and backends around one live router."""

    def __init__(
        self,
        fetch_ns: Callable[[Fetch], int] = lambda fetch: USUAL_NS,
        slos_ms: dict[str, float] | None = None,
        frontends: Iterable[str] = ("node",),
        backends: Iterable[str] = ("node",),
        policy: str = "deferred",
        options: dict[str, object] | None = None,
        table: tuple[int, ...] = TABLE,
        lead_ns: int = ms(1),
        fair_shares: bool = False,
    ) -> None:
        self.now_ns = SECOND
        self.fetch_ns = fetch_ns
        self.table = table
        self.slos_ns = {name: ms(each) for name, each in (slos_ms or {"cats": 20}).items()}
        applications = tuple(
            ApplicationSpec(name, slo_ns, (VariantSpec(name, table, accuracy=0.7),))
            for name, slo_ns in self.slos_ns.items()
        )
        if options is None:
            options = {"hold": "deferred"} if policy == "deferred" else {}
        config = RouterConfig(
            applications, policy, options, lead_ns=lead_ns, fair_shares=fair_shares
        )
        self.soon: list[Callable[[], None]] = []
        self.wakes: list[FakeWake] = []
        self.router = LiveRouter(config, 3, lambda: self.now_ns, self.soon.append, self._wake)
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.entries = 0
        self.sent: dict[int, Sent] = {}
        self.fetched: dict[str, int] = {}
        self.frontends = [self._link("frontend", 2 + at, node) for at, node in enumerate(frontends)]
        self.machines = [
            Machine(self._link("backend", 50 + at, node)) for at, node in enumerate(backends)
        ]
        for machine in self.machines:
            self._hear(machine.link, Ready("emulated", tuple(self.slos_ns)))

    def _wake(self, call: Callable[[], None]) -> FakeWake:
        self.wakes.append(FakeWake(call))
        return self.wakes[-1]

    def _link(self, role: str, number: int, node: str) -> FakeLink:
        link = FakeLink(role, number, node)
        self.router.on_up(link)
        return link

    # Time

    def at(self, at_ns: int, call: Callable[[], None]) -> None:
        self.entries += 1
        heappush(self.agenda, (at_ns, self.entries, call))

    def run_until(self, until_ns: int) -> None:
        while True:
            agenda_ns = self.agenda[0][0] if self.agenda else NEVER
            next_ns = min(agenda_ns, self.wakes[0].at_ns)
            if next_ns > until_ns:
                break
            self.now_ns = max(self.now_ns, next_ns)
            if agenda_ns <= self.wakes[0].at_ns:
                heappop(self.agenda)[2]()
            else:
                self.wakes[0].at_ns = NEVER
                self.wakes[0].call()
                self._settle()
        self.now_ns = until_ns

    def _hear(self, link: FakeLink, *messages: Message) -> None:
        self.router.on_messages(link, list(messages))
        self._settle()

    def _settle(self) -> None:
        while self.soon:
            self.soon.pop(0)()
        for machine in self.machines:
            for run in machine.link.take(Run):
                self._order(machine, run)
        for frontend in self.frontends:
            for dropped in frontend.take(Dropped):
                self.sent[dropped.rid].refused = dropped.reason

    # Backends

    def _order(self, machine: Machine, run: Run) -> None:
        assert len(machine.jobs) < PipelineLimits().batches_max
        origins = frozenset(self.sent[rid].node for rid in run.rids)
        done = self.fetched[run.variant] = self.fetched.get(run.variant, 0) + 1
        fetch = Fetch(
            self.now_ns, run.variant, origins, machine.link.peer.node, len(run.rids), done - 1
        )
        ready_at_ns = max(machine.ready_at_ns, self.now_ns + self.fetch_ns(fetch))
        run_ns = self.table[len(run.rids) - 1]
        end_at_ns = max(ready_at_ns, machine.free_at_ns) + run_ns
        machine.ready_at_ns, machine.free_at_ns = ready_at_ns, end_at_ns
        machine.jobs.append(run)
        late_ns = ready_at_ns - self.now_ns - run.start_in_ns
        self.at(end_at_ns, lambda: self._end(machine, run, Done(run.batch, run_ns, late_ns)))

    def _end(self, machine: Machine, run: Run, done: Done) -> None:
        machine.jobs.remove(run)
        for rid in run.rids:
            self.sent[rid].ended_at_ns = self.now_ns
        self._hear(machine.link, done)

    # Clients

    def offer(
        self,
        rps: float,
        for_s: float,
        application: str = "cats",
        frontend: int = 0,
        slo_ms: float = 0,
        seed: int = 1,
    ) -> None:
        """Plan Poisson arrivals from now on; they come as time goes by."""
        rng = random.Random(f"{seed} {application} {frontend}")
        at_ns, until_ns = self.now_ns, self.now_ns + int(for_s * SECOND)
        slo_ns = ms(slo_ms) if slo_ms else self.slos_ns[application]
        while True:
            at_ns += 1 + int(rng.expovariate(rps) * SECOND)
            if at_ns >= until_ns:
                return
            self.at(at_ns, lambda: self.submit(application, frontend, slo_ns))

    def submit(self, application: str, frontend: int, slo_ns: int) -> None:
        link = self.frontends[frontend]
        rid = (link.peer.number << RID_BITS) + len(self.sent)
        self.sent[rid] = Sent(application, self.now_ns, self.now_ns + slo_ns, link.peer.node)
        self._hear(link, Submit(rid, application, slo_ns, slo_ns))

    def run(self, for_s: float) -> None:
        self.run_until(self.now_ns + int(for_s * SECOND))

    def good(
        self, from_s: float, to_s: float = 1e9, application: str = "", node: str = ""
    ) -> tuple[int, int]:
        """(good, all) of the requests sent between these times since the start."""
        found = [
            each.good
            for each in self.sent.values()
            if from_s <= (each.at_ns - SECOND) / SECOND < to_s
            and application in ("", each.application)
            and node in ("", each.node)
        ]
        return sum(found), len(found)
