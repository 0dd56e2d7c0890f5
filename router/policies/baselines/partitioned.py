"""Static partitions (Nexus, SOSP 2019): squishy bin packing once per epoch, a queue per worker."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil, sqrt
from typing import Final

from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, own_lane
from fermata.router.policies.baselines.routed_on_arrival import RoutedOnArrival
from fermata.router.policies.family import Family
from fermata.router.policies.sizing import learn_slo_ns, size_for_half


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """When the first partition comes, and how hard it is searched for."""

    first_plan_ns: int = 500_000_000
    scale_steps: int = 12
    """Halvings in the search for the load that just fits."""
    scale_max: float = 16.0


RULES: Final = PartitionRules()
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PartitionedOptions:
    """How the partition follows the load."""

    epoch_ns: int = 10_000_000_000
    """From one placement to the next, at least half a second. The first comes after half a
    second, and the next ones at doubling distances, since the rates of a young epoch are poor."""
    burst_margin: float = 0.5
    """Plan for the load of a mean SLO's time plus this many standard deviations of it, were it
    Poisson: the smaller an application, the more room it needs for the same share of misses."""


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """The load of one application, as the partition sees it."""

    application: int
    rps: float
    slo_ns: int
    plan_ns: Sequence[int]
    """Planned run times by batch size; index 0 is unused."""
    size: int
    """Batch of a backend that serves nothing else."""

    @property
    def whole_rps(self) -> float:
        """The rate that a backend of its own can serve."""
        return self.size * SECOND / self.plan_ns[self.size]


@dataclass(frozen=True, slots=True)
class Part:
    """One application's share of one backend."""

    load: SessionLoad
    rps: float
    size: int

    def in_cycle(self, duty_ns: float) -> "Part":
        """The same share, served once in every cycle of that length."""
        return Part(self.load, self.rps, max(1, ceil(self.rps * duty_ns / SECOND - ROUNDING)))


class Bin:
    """The parts on one backend, which takes turns over them once in every duty cycle."""

    __slots__ = ("duty_ns", "occupancy", "parts")

    def __init__(self, duty_ns: float, parts: list[Part]) -> None:
        self.duty_ns = duty_ns
        self.parts = parts
        self.occupancy = sum(part.load.plan_ns[part.size] for part in parts) / duty_ns

    def merged(self, other: "Bin") -> "Bin | None":
        """Both on one backend, at the shorter duty cycle; None if that does not fit.

        A shorter cycle only makes batches smaller, so every SLO that held before still holds.
        """
        # Smaller batches cost more per request, so the sum is a lower bound.
        if self.occupancy + other.occupancy > 1.0:
            return None
        duty_ns = min(self.duty_ns, other.duty_ns)
        parts = [part.in_cycle(duty_ns) for part in (*self.parts, *other.parts)]
        merged = Bin(duty_ns, parts)
        return merged if merged.occupancy <= 1.0 else None


def residual_bin(load: SessionLoad, rps: float) -> Bin:
    """The least that one application alone needs: the longest duty cycle its SLO allows."""
    size = 1
    while size < load.size and _cycle_fits(load, rps, size + 1):
        size += 1
    plan_ns = load.plan_ns[size]
    # With less than one request a cycle, the cycle is as long as the SLO allows.
    duty_ns = max(plan_ns, min(size * SECOND / rps, load.slo_ns - plan_ns))
    return Bin(duty_ns, [Part(load, rps, size)])


def _cycle_fits(load: SessionLoad, rps: float, size: int) -> bool:
    return size * SECOND / rps + load.plan_ns[size] <= load.slo_ns


def pack(loads: Sequence[SessionLoad], scale: float, bins_max: int) -> list[Bin] | None:
    """Bins for these loads times the scale; None if they need more than there are."""
    bins: list[Bin] = []
    residuals: list[Bin] = []
    for load in loads:
        rps = load.rps * scale
        whole = int(rps / load.whole_rps)
        rest = rps - whole * load.whole_rps
        cycle_ns = load.plan_ns[load.size]
        if len(bins) + whole > bins_max:
            return None
        for _ in range(whole):
            bins.append(Bin(cycle_ns, [Part(load, load.whole_rps, load.size)]))
        if rest > 0.0:
            residuals.append(residual_bin(load, rest))
    residuals.sort(key=lambda residual: -residual.occupancy)
    shared: list[Bin] = []
    for residual in residuals:
        for index, other in enumerate(shared):
            merged = other.merged(residual)
            if merged is not None:
                shared[index] = merged
                break
        else:
            shared.append(residual)
            if len(bins) + len(shared) > bins_max:
                return None
    return bins + shared


