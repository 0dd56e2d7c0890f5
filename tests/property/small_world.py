"""A small driver of the engine: events nobody would think of, every rule checked at each step."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from policy_zoo import CHOOSING, NOT_STRICT, SOURCES

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch, Compute, Dispatch, Drop, DropReason, Request
from fermata.router.core.fairness.shares import FairAdmission
from fermata.router.core.matching.matcher import RULES
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.sizing import LOSSES, after_loss

SIZE_MAX = 12
US = 1000


def examples(count: int) -> settings:
    """So many workloads, the same ones every time, however long they take."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@dataclass(frozen=True)
class Workload:
    """Everything that happens from outside; `events` are (gap in us, what, two numbers)."""

    seed: int
    applications: int
    backends: int
    mixed: bool
    """Every second backend is of a slower kind."""
    lead_us: int
    lead_per_request_us: int
    jitter: float
    grace_ms: int
    """From deadline to hard limit."""
    warm_us: int
    """Distance of the arrivals in the first 120 ms, which teach policies a rate; 0: none."""
    events: list[tuple[int, str, int, int]]


KINDS = (
    ["request"] * 8
    + ["burst"] * 4
    + ["steady"]
    + ["cancel"] * 2
    + ["down"] * 2
    + ["up", "drain", "eject"]
    + ["fail"] * 2
)


def workloads(kinds: list[str], backends_max: int = 4) -> st.SearchStrategy[Workload]:
    events = st.tuples(
        st.one_of(st.just(0), st.integers(1, 900), st.integers(1000, 40_000)),
        st.sampled_from(kinds),
        st.integers(0, 11),
        st.integers(0, 5),
    )
    return st.builds(
        Workload,
        seed=st.integers(0, 2**16),
        applications=st.integers(1, 3),
        backends=st.integers(1, backends_max),
        mixed=st.booleans(),
        lead_us=st.sampled_from([0, 0, 300, 2000, 9000]),
        lead_per_request_us=st.sampled_from([0, 0, 100]),
        jitter=st.sampled_from([0.0, 0.0, 0.02, 0.3]),
        grace_ms=st.sampled_from([0, 10]),
        warm_us=st.sampled_from([0, 0, 700, 2500]),
        events=st.lists(events, min_size=6, max_size=40),
    )


WORKLOADS = workloads(KINDS)
LOADING = workloads([*KINDS, *["load"] * 6], backends_max=9)
"""Backends load models and unload them."""
SLOS_US = (4_000, 6_000, 9_000, 15_000, 40_000, 100_000)


@dataclass
class Machine:
    """A backend as the driver sees it."""

    kind: int
    up: bool = False
    draining: bool = False
    ejected: bool = False
    failing: int = 0
    """So many batches give no results."""
    life: int = 0
    running: Batch | None = None
    waiting: list[Batch] = field(default_factory=list)
    resident: frozenset[int] | None = None
    began_at_ns: int = 0

    def holds(self, variants: Iterable[int]) -> bool:
        return self.resident is None or self.resident.issuperset(variants)


@dataclass
class Fate:
    """What the driver knows of one request."""

    request: Request
    plan_ns: int
    """Planned run time alone when it arrived."""
    excused: bool
    """There was a time when no backend was free for it, or it never had a chance."""
    ended: str = ""


