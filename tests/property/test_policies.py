"""What every policy must keep, under arrivals, cancels and failures that nobody would think of."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.core.costs import Costs
from router.core.deadline_queue import DeadlineQueue
from router.core.engine import Engine
from router.core.events import Batch, Compute, Dispatch, Drop, DropReason, Request
from router.core.source import NO_LANES, POOL_ONLY, Bid, Slot, Source, own_lane
from router.core.units import NEVER, ms
from router.policies.catalog import POLICIES
from router.policies.deferred import ModelThread
from router.policies.family import Family, alone
from router.policies.rl.batching import LIMITS
from router.policies.rl.checkpoint import Checkpoint
from router.policies.rl.network import Network
from router.policies.rl.observation import Scales, width
from router.policies.rl.slots import SlotRouting, SlotRoutingOptions
from router.policies.stranded import Stranded

SIZE_MAX = 12
US = 1000


# Two toy policies, to show that the seam holds what its description promises


class Lanes(Source):
    """A queue for each backend; requests join the shortest and leave by deadline."""

    owns_backends = True

    def __init__(self, variants: Sequence[int]) -> None:
        self.variants = variants
        self.queues: dict[int, DeadlineQueue] = {}
        self.stranded = Stranded(self)
        self.bids: dict[int, Bid] = {}

    def _alone_ns(self, request: Request) -> int:
        variant = self.variants[request.application]
        return self.desk.lead_ns(1) + self.costs.of(variant).plan_ns[1]

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        if not self.queues:
            self.stranded.add(request, self._alone_ns(request))
            return NO_LANES
        backend = min(self.queues, key=lambda each: (len(self.queues[each]), each))
        self.queues[backend].push(request)
        return (own_lane(backend),)

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        for backend, queue in self.queues.items():
            if queue.remove(request):
                return (own_lane(backend),)
        return NO_LANES

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        if up:
            self.queues[backend] = DeadlineQueue()
            moved = self.stranded.take_all()
        else:
            queue = self.queues.pop(backend)
            moved = queue.pop_many(len(queue))
        lanes = [lane for request in moved for lane in self.on_request(now_ns, request)]
        return lanes

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.stranded.drop_hopeless(now_ns)
        return NO_LANES

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        queue = self.queues.get(lane - own_lane(0))
        if queue is None:
            return None
        while len(queue) and queue.first().deadline_ns < now_ns + self._alone_ns(queue.first()):
            self.outbox.drop(queue.pop(), DropReason.LATE)
        if not len(queue):
            return None
        bid = self.bids.setdefault(lane, Bid())
        bid.size = 1
        bid.ripe_at_ns = now_ns
        bid.key = bid.expires_at_ns = queue.first().deadline_ns - self._alone_ns(queue.first())
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        queue = self.queues[slot.backend]
        while len(queue):
            request = queue.pop()
            variant = self.variants[request.application]
            if slot.size_that_fits(variant, request.deadline_ns - slot.start_at_ns):
                return Batch(variant, [request])
            self.outbox.drop(request, DropReason.LATE)
        return None


class Swapper(Source):
    """One source for all applications of a pool whose backends hold one variant at a time."""

    def __init__(self, variants: Sequence[int]) -> None:
        self.variants = variants
        self.queues = [DeadlineQueue() for _ in variants]
        self.standing_bid = Bid()

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        self.queues[request.application].push(request)
        return POOL_ONLY

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        self.queues[request.application].remove(request)
        return POOL_ONLY

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        latest_start_ns = NEVER
        for queue, variant in zip(self.queues, self.variants, strict=True):
            alone_ns = self.desk.lead_ns(1) + self.costs.of(variant).plan_ns[1]
            while len(queue) and queue.first().deadline_ns < now_ns + alone_ns:
                self.outbox.drop(queue.pop(), DropReason.LATE)
            if len(queue):
                latest_start_ns = min(latest_start_ns, queue.first().deadline_ns - alone_ns)
        if latest_start_ns == NEVER:
            return None
        bid = self.standing_bid
        bid.size = 1
        bid.ripe_at_ns = now_ns
        bid.key = bid.expires_at_ns = latest_start_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        waiting = [application for application, queue in enumerate(self.queues) if len(queue)]
        # What is resident first, then whoever is most urgent; a swap may be too slow for all.
        waiting.sort(
            key=lambda each: (
                slot.swap_in_ns(self.variants[each]) > 0,
                self.queues[each].first().deadline_ns,
            )
        )
        for application in waiting:
            queue, variant = self.queues[application], self.variants[application]
            budget_ns = queue.first().deadline_ns - slot.start_at_ns
            size = min(slot.size_that_fits(variant, budget_ns), len(queue))
            if size > 0:
                return Batch(variant, queue.pop_many(size))
        return None


Build = Callable[[Sequence[int], random.Random], list[Source]]


def from_catalog(name: str, **changes: object) -> Build:
    policy = POLICIES[name]
    options = replace(policy.defaults, **changes) if changes else policy.defaults
    if not policy.chooses:
        return lambda variants, rng: policy.build(alone(variants), options, rng)

    def build(variants: Sequence[int], rng: random.Random) -> list[Source]:
        known = [replace(each, accuracy=(0.5,), input_sizes=(128,)) for each in alone(variants)]
        return policy.build(known, options, rng)

    return build


def trained(variants: Sequence[int], rng: random.Random) -> list[Source]:
    """Slot routing with a policy for two instances that batches; it falls back with others."""
    scales = Scales(buffer=4, slo_ns=ms(15), arrivals=50.0)
    inputs = width(2, scales)
    draw = np.random.default_rng(rng.randrange(2**16)).standard_normal
    checkpoint = Checkpoint(
        Network((draw((inputs, 2 + len(LIMITS))),), (draw(2 + len(LIMITS)),)),
        tiers=(0, 0),
        scales=scales,
        slot_ns=ms(20),
        low=np.zeros(inputs),
        high=np.full(inputs, 3.0),
        batching=True,
    )
    options = SlotRoutingOptions(buffer=4)
    return [SlotRouting(family, options, checkpoint, rng) for family in alone(variants)]


def choosing(name: str, **changes: object) -> Build:
    """A policy that may serve every application with every variant."""
    policy = POLICIES[name]
    options = replace(policy.defaults, **changes)

    def build(variants: Sequence[int], rng: random.Random) -> list[Source]:
        accuracy = tuple(0.5 + 0.1 * variant for variant in variants)
        families = [
            Family(each, f"application {each}", ms(15), tuple(variants), each, accuracy)
            for each in variants
        ]
        return policy.build(families, options, rng)

    return build


SOURCES: dict[str, Build] = {
    **{name: from_catalog(name) for name in POLICIES},
    "model-switching": from_catalog("model-switching", sustained_rps=(100.0,)),
    "deferred, auto": from_catalog("deferred", hold="auto"),
    "deferred, hold at most 5 ms": from_catalog("deferred", hold_ns_max=ms(5)),
    "deferred, beta lambda": from_catalog("deferred", beta_lambda=1.0, efficient=0.0),
    "rl, trained": trained,
    "central-queue, any variant": choosing("central-queue"),
    "central-queue, deferred": choosing("central-queue", hold="deferred"),
    "ramsis, any variant": choosing("ramsis", bins=10, queue_max=4, load_rps=200.0),
    "ramsis, shortest queue": choosing(
        "ramsis", bins=10, queue_max=4, load_rps=200.0, balancing="shortest-queue"
    ),
    "jellyfish-plus, any variant": choosing("jellyfish-plus"),
    "lanes": lambda variants, rng: [Lanes(variants)] * len(variants),
    "swapper": lambda variants, rng: [Swapper(variants)] * len(variants),
}
CHOOSING = {
    "central-queue, any variant",
    "central-queue, deferred",
    "ramsis, any variant",
    "ramsis, shortest queue",
    "jellyfish-plus, any variant",
}
NOT_STRICT = {
    "timeout",
    "sneakpeek",
    "grouped",
    "lo-edf",
    "lo-priority",
    "maxacc-edf",
    "single-queue",
    "rl, trained",
    "ramsis",
    "jellyfish-plus",
    "model-switching",
    "ramsis, any variant",
    "ramsis, shortest queue",
    "jellyfish-plus, any variant",
}


# What happens


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
    ["request"] * 8 + ["burst"] * 4 + ["steady"] + ["cancel"] * 2 + ["down"] * 2 + ["up", "drain"]
)
EVENTS = st.tuples(
    st.one_of(st.just(0), st.integers(1, 900), st.integers(1000, 40_000)),
    st.sampled_from(KINDS),
    st.integers(0, 11),
    st.integers(0, 5),
)
WORKLOADS = st.builds(
    Workload,
    seed=st.integers(0, 2**16),
    applications=st.integers(1, 3),
    backends=st.integers(1, 4),
    mixed=st.booleans(),
    lead_us=st.sampled_from([0, 0, 300, 2000, 9000]),
    lead_per_request_us=st.sampled_from([0, 0, 100]),
    jitter=st.sampled_from([0.0, 0.0, 0.02, 0.3]),
    grace_ms=st.sampled_from([0, 10]),
    warm_us=st.sampled_from([0, 0, 700, 2500]),
    events=st.lists(EVENTS, min_size=6, max_size=40),
)
SLOS_US = (4_000, 6_000, 9_000, 15_000, 40_000, 100_000)


@dataclass
class Machine:
    """A backend as the driver sees it."""

    kind: int
    up: bool = False
    draining: bool = False
    life: int = 0
    running: Batch | None = None
    waiting: Batch | None = None
    resident: frozenset[int] | None = None
    began_at_ns: int = 0


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
    now_ns: int = 0
    wakes: int = 0
    fates: dict[int, Fate] = field(default_factory=dict)
    digest: list[tuple[object, ...]] = field(default_factory=list)
    agenda: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Ends of batches: (when, tie-break, backend, life)."""

    def __post_init__(self) -> None:
        load = self.load
        self.rng = random.Random(load.seed)
        costs = Costs()
        for variant in range(load.applications):
            alpha, beta = 300 * US * (1 + variant), ms(1 + 2 * variant)
            table = [beta + alpha * size for size in range(1, SIZE_MAX + 1)]
            costs.add(variant, table, swap_in_ns=ms(3))
            costs.add(variant, [latency_ns * 3 // 2 for latency_ns in table], kind=1)
        self.engine = Engine(costs)
        sources = SOURCES[self.name](range(load.applications), random.Random(load.seed))
        for source in sources:
            self.engine.add_application(source)
        self.rank = self.engine.ranks[0]
        self.rank.lead_start_ns = load.lead_us * US
        self.rank.lead_per_request_ns = load.lead_per_request_us * US
        self.owner = 0 if sources[0].owns_backends else None
        self.machines = [Machine(index % 2 if load.mixed else 0) for index in range(load.backends)]
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
        self.fates[rid] = Fate(request, plan_ns, hopeless or not self.at_ease())
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
        elif kind == "drain" and machine.up and not machine.draining:
            machine.draining = True
            self.engine.on_drain(self.now_ns, backend)
            self.settle()
            if machine.running is None:
                self.take_down(backend)

    def bring_up(self, backend: int) -> None:
        machine = self.machines[backend]
        resident = frozenset((0,)) if self.name == "swapper" else None
        machine.up, machine.draining, machine.resident = True, False, resident
        self.engine.on_backend_up(
            self.now_ns, backend, kind=machine.kind, owner=self.owner, resident=resident
        )
        self.settle()

    def take_down(self, backend: int) -> None:
        machine = self.machines[backend]
        for batch in (machine.running, machine.waiting):
            for request in batch.requests if batch else ():
                fate = self.fates[request.rid]
                fate.ended, fate.excused = "", True
        machine.up, machine.running, machine.waiting = False, None, None
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
        for request in batch.requests:
            self.end(request, "done")
        machine.running = None
        run_ns = self.now_ns - machine.began_at_ns
        following, machine.waiting = machine.waiting, None
        if following is not None:
            self.start(backend, following)
        ended = self.engine.on_done(self.now_ns, backend, run_ns)
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
        if machine.resident is not None and batch.variant not in machine.resident:
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
        at_ease = self.at_ease()
        for rid in self.engine.outbox.queued:
            fate = self.fates[rid]
            plan_ns = self.engine.costs.of(fate.request.application).plan_ns[1]
            if not at_ease or plan_ns > fate.plan_ns:
                fate.excused = True

    def at_ease(self) -> bool:
        """Whether a backend is free, and all backends start and run as fast as policies think."""
        if self.load.mixed or self.engine.costs.backend_factor or self.load.lead_per_request_us:
            return False
        return any(each.up and not each.draining and not each.running for each in self.machines)

    def check_dispatch(self, effect: Dispatch) -> None:
        batch, machine = effect.batch, self.machines[effect.backend]
        rids = tuple(request.rid for request in batch.requests)
        self.digest.append((self.now_ns, effect.backend, batch.variant, batch.start_at_ns, rids))
        assert 1 <= len(rids) <= SIZE_MAX
        assert machine.up
        assert not machine.draining
        assert machine.waiting is None, "at most one batch beside the running one"
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
            machine.waiting = batch

    def check_drop(self, effect: Drop, later: Sequence[object]) -> None:
        request, reason = effect.request, effect.reason
        self.digest.append((self.now_ns, request.rid, reason))
        self.end(request, "dropped")
        fate = self.fates[request.rid]
        source = self.engine.sources[request.application]
        if reason == DropReason.LOST:
            assert request.retried or request.deadline_ns <= self.now_ns
        elif reason == DropReason.WINDOW and isinstance(source, ModelThread):
            # Who left after it was still in the queue with it.
            with_it = 1 + len(source.queue) + sum(self.left(each, request) for each in later)
            assert with_it >= source.window
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
        assert self.rank.signals.backends == sum(machine.up for machine in self.machines)
        assert self.wakes <= 100 + 40 * len(self.fates)
        assert self.engine.wake_at_ns() == NEVER


def play(name: str, load: Workload) -> World:
    world = World(name, load)
    world.play()
    return world


@pytest.mark.parametrize("name", SOURCES)
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(load=WORKLOADS)
def test_every_policy_keeps_the_rules(name: str, load: Workload) -> None:
    world = play(name, load)
    world.check_end()
    assert play(name, load).digest == world.digest