def partition(loads: Sequence[SessionLoad], backends: int) -> list[Bin]:
    """Bins for so many backends, with as much room for each load as all can have alike.

    Nexus adds backends when the loads need more; we have what we have, so we scale all loads
    to what just fits: down in overload, up otherwise, which gives the spare time to bursts.
    """
    low, high = 0.0, RULES.scale_max
    best: list[Bin] = []
    for _ in range(RULES.scale_steps):
        scale = (low + high) / 2 if low > 0.0 else high / 4
        bins = pack(loads, scale, backends)
        if bins is None:
            high = scale
        else:
            low, best = scale, bins
    # Many small loads may fit at no scale, each needing a turn in every cycle: then no plan at all
    # is better than one that leaves somebody out.
    return best + spares(loads, best, backends - len(best)) if best else []


def spares(loads: Sequence[SessionLoad], bins: Sequence[Bin], count: int) -> list[Bin]:
    """Backends left over, each for the application with the least capacity for its load."""
    capacity = {load.application: 0.0 for load in loads}
    for packed in bins:
        for part in packed.parts:
            capacity[part.load.application] += part.rps
    extra: list[Bin] = []
    for _ in range(count):
        load = min(loads, key=lambda load: capacity[load.application] / load.rps)
        capacity[load.application] += load.whole_rps
        extra.append(Bin(load.plan_ns[load.size], [Part(load, load.whole_rps, load.size)]))
    return extra


class PartitionWorker:
    """One backend: its queues in the order of their turns, and the planned batch sizes."""

    __slots__ = ("backend", "bid", "lane", "queues", "sizes")

    def __init__(self, backend: int) -> None:
        self.backend = backend
        self.lane = (own_lane(backend),)
        self.queues: dict[int, DeadlineQueue] = {}
        """By application; empty ones are taken out, and whoever was served goes to the end."""
        self.sizes: dict[int, int] = {}
        self.bid = Bid()


class Route:
    """Weighted round robin over the workers of one application (stride scheduling)."""

    __slots__ = ("heap",)

    def __init__(self, shares: Sequence[tuple[PartitionWorker, float]]) -> None:
        # Half a stride ahead, so that equal shares take turns from the start.
        self.heap = [
            (0.5 / weight, worker.backend, 1.0 / weight, worker) for worker, weight in shares
        ]
        heapify(self.heap)

    def next(self) -> PartitionWorker:
        at, backend, stride, worker = self.heap[0]
        heapreplace(self.heap, (at + stride, backend, stride, worker))
        return worker