@dataclass
class World:
    """A small driver: one engine, its machines, and every rule checked at every step."""

    name: str
    load: Workload
    fair: bool = False
    """Whoever is above the fair share is refused."""
    placed: bool = False
    """Each backend holds only some of the models; none can be swapped in."""
    room: int = 0
    """Of every second backend, the first included: the largest batch; 0: as the profile says."""
    now_ns: int = 0
    wakes: int = 0
    fates: dict[int, Fate] = field(default_factory=dict)
    digest: list[tuple[object, ...]] = field(default_factory=list)
    agenda: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Ends of batches: (when, tie-break, backend, life)."""
    lost: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """The share that each application loses, as its policy knows it, drops of this instant too."""

    def __post_init__(self) -> None:
        load = self.load
        self.rng = random.Random(load.seed)
        costs = Costs()
        for variant in range(load.applications):
            alpha, beta = 300 * US * (1 + variant), ms(1 + 2 * variant)
            table = [beta + alpha * size for size in range(1, SIZE_MAX + 1)]
            costs.add(variant, table, swap_in_ns=0 if self.placed else ms(3))
            costs.add(variant, [latency_ns * 3 // 2 for latency_ns in table], kind=1)
        self.engine = Engine(costs)
        sources = SOURCES[self.name](range(load.applications), random.Random(load.seed))
        for application, source in enumerate(sources):
            admission = (
                FairAdmission(source, (application,), SLOS_US[0] * US) if self.fair else None
            )
            self.engine.add_application(source, admission=admission)
        self.rank = self.engine.ranks[0]
        self.rank.lead_start_ns = load.lead_us * US
        self.rank.lead_per_request_ns = load.lead_per_request_us * US
        self.owner = 0 if sources[0].owns_backends else None
        self.machines = [Machine(index % 2 if load.mixed else 0) for index in range(load.backends)]
        if self.room:
            for backend in range(0, load.backends, 2):
                costs.limit_on(backend, dict.fromkeys(range(load.applications), self.room))
        for backend in range(load.backends):
            self.bring_up(backend)

    # From outside

    def play(self) -> None:
        at_ns = 0
        while self.load.warm_us and at_ns < ms(120):
            self.run_until(at_ns)
            self.send(at_ns // ms(1), 3 + at_ns // ms(1) % 2)
            at_ns += self.load.warm_us * US
        for gap_us, kind, one, other in self.load.events:
            at_ns += gap_us * US
            self.run_until(at_ns)
            if kind == "request":
                self.send(one, other)
            elif kind == "burst":
                for _ in range(2 + one):
                    self.send(one, other)
            elif kind == "steady":
                for _ in range(20):
                    at_ns += (1 + one) * 500 * US
                    self.run_until(at_ns)
                    self.send(one, other)
            elif kind == "cancel":
                self.cancel(one)
            elif kind == "load":
                self.load_or_unload(one % len(self.machines), other % self.load.applications)
            else:
                self.change(kind, one % len(self.machines))
        self.run_until(NEVER - 1)

    def send(self, one: int, other: int) -> None:
        rid = len(self.fates)
        application = one % self.load.applications
        deadline_ns = self.now_ns + SLOS_US[other] * US
        expires_at_ns = deadline_ns + ms(self.load.grace_ms)
        request = Request(rid, application, self.now_ns, deadline_ns, expires_at_ns)
        plan_ns = self.engine.costs.of(application).plan_ns[1]
        # One nanosecond to spare: the eager wait for everything of their instant.
        needs_ns = self.rank.lead_ns(1) + plan_ns + 1
        hopeless = deadline_ns < self.now_ns + needs_ns
        self.fates[rid] = Fate(request, plan_ns, hopeless or not self.at_ease(application))
        self.engine.on_request(self.now_ns, request)
        self.settle()

    def cancel(self, back: int) -> None:
        rid = len(self.fates) - 1 - back
        queued = rid in self.engine.outbox.queued
        assert self.engine.on_cancel(self.now_ns, rid) == queued
        self.settle()

    def change(self, kind: str, backend: int) -> None:
        machine = self.machines[backend]
        if kind == "up" and not machine.up:
            self.bring_up(backend)
        elif kind == "down" and machine.up:
            self.take_down(backend)
        elif kind == "fail" and machine.up:
            machine.failing += 1
        elif kind == "eject" and machine.up and not machine.draining:
            machine.ejected = not machine.ejected
            call = self.engine.on_eject if machine.ejected else self.engine.on_give_back
            call(self.now_ns, backend)
            self.settle()
        elif kind == "drain" and machine.up and not machine.draining:
            machine.draining, machine.ejected = True, False
            self.engine.on_drain(self.now_ns, backend)
            self.settle()
            if machine.running is None:
                self.take_down(backend)

    def load_or_unload(self, backend: int, variant: int) -> None:
        machine = self.machines[backend]
        if machine.up and machine.resident is not None:
            machine.resident ^= {variant}
            self.engine.on_resident(self.now_ns, backend, machine.resident)
            self.settle()

    def bring_up(self, backend: int) -> None:
        machine = self.machines[backend]
        resident = frozenset((0,)) if self.name == "swapper" else None
        if self.placed and (backend + machine.life) % 3:
            resident = frozenset(((backend + machine.life) % self.load.applications,))
        machine.up, machine.draining, machine.resident = True, False, resident
        machine.ejected, machine.failing = False, 0
        self.engine.on_backend_up(
            self.now_ns, backend, kind=machine.kind, owner=self.owner, resident=resident
        )
        self.settle()

    def take_down(self, backend: int) -> None:
        machine = self.machines[backend]
        for batch in (machine.running, *machine.waiting):
            for request in batch.requests if batch else ():
                fate = self.fates[request.rid]
                fate.ended, fate.excused = "", True
        machine.up, machine.running, machine.waiting = False, None, []
        machine.life += 1
        self.engine.on_backend_down(self.now_ns, backend)
        self.settle()

    # Time

    def run_until(self, to_ns: int) -> None:
        """Everything due by then: ends of batches first, then timers."""
        while True:
            end_ns = self.agenda[0][0] if self.agenda else NEVER
            # With a lead above the run time the engine asks for a time that is past.
            wake_ns = max(self.now_ns, self.engine.wake_at_ns())
            if min(end_ns, wake_ns) > to_ns:
                break
            self.now_ns = min(end_ns, wake_ns)
            if end_ns <= wake_ns:
                self.end_batch()
            else:
                self.wakes += 1
                self.engine.on_time(self.now_ns)
                assert self.engine.wake_at_ns() > self.now_ns, "a busy loop"
                self.settle()
        if to_ns < NEVER - 1:
            self.now_ns = to_ns

    def end_batch(self) -> None:
        _, _, backend, life = heappop(self.agenda)
        machine = self.machines[backend]
        if machine.life != life:
            return
        batch = machine.running
        assert batch is not None
        failed = "boom" if machine.failing else ""
        machine.failing = max(0, machine.failing - 1)
        for request in batch.requests:
            self.end(request, "done")
            if failed:
                fate = self.fates[request.rid]
                fate.ended, fate.excused = "", True
        machine.running = None
        run_ns = self.now_ns - machine.began_at_ns
        if machine.waiting:
            self.start(backend, machine.waiting.pop(0))
        left_out = list(batch.requests) if failed else ()
        ended = self.engine.on_done(self.now_ns, backend, run_ns, failed=failed, left_out=left_out)
        assert ended is batch
        self.settle()
        if machine.draining and machine.running is None:
            self.take_down(backend)

    def start(self, backend: int, batch: Batch) -> None:
        machine = self.machines[backend]
        machine.running = batch
        begin_ns = max(self.now_ns, batch.start_at_ns)
        run_ns = self.engine.costs.of(batch.variant, machine.kind).p50_ns[len(batch.requests)]
        run_ns = int(run_ns * (1.0 + abs(self.rng.gauss(0.0, self.load.jitter))))
        if self.name == "swapper" and batch.variant not in (machine.resident or ()):
            run_ns += self.engine.costs.swap_in_ns[batch.variant]
            machine.resident = frozenset((batch.variant,))
        machine.began_at_ns = begin_ns
        heappush(self.agenda, (begin_ns + run_ns, batch.batch_id, backend, machine.life))

    # The rules

    def settle(self) -> None:
        """Carry the effects out, and note for whom no backend is free now."""
        while effects := self.engine.take_effects():
            for index, effect in enumerate(effects):
                if isinstance(effect, Dispatch):
                    self.check_dispatch(effect)
                elif isinstance(effect, Drop):
                    self.check_drop(effect, effects[index + 1 :])
                elif isinstance(effect, Compute):
                    self.engine.on_computed(self.now_ns, effect.application, effect.work())
        for application, source in enumerate(self.engine.sources):
            if isinstance(source, ModelThread):
                self.lost[application] = source.queue.lost
        at_ease = [self.at_ease(application) for application in range(self.load.applications)]
        for rid in self.engine.outbox.queued:
            fate = self.fates[rid]
            plan_ns = self.engine.costs.of(fate.request.application).plan_ns[1]
            if not at_ease[fate.request.application] or plan_ns > fate.plan_ns:
                fate.excused = True

    def at_ease(self, application: int) -> bool:
        """Whether a backend that holds the model is free, and all backends start and run as fast
        as policies think."""
        if self.load.mixed or self.engine.costs.backend_factor or self.load.lead_per_request_us:
            return False
        choices = range(self.load.applications) if self.name in CHOOSING else (application,)
        free = (each for each in self.machines if each.up and not each.draining)
        return any(each.holds(choices) and not each.ejected and not each.running for each in free)

    def check_dispatch(self, effect: Dispatch) -> None:
        batch, machine = effect.batch, self.machines[effect.backend]
        rids = tuple(request.rid for request in batch.requests)
        self.digest.append((self.now_ns, effect.backend, batch.variant, batch.start_at_ns, rids))
        assert 1 <= len(rids) <= SIZE_MAX
        assert effect.backend % 2 == 1 or not 0 < self.room < len(rids)
        assert machine.up
        assert not machine.draining
        assert self.name == "swapper" or machine.holds((batch.variant,))
        assert not machine.ejected
        assert len(machine.waiting) < RULES.queued_max, "more wait than the rules allow"
        assert batch.start_at_ns >= self.now_ns
        end_at_ns = batch.start_at_ns + batch.plan_ns
        for request in batch.requests:
            self.end(request, "sent")
            assert request.application == batch.variant or self.name in CHOOSING
            assert end_at_ns <= request.expires_at_ns
            assert self.name in NOT_STRICT or end_at_ns <= request.deadline_ns
        if machine.running is None:
            self.start(effect.backend, batch)
        else:
            machine.waiting.append(batch)

    def check_drop(self, effect: Drop, later: Sequence[object]) -> None:
        request, reason = effect.request, effect.reason
        self.digest.append((self.now_ns, request.rid, reason))
        self.end(request, "dropped")
        fate = self.fates[request.rid]
        source = self.engine.sources[request.application]
        self.lost[request.application] = after_loss(self.lost[request.application])
        if reason == DropReason.FAILED:
            assert request.error == "boom"
        elif reason == DropReason.LOST:
            assert request.retried or request.deadline_ns <= self.now_ns
        elif reason == DropReason.WINDOW and isinstance(source, ModelThread):
            # Who left after it was still in the queue with it.
            with_it = 1 + len(source.queue) + sum(self.left(each, request) for each in later)
            assert with_it > 1, "it goes for nobody"
            # In overload a head makes room for as many as wait, though these fill no window.
            assert with_it >= source.window or self.lost[request.application] > LOSSES.losing
        elif reason == DropReason.LATE and self.owner is None and self.name != "swapper":
            assert fate.excused, f"{request} could have run on a free backend"

    def left(self, effect: object, request: Request) -> int:
        """How many requests of the same application this effect took out of the queue."""
        if isinstance(effect, Dispatch):
            same = [each.application == request.application for each in effect.batch.requests]
            return sum(same)
        return int(isinstance(effect, Drop) and effect.request.application == request.application)

    def end(self, request: Request, how: str) -> None:
        fate = self.fates[request.rid]
        assert fate.request is request
        assert fate.ended == ("sent" if how == "done" else ""), f"{request} ended twice"
        fate.ended = how

    def check_end(self) -> None:
        """Nobody is left, and every account agrees."""
        assert not self.engine.outbox.queued
        assert {fate.ended for fate in self.fates.values()} <= {"done", "dropped"}
        counts = self.engine.ledger.applications
        ended = sum(count.good + count.late + sum(count.drops.values()) for count in counts)
        assert ended == len(self.fates)
        serving = [machine for machine in self.machines if machine.up and not machine.ejected]
        assert self.rank.signals.backends == len(serving)
        assert self.wakes <= 100 + 40 * len(self.fates)
        assert self.engine.wake_at_ns() == NEVER
