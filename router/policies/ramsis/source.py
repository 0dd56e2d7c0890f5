"""RAMSIS online: a queue for each worker, and tables that say which variant runs it."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fermata.foundation.units import SECOND, ms
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, Compute, DropReason, Request
from fermata.router.core.signals import Promise
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, Source, SourceTimer, own_lane
from fermata.router.policies.content_upgrade import suited
from fermata.router.policies.family import Family
from fermata.router.policies.hard_limit import size_within_limits, who_allow
from fermata.router.policies.load_monitor import LoadMonitor
from fermata.router.policies.ramsis.drift import RecentBatches, drifted
from fermata.router.policies.ramsis.load_grid import GridPoint
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.overload import in_part, quickest
from fermata.router.policies.ramsis.tables import Made, SolveJob, job_for
from fermata.router.policies.unassigned import Unassigned


@dataclass(frozen=True, slots=True)
class RamsisRules:
    """When tables are asked for."""

    settle_ns: int = ms(50)
    """Backends that come and go within this time are one change."""
    look_every: int = 256
    """Batches between two looks at whether run times have drifted."""
    retry_ns: int = SECOND
    """Pause before tables that could not be made are asked for again: at first."""
    retry_ns_max: int = 60 * SECOND
    """The same at most."""
    beyond: float = 1.1
    """A table for a load outside the range is made for this much more."""
    promise_ns: int = 10 * SECOND
    """Promises are for the mean load of this time: tables know how arrivals vary around it."""


class QueueWorker:
    """One backend with its queue."""

    __slots__ = ("bid", "lane", "queue")

    def __init__(self, backend: int) -> None:
        self.lane = (own_lane(backend),)
        self.queue = DeadlineQueue()
        self.bid = Bid()


class Ramsis(Source):
    """The source of one application.

    The tables are solved outside (`Compute`), for the workers there are and a range of loads. Until
    the first are there the fastest variant runs; while newer ones are made the old ones stay.
    """

    owns_backends = True
    respects_client_limits = True
    rules: ClassVar[RamsisRules] = RamsisRules()

    def __init__(self, family: Family, options: RamsisOptions) -> None:
        self.family = family
        self.options = options
        self.workers: dict[int, QueueWorker] = {}
        self.order: list[QueueWorker] = []
        self.turn = 0
        """The next worker of the round robin; a change of tables does not touch it."""
        self.monitor = LoadMonitor(options.window_ns)
        self.made: dict[int, Made] = {}
        """Tables by kind of backend."""
        self.rungs: dict[int, GridPoint] = {}
        """The table in use, by kind."""
        self.steady = LoadMonitor(self.rules.promise_ns)
        self.rate_rps = 0.0
        """The load that promises are for."""
        self.promises: dict[int, Promise] = {}
        """Of the load there is, by kind."""
        self.asked: set[int] = set()
        """Kinds whose tables are being made."""
        self.failures = 0
        """Times that tables could not be made."""
        self.again: dict[int, tuple[int, float]] = {}
        """By kind whose tables could not: when to ask again, and for which load."""
        self.pause_ns = self.rules.retry_ns
        self.stale = False
        """The workers have changed since the last tables were asked for."""
        self.batches = 0
        self.ran: dict[int, RecentBatches] = {}
        """By kind, since the last look at whether run times have drifted."""
        self.stranded = Unassigned(self)
        self.change = SourceTimer(self)
        self.retry = SourceTimer(self)
        self.allowed = family.choices() or [family.variants.index(family.serving)]
        self.variants = [family.variants[index] for index in self.allowed]

    # Requests

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        self.steady.on_arrival(now_ns)
        if self.monitor.on_arrival(now_ns):
            self._follow_load(now_ns)
        if not self._left_to(request):
            self.outbox.drop(request, DropReason.FLOOR)
            return NO_LANES
        if not self.order:
            alone_ns = self.costs.of(self._fastest(0)).plan_ns[1]
            self.stranded.add(request, alone_ns + self.lead.ns(1))
            return NO_LANES
        worker = self._next_worker(self._able(request))
        worker.queue.push(request)
        return worker.lane

    def _able(self, request: Request) -> list[QueueWorker]:
        """The workers that have a variant which may serve it; all where none has."""
        if request.allowed is None:
            return self.order
        left, runs = self._left_to(request), self.desk.runs
        able = [
            worker
            for backend, worker in self.workers.items()
            if any(runs(backend, variant) for variant in left)
        ]
        return able or self.order

    def _left_to(self, request: Request) -> list[int]:
        """The variants that may serve it."""
        allowed = request.allowed
        if allowed is None:
            return self.variants
        return [variant for variant in self.variants if variant in allowed]

    def _next_worker(self, able: Sequence[QueueWorker]) -> QueueWorker:
        """Pick the next of these in turn, or the one with the shortest queue."""
        order = self.order
        self.turn = (self.turn + 1) % len(order)
        in_turn = self.options.balancing == "round-robin"
        if in_turn and able is order:
            return order[self.turn]
        ahead = order[self.turn :] + order[: self.turn]
        if able is not order:
            ahead = [worker for worker in ahead if worker in able]
        if in_turn:
            return ahead[0]
        # The first of the shortest, from whose turn it is.
        return min(ahead, key=lambda worker: len(worker.queue))

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        for worker in self.order:
            if worker.queue.remove(request):
                return worker.lane
        return NO_LANES

    # Backends and tables

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        homeless: list[Request] = []
        if up and backend not in self.workers:
            self.workers[backend] = QueueWorker(backend)
            homeless = self.stranded.take_all()
        elif not up and backend in self.workers:
            queue = self.workers.pop(backend).queue
            homeless = queue.pop_many(len(queue))
        self.order = list(self.workers.values())
        self.stale = True
        self.timers.arm(self.change, now_ns + self.rules.settle_ns)
        lanes: list[int] = []
        for request in homeless:
            lanes.extend(self.on_request(now_ns, request))
        return lanes

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.stranded.drop_hopeless(now_ns)
        if self.stale and self.order:
            self.stale = False
            for kind in sorted({self.desk.kind(backend) for backend in self.workers}):
                self._ask(kind)
        for kind, (due_at_ns, rate_rps) in list(self.again.items()):
            if due_at_ns <= now_ns and self.order:
                self._ask(kind, rate_rps)
        return NO_LANES

    def _ask(self, kind: int, rate_rps: float = 0.0) -> None:
        """Have tables made for the workers there are, or one more for this load."""
        self.asked.add(kind)
        self.again.pop(kind, None)
        known = self.made.get(kind)
        if known is not None and rate_rps > 0.0:
            job = known.job.at_rate(rate_rps)
        else:
            job = job_for(
                self.family,
                self.allowed,
                self.options,
                self.costs,
                kind,
                len(self.order),
                self.lead.ns(1),
                self.options.load_rps,
                self.share,
            )
        self.outbox.effects.append(Compute(self.family.application, job))

    def on_computed(self, now_ns: int, result: object) -> Sequence[int]:
        assert isinstance(result, Made)
        job, kind = result.job, result.job.kind
        self.asked.discard(kind)
        self.pause_ns = self.rules.retry_ns
        known = self.made.get(kind)
        if job.low_rps == job.high_rps and known is not None and not self.options.load_rps:
            # One more for a load outside the range. Where all tables have been made anew
            # meanwhile, its rows may name other variants than theirs.
            if not job.alike(known.job.at_rate(job.low_rps)):
                self._follow_load(now_ns)
                return NO_LANES
            result = Made(known.job, known.ladder.extended(result.ladder.rungs[0]))
        self.made[kind] = result
        self._follow_load(now_ns)
        return [lane for worker in self.order for lane in worker.lane]

    def on_compute_failed(self, now_ns: int, work: Callable[[], object]) -> Sequence[int]:
        """Keep the tables there are, and ask again after a pause that grows."""
        assert isinstance(work, SolveJob)
        self.failures += 1
        rate_rps = work.low_rps if work.low_rps == work.high_rps else 0.0
        self.again[work.kind] = (now_ns + self.pause_ns, rate_rps)
        self.timers.arm(self.retry, now_ns + self.pause_ns)
        self.pause_ns = min(2 * self.pause_ns, self.rules.retry_ns_max)
        return NO_LANES

    def figures(self) -> dict[str, float]:
        """The load and the promise of the tables in use, the mean over backends."""
        found = {"table_failures": float(self.failures)}
        told = self.promise(self.application)
        if told is not None:
            rates = [self.rungs[self.desk.kind(backend)].rate_rps for backend in self.workers]
            found["table_rps"] = sum(rates) / len(rates)
            found["promised_accuracy"] = told.accuracy
            found["promised_violation"] = told.violation
        return found

    def promise(self, application: int) -> Promise | None:
        """That of the tables in use, the mean over backends: each has as many requests."""
        told = [self.promises.get(self.desk.kind(backend)) for backend in self.workers]
        known = [each for each in told if each is not None]
        if not known or len(known) < len(told):
            return None
        return mean_promise([(each, 1.0) for each in known])

    def _follow_load(self, now_ns: int) -> None:
        """Use, for each kind, the table of the lowest load that covers what is seen."""
        rate_rps = self._load_rps(now_ns)
        self.rate_rps = self.options.load_rps or self.steady.rps(now_ns)
        for kind, made in self.made.items():
            self.rungs[kind] = made.ladder.rung_for(rate_rps)
            self.promises[kind] = made.ladder.promise(self.rate_rps)
            if not made.ladder.covers(rate_rps) and kind not in self.asked:
                self._ask(kind, self.rules.beyond * rate_rps)

    def _load_rps(self, now_ns: int) -> float:
        """The load of all workers together: known ahead, or seen."""
        return self.options.load_rps or self.monitor.rps(now_ns)

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        self.batches += 1
        if backend in self.workers:
            self._recent(self.desk.kind(backend)).add(batch.variant, len(batch.requests))
        if self.batches % self.rules.look_every == 0:
            lead_ns = self.lead.ns(1)
            for kind, made in self.made.items():
                ran = self._recent(kind)
                if kind not in self.asked and drifted(
                    made.job, self.family, self.costs, lead_ns, ran
                ):
                    self._ask(kind)
            self.ran.clear()
        return NO_LANES

    def _recent(self, kind: int) -> RecentBatches:
        return self.ran.setdefault(kind, RecentBatches())

    # Bid and grant

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        worker = self.workers.get(lane - own_lane(0))
        if worker is None:
            return None
        queue = worker.queue
        kind = self.desk.kind(lane - own_lane(0))
        fastest = self._fastest(kind)
        cost = self.costs.of(fastest, kind)
        alone_ns = self.lead.ns(1) + cost.plan_ns[1]
        while len(queue) > 0 and queue.first().expires_at_ns < now_ns + alone_ns:
            self._drop_late(queue.pop(), fastest, kind)
        if len(queue) == 0:
            return None
        bid = worker.bid
        bid.size = min(len(queue), cost.size_max)
        bid.ripe_at_ns = now_ns
        bid.key = bid.expires_at_ns = queue.first().expires_at_ns - alone_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        worker = self.workers[slot.backend]
        queue = worker.queue
        worker.bid.again = False
        while True:
            first, able = self._first_here(queue, slot)
            if first is None:
                worker.bid.again = True
                return None
            variant, taken, hopeless = self._decide(now_ns, queue, slot, first, able)
            if hopeless is None:
                queue.take(taken)
                return Batch(suited(self.family, slot, variant, taken), taken)
            queue.remove(hopeless)
            self._drop_late(hopeless, variant, slot.kind)

    def _first_here(self, queue: DeadlineQueue, slot: Slot) -> tuple[Request | None, list[int]]:
        """The first for whom this backend has a variant that may serve it, and all such."""
        known: dict[frozenset[int] | None, list[int]] = {}
        for request in queue.items[queue.head :]:
            able = known.get(request.allowed)
            if able is None:
                able = [each for each in self._left_to(request) if slot.runs(each)]
                known[request.allowed] = able
            if able:
                return request, able
        return None, []

    def _decide(
        self, now_ns: int, queue: DeadlineQueue, slot: Slot, first: Request, able: list[int]
    ) -> tuple[int, list[Request], Request | None]:
        """The table's variant for the whole queue, or the request to drop before trying again.

        The paper answers late rather than never. We do so up to the hard limit: where the whole
        queue would end after it, the quickest variant runs what still can. Tables know nothing of
        clients that insist on some variants: such a one gets the most accurate that is in time,
        together with all who allow it too.
        """
        slack_ns = first.deadline_ns - slot.start_at_ns
        variant, size = self._by_table(len(queue), slack_ns, slot)
        if first.allowed is not None and variant not in first.allowed:
            variant = self._own_choice(queue, slot, slack_ns, able)
        if variant in able:
            taken = who_allow(queue, variant, size)
            if size_within_limits(taken, slot, variant, size) == len(taken):
                return variant, taken, None
        variant = quickest(slot, able, len(queue))
        arrivals_per_ns = self._load_rps(now_ns) / (1e9 * len(self.order))
        return variant, *in_part(queue, slot, variant, arrivals_per_ns)

    def _own_choice(self, queue: DeadlineQueue, slot: Slot, slack_ns: int, able: list[int]) -> int:
        family = self.family
        for variant in sorted(able, key=lambda each: -family.accuracy[family.variants.index(each)]):
            size_max = self.costs.of(variant, slot.kind).size_max
            size = len(who_allow(queue, variant, size_max))
            if slot.plan_ns(variant, size) <= slack_ns:
                return variant
        return min(able, key=lambda each: slot.plan_ns(each, 1))

    def _by_table(self, waiting: int, slack_ns: int, slot: Slot) -> tuple[int, int]:
        rung = self.rungs.get(slot.kind)
        if rung is None:
            if slot.kind not in self.asked:
                self._ask(slot.kind)
            variant = quickest(slot, filter(slot.runs, self.variants), waiting)
            return variant, min(waiting, slot.size_max(variant))
        made = self.made[slot.kind]
        size = min(waiting, len(rung.solution.choice))
        slack = max(0, bisect_right(made.ladder.slack_ns, slack_ns) - 1)
        return made.job.variants[rung.solution.choice[size - 1][slack]], size

    def _fastest(self, kind: int) -> int:
        """The variant that a request alone is done with first on such backends."""
        costs = self.costs
        return min(self.variants, key=lambda each: costs.of(each, kind).plan_ns[1])

    def _drop_late(self, first: Request, variant: int, kind: int) -> None:
        """Drop one whom not even this variant, the fastest for it, would answer in time."""
        slo_ns = first.expires_at_ns - first.arrived_at_ns - self.lead.ns(1)
        cost = self.costs.of(variant, kind)
        if cost.p50_ns[1] <= slo_ns < cost.plan_ns[1]:
            self.costs.relax_margin(variant)
        self.outbox.drop(first, DropReason.LATE)


def mean_promise(told: Sequence[tuple[Promise, float]]) -> Promise:
    """The promise of several parts together, each with its weight."""
    total = sum(weight for _, weight in told)
    return Promise(
        sum(weight * each.accuracy for each, weight in told) / total,
        sum(weight * each.violation for each, weight in told) / total,
    )