class Partitioned(RoutedOnArrival):
    """Each application has fixed shares of fixed backends until the next epoch. Requests are
    routed on arrival; a backend serves its queues in turn, never waiting for a batch to fill."""

    def __init__(self, families: Sequence[Family], options: PartitionedOptions) -> None:
        super().__init__(families)
        self.options = options
        self.workers: dict[int, PartitionWorker] = {}
        self.routes: dict[int, Route] = {}
        """By application; until there is a plan, requests go round all the backends."""
        self.everyone: Route | None = None
        self.stale = False
        """Backends have come or gone since the last placement."""
        self.counts = dict.fromkeys(self.variants, 0)
        """Arrivals since the last plan."""
        self.rps = dict.fromkeys(self.variants, 0.0)
        self.sizes = dict.fromkeys(self.variants, 1)
        self.began_at_ns = -1
        self.planned_at_ns = 0
        self.replan_at_ns = -1

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        application = request.application
        self.counts[application] += 1
        slo_ns = request.deadline_ns - request.arrived_at_ns
        if slo_ns != self.slo_ns[application]:
            self._learn_slo(application, slo_ns)
        if now_ns >= self.replan_at_ns:
            self._end_epoch(now_ns)
        return self._enqueue(request)

    def _enqueue(self, request: Request) -> Sequence[int]:
        application = request.application
        if self.stale:
            self._place()
        route = self.routes.get(application, self.everyone)
        if route is None:
            self.stranded.add(request, self.alone_ns(application))
            return NO_LANES
        worker = route.next()
        queue = worker.queues.get(application)
        if queue is None:
            queue = worker.queues[application] = DeadlineQueue()
        first = queue.push(request)
        # The bid changes with its own size, and with who is the first to become hopeless.
        its_turn = next(iter(worker.queues)) == application
        return worker.lane if first or its_turn else NO_LANES

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        application = request.application
        for worker in self.workers.values():
            queue = worker.queues.get(application)
            if queue is not None and queue.remove(request):
                if len(queue) == 0:
                    del worker.queues[application]
                return worker.lane
        return NO_LANES

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        homeless: list[Request] = []
        if up and backend not in self.workers:
            self.workers[backend] = PartitionWorker(backend)
            homeless = self.stranded.take_all()
        elif not up and backend in self.workers:
            for queue in self.workers.pop(backend).queues.values():
                homeless.extend(queue.pop_many(len(queue)))
        self.stale = True
        lanes: list[int] = []
        for request in homeless:
            lanes.extend(self._enqueue(request))
        return lanes

    # The plan

    def _learn_slo(self, application: int, slo_ns: int) -> None:
        slo_ns = learn_slo_ns(self.slo_ns[application], slo_ns)
        self.slo_ns[application] = slo_ns
        self.sizes[application] = size_for_half(self.tables[application], slo_ns)

    def _end_epoch(self, now_ns: int) -> None:
        """Take the rates of the epoch that ends, and place the applications anew."""
        if self.began_at_ns < 0:
            self.began_at_ns = self.planned_at_ns = now_ns
            self.replan_at_ns = now_ns + RULES.first_plan_ns
            return
        # The epoch itself is the meter: RateMeter's memory of a second would be far noisier.
        elapsed_ns = now_ns - self.planned_at_ns
        age_ns = now_ns - self.began_at_ns
        weight = elapsed_ns / max(elapsed_ns, min(age_ns, 2 * self.options.epoch_ns))
        for application, count in self.counts.items():
            rps = count * SECOND / elapsed_ns
            self.rps[application] += weight * (rps - self.rps[application])
            self.counts[application] = 0
        self.planned_at_ns = now_ns
        self.replan_at_ns = now_ns + max(RULES.first_plan_ns, min(self.options.epoch_ns, age_ns))
        self._place()

    def _place(self) -> None:
        """Give every backend its part of the plan; queues drain where they are."""
        self.stale = False
        workers = sorted(self.workers.values(), key=lambda worker: worker.backend)
        self.everyone = Route([(worker, 1.0) for worker in workers]) if workers else None
        self.routes = {}
        loads = [self._load(application) for application, rps in self.rps.items() if rps > 0.0]
        if not loads or not workers:
            return
        shares: dict[int, list[tuple[PartitionWorker, float]]] = {}
        for worker in workers:
            worker.sizes = {}
        for worker, packed in zip(workers, partition(loads, len(workers)), strict=False):
            worker.sizes = {part.load.application: part.size for part in packed.parts}
            for part in packed.parts:
                shares.setdefault(part.load.application, []).append((worker, part.rps))
        self.routes = {application: Route(share) for application, share in shares.items()}

    def _load(self, application: int) -> SessionLoad:
        rps, slo_ns = self.rps[application], max(1, self.slo_ns[application])
        rps += self.options.burst_margin * sqrt(rps * SECOND / slo_ns)
        table = self.tables[application]
        if table[self.sizes[application]] > slo_ns:
            # Memory has become short since the size was chosen.
            self.sizes[application] = size_for_half(table, slo_ns)
        return SessionLoad(application, rps, slo_ns, table, self.sizes[application])

    # Bid and grant

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        worker = self.workers.get(lane - own_lane(0))
        if worker is None:
            return None
        hopeless_at_ns = self._drop_hopeless(now_ns, worker)
        if not worker.queues:
            return None
        application = next(iter(worker.queues))
        queue = worker.queues[application]
        budget_ns = queue.first().deadline_ns - now_ns - self.desk.lead_ns(1, application)
        bid = worker.bid
        bid.application = application
        bid.size = min(len(queue), bisect_right(self.tables[application], budget_ns) - 1)
        bid.ripe_at_ns = now_ns
        # The lane has one source, so the key decides nothing.
        bid.key = bid.expires_at_ns = hopeless_at_ns
        return bid

    def _drop_hopeless(self, now_ns: int, worker: PartitionWorker) -> int:
        """Drop the first requests that could not even run alone; returns when the next one goes."""
        next_at_ns = NEVER
        for application, queue in list(worker.queues.items()):
            alone_ns = self.alone_ns(application)
            while len(queue) > 0 and queue.first().deadline_ns < now_ns + alone_ns:
                late = queue.pop()
                self.drop_late(late, self.variants[application], late.deadline_ns)
            if len(queue) > 0:
                next_at_ns = min(next_at_ns, queue.first().deadline_ns - alone_ns)
            else:
                del worker.queues[application]
        return next_at_ns

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        worker = self.workers[slot.backend]
        queues = worker.queues
        while queues:
            application = next(iter(queues))
            size = self._prune(worker, application, slot)
            if size > 0:
                queue = queues.pop(application)
                taken = queue.pop_many(size)
                if len(queue) > 0:
                    queues[application] = queue
                return Batch(self.variants[application], taken)
        return None

    def _prune(self, worker: PartitionWorker, application: int, slot: Slot) -> int:
        """Size of the batch for this slot, after dropping the heads that stand in its way.

        Nexus' early drop: a window of the planned size slides over the queue until its first
        request leaves time for all of it. Unlike Nexus we take more than planned where there is
        time: a backlog is best worked off in large batches. An emptied queue is taken out.
        """
        queue = worker.queues[application]
        variant = self.variants[application]
        planned = worker.sizes.get(application, self.sizes[application])
        planned = min(planned, slot.size_max(variant))
        while len(queue) > 0:
            fits = slot.size_that_fits(variant, queue.first().deadline_ns - slot.start_at_ns)
            if fits >= planned or (fits > 0 and len(queue) < planned):
                return min(fits, len(queue))
            first = queue.pop()
            if fits == 0:
                self.drop_late(first, variant, first.deadline_ns)
            else:
                self.outbox.drop(first, DropReason.WINDOW)
        del worker.queues[application]
        return 0
