"""The central queue: all requests in one queue, each batch on the variant that the load leaves time
for. Beyond the papers: RAMSIS decides at each worker, by its own queue alone."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.rate import RateMeter
from fermata.router.core.signals import SourceDemand
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, POOL_ONLY, Bid, Source, SourceContext, SourceTimer
from fermata.router.policies.central.accuracy_hull import Point, concave_hull, reachable
from fermata.router.policies.central.constrained_queue import ConstrainedQueue
from fermata.router.policies.central.load_filter import LoadFilter
from fermata.router.policies.central.options import CentralOptions
from fermata.router.policies.central.pool_tables import PoolTables
from fermata.router.policies.central.prices import PriceCurve
from fermata.router.policies.central.running_work import RunningWork
from fermata.router.policies.family import Family


@dataclass(frozen=True, slots=True)
class CentralRules:
    """Limits and memories of the queue."""

    pace: float = 1.3
    """Times that batches have to be faster than requests come, for a backlog to go away."""
    efficient: float = 1.03
    """A smaller batch counts as efficient up to this factor of the cost for each request."""
    caution_step: float = 0.005
    caution_max: float = 0.5
    silent_ns: int = 2 * SECOND
    """Without arrivals for so long the application counts no demand."""
    others_memory: float = 0.1
    hold_margin: float = 2.0
    """`hold: deferred` leaves earlier by this many times the mean wait of ripe bids."""


class CentralQueue(Source):
    """The source of one application with several variants.

    Every batch costs backend time and earns accuracy. What time is worth follows from how far the
    system is behind: the queue, and what the batches under way will still take beyond what is
    usual. Counting both is what keeps it steady, since a slow variant chosen now is felt by the
    queue a whole run later. At that price each grant takes the batch that earns most.
    """

    respects_client_limits = True
    hears_kinds = True
    rules: ClassVar[CentralRules] = CentralRules()

    def __init__(self, family: Family, options: CentralOptions) -> None:
        self.family = family
        self.options = options
        self.queue = DeadlineQueue()
        self.rate = RateMeter()
        self.steady = LoadFilter()
        self.gap_ns = float(SECOND)
        """Mean time between arrivals."""
        self.each_ns = float(SECOND)
        """Backend time there is for each request."""
        self.turn_ns = 0.0
        """Time from one queued request's start to the next one's."""
        self.under_way = RunningWork()
        self.own_busy_ns = 0
        self.others = 0.0
        """Backends that other applications keep busy."""
        self.seen = (0, 0, 0)
        """Time, busy time of all and of our own when others were last looked at."""
        self.evidence = 0
        """Requests that have come with accuracies of their own."""
        self.caution = 0.0
        """Runs are allowed to take this share longer than planned."""
        self.demand = SourceDemand()
        self.standing_bid = Bid()
        self.silence = SourceTimer(self)
        allowed = [] if options.pinned else family.choices()
        if not allowed:
            # Pinned, of unknown accuracy, or all below the floor: what the operator named serves.
            allowed = [family.variants.index(family.serving)]
        self.allowed = allowed
        """Indices within the family that may be chosen."""
        self.variants = [family.variants[index] for index in allowed]
        self.may_run = frozenset(self.variants)
        self.accuracy = [family.accuracy[index] if family.accuracy else 0.0 for index in allowed]
        self.constrained = ConstrainedQueue(self.variants)
        """Those who wait for some of them only; all others are in the queue."""

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        self.pool_tables = PoolTables(desk, self.variants)
        # Behaviour of others elsewhere says nothing of their behaviour here.
        self.others = 0.0
        self.seen = (self.seen[0], self.pool.busy_ns, self.own_busy_ns)
        self._aim(0)

    def on_leave(self) -> None:
        self.demand.set(self.signals, 0.0)

    def on_kinds(self, now_ns: int, kinds: tuple[int, ...]) -> Sequence[int]:
        """Plan with the run times of the backends that are there."""
        if not self.pool_tables.on_kinds(kinds):
            return NO_LANES
        self._aim(now_ns)
        return POOL_ONLY

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        if self.rate.on_arrival(now_ns):
            self._aim(now_ns)
            self.timers.arm(self.silence, now_ns + self.rules.silent_ns)
        if request.accuracies is not None:
            self.evidence += 1
        if request.allowed is not None:
            left = len(self.constrained.left_to(request))
            if left == 0:
                self.outbox.drop(request, DropReason.FLOOR)
                return NO_LANES
            if left < len(self.variants):
                self.constrained.push(request)
                return POOL_ONLY
        self.queue.push(request)
        return POOL_ONLY

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        return POOL_ONLY if self._remove(request) else NO_LANES

    def _remove(self, request: Request) -> bool:
        return self.queue.remove(request) or self.constrained.remove(request)

    def on_update(self, now_ns: int, request: Request) -> Sequence[int]:
        self.evidence += 1
        return POOL_ONLY

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        self.own_busy_ns += run_ns
        self._learn_caution(now_ns, batch)
        return NO_LANES

    def _learn_caution(self, now_ns: int, batch: Batch) -> None:
        """One step up for each late request and a small one down for each other, so that they
        balance at the share allowed."""
        late = sum(request.deadline_ns < now_ns for request in batch.requests)
        allowed = self.options.late_share * (len(batch.requests) - late)
        caution = self.caution + self.rules.caution_step * (late - allowed)
        self.caution = min(self.rules.caution_max, max(0.0, caution))

    def on_time(self, now_ns: int) -> Sequence[int]:
        """Nothing has arrived for a while: no backends are needed."""
        self.rate.fall_silent()
        self.steady = LoadFilter()
        self.demand.set(self.signals, 0.0)
        return NO_LANES

    # Aims that the load allows

    def _aim(self, now_ns: int) -> None:
        """Draw the hull anew from run times as planned now, and the prices from the load."""
        rps = self.steady.read(self.rate.rps)
        if rps > 0.0:
            self.gap_ns = SECOND / rps
        self._count_others(now_ns)
        self.pool_tables.renew()
        self.tables = self.pool_tables.mean
        self.spaced = [self._with_inputs(each) for each in self.tables]
        self.constrained.tables = self.pool_tables.known
        backends = self._backends()
        self.each_ns = backends * self.gap_ns
        slo_ns = self.family.slo_ns or 2 * max(table[-1] for table in self.tables)
        self.end_in_ns = slo_ns - self.lead.ns(1)
        points = self._points(int(self.end_in_ns - self.options.headroom * slo_ns))
        self.hull = concave_hull(points)
        rooms_ns = [self._room_ns(point) for point in self.hull]
        options = self.options
        self.prices = PriceCurve(self.hull, self.each_ns, rooms_ns, options.calm, options.strained)
        dear = self.hull[min(self.prices.edge + 1, len(self.hull) - 1)]
        self.turn_ns = min(self.gap_ns, dear.each_ns / backends)
        cheapest = self.hull[0]
        roomy = int(options.drop_window * cheapest.size)
        self.window = max(1, min(roomy, self._pace_size(backends)))
        self.demand.set(self.signals, cheapest.each_ns / self.gap_ns if rps > 0.0 else 0.0)
        by_size: list[list[Point]] = [[] for _ in range(max(len(table) for table in self.tables))]
        for variant, table in enumerate(self.tables):
            for size in range(1, len(table)):
                point = Point(variant, size, table[size], self.accuracy[variant])
                by_size[size].append(point)
        self.by_size = [concave_hull(each) for each in by_size]

    def _with_inputs(self, table: list[int]) -> list[int]:
        """Run times with the time that a batch's inputs take beyond that of one. Where the lead is
        long, batches that wait on a backend are too few to keep it busy with small ones."""
        each_ns = self.lead.per_request_ns
        turn_ns = self.lead.ns(1) // (self.desk.batches_ahead() + 1)
        if each_ns == 0 and turn_ns <= table[1]:
            return table
        return [
            max(run_ns, turn_ns) + each_ns * max(0, size - 1) if size else run_ns
            for size, run_ns in enumerate(table)
        ]

    def _pace_size(self, backends: float) -> int:
        """The smallest batch with which requests are served faster than they come. A head that
        leaves no room for it makes the queue grow, and with it the number of such heads."""
        each_ns = backends * self.gap_ns / self.rules.pace
        largest = max(len(table) for table in self.spaced) - 1
        for size in range(1, largest):
            if min(table[size] for table in self.spaced if size < len(table)) <= size * each_ns:
                return size
        return largest

    def _backends(self) -> float:
        """The backends that it may count on: its share of them, or what others leave."""
        able = self.desk.backends_for(self)
        least = 1.0 if self.share == 1.0 else max(1, able) * self.share
        return max(least, able - self.others)

    def _free_backends(self) -> int:
        """Backends that can be had for those who wait."""
        return self.desk.free_backends(self)

    def _points(self, end_in_ns: int) -> list[Point]:
        points = reachable(self.spaced, self.accuracy, end_in_ns, SECOND / self.gap_ns)
        if points:
            return points
        # Nothing leaves room to wait: the fastest alone is what there is.
        fastest = min(range(len(self.tables)), key=lambda each: self.tables[each][1])
        return [Point(fastest, 1, self.tables[fastest][1], self.accuracy[fastest])]

    def _room_ns(self, point: Point) -> int:
        """How long requests may wait and still run at about this cost, in a smaller batch."""
        table = self.tables[point.variant]
        limit_ns = self.rules.efficient * point.each_ns
        small = next(size for size in range(1, len(table)) if table[size] <= limit_ns * size)
        return max(1, self.end_in_ns - table[small])

    def _count_others(self, now_ns: int) -> None:
        """How many of the backends that may serve it other applications keep busy."""
        then_ns, busy_ns, own_ns = self.seen
        if now_ns <= then_ns:
            return
        self.seen = (now_ns, self.pool.busy_ns, self.own_busy_ns)
        # After a move its own last batches end where it was, and do not count here.
        theirs_ns = max(0, (self.pool.busy_ns - busy_ns) - (self.own_busy_ns - own_ns))
        theirs = theirs_ns / (now_ns - then_ns)
        able = self.desk.backends_for(self)
        if able < self.pool.backends:
            # Batches where it cannot run take nothing from it: count those where it can.
            own = self.under_way.count(now_ns)
            theirs = max(0.0, float(able - self.desk.free_backends(self) - own))
        self.others += self.rules.others_memory * (theirs - self.others)

    def _price(self, now_ns: int) -> tuple[float, float]:
        """Accuracy that a nanosecond of backend time must earn, and what then is left of the
        accuracy of a request that runs at its best."""
        # Those for whom a backend is free do not wait; the others for one after the other.
        waiting = len(self.queue) + len(self.constrained)
        queued_ns = max(0, waiting - self._free_backends()) * self.turn_ns
        backends = self.each_ns / self.gap_ns
        ahead_ns = self.under_way.left_ns(now_ns) - self.under_way.usual_ns(backends)
        # Between two grants the queue grows to a batch and falls again: half a turn is no wait.
        queued_ns -= self.under_way.mean_ns / (2.0 * backends)
        price = self.prices.at(queued_ns + ahead_ns / backends, queued_ns)
        return price, max(each.accuracy - price * each.each_ns for each in self.hull)

    # Bid and grant

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        queue = self.queue
        start_at_ns = now_ns + self.lead.ns(1)
        self._drop_hopeless(start_at_ns, spare=self._free_backends() > 0)
        if len(queue) + len(self.constrained) == 0:
            return None
        bid = self.standing_bid
        bid.size = 1
        bid.ripe_at_ns = now_ns
        if self._constrained_first():
            bid.key = bid.expires_at_ns = self.constrained.start_by_ns() - self.lead.ns(1)
            return bid
        first = queue.first()
        bid.key = bid.expires_at_ns = first.deadline_ns - self.lead.ns(1) - self._alone_ns()
        if self.desk.free_backends(self) > 0:
            left_ns = first.deadline_ns - start_at_ns
            hold_ns = self._hold_ns(now_ns, left_ns)
            if hold_ns > 0:
                bid.ripe_at_ns = min(now_ns + hold_ns, bid.expires_at_ns)
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        self._drop_hopeless(slot.start_at_ns, spare=self._free_backends() > 1)
        batch = None
        if self._constrained_first():
            # A request that nothing here may serve does not keep the others from running.
            request = self._first_fitting(slot)
            if request is not None:
                batch = self._batch_here(now_ns, slot, request)
        if batch is None and len(self.queue) > 0:
            batch = self._batch_by_deadline(now_ns, slot)
        self.standing_bid.again = batch is None and len(self.constrained) > 0
        if batch is None:
            return None
        run_ns = slot.expect_ns(batch.variant, len(batch.requests))
        self._work_on(slot.kind).add(slot.start_at_ns + run_ns, run_ns)
        if self.evidence:
            self.evidence -= sum(request.accuracies is not None for request in batch.requests)
            self.evidence = max(0, self.evidence) if len(self.queue) + len(self.constrained) else 0
        return batch

    def _work_on(self, kind: int) -> RunningWork:
        """Where to count a batch that runs on such a backend."""
        return self.under_way

    def _first_fitting(self, slot: Slot) -> Request | None:
        """The first constrained request for which some variant here is in time.

        On a slow backend many are asked in vain, so what each wish leaves is looked up once.
        """
        shortest_ns: dict[frozenset[int] | None, int] = {}
        for _, _, request in self.constrained.entries:
            run_ns = shortest_ns.get(request.allowed)
            if run_ns is None:
                left = [self.variants[number] for number in self.constrained.left_to(request)]
                run_ns = min(
                    (slot.plan_ns(each, 1) for each in left if slot.runs(each)), default=NEVER
                )
                shortest_ns[request.allowed] = run_ns
            if run_ns <= request.deadline_ns - slot.start_at_ns:
                return request
        return None

    def _constrained_first(self) -> bool:
        """Whether one who waits for certain variants has to start before all others."""
        constrained, queue = self.constrained, self.queue
        if len(constrained) == 0 or len(queue) == 0:
            return len(constrained) > 0
        return constrained.start_by_ns() < queue.first().deadline_ns - self._alone_ns()

    def _batch_by_deadline(self, now_ns: int, slot: Slot) -> Batch | None:
        """The batch of the queue's first request; None where it had better be held."""
        queue = self.queue
        left_ns = queue.first().deadline_ns - slot.start_at_ns
        if self._hold_ns(now_ns, left_ns) > 0:
            return None
        if not self._plain(slot) or self.evidence > 0:
            return self._batch_here(now_ns, slot, queue.first())
        price, rest = self._price(now_ns)
        # Caution is given up before a request is.
        point, _ = self._best(int(left_ns / (1.0 + self.caution)), len(queue), price, rest)
        if point is None:
            point, _ = self._best(left_ns, len(queue), price, rest)
        if point is None:
            return None
        return Batch(self.variants[point.variant], queue.pop_many(point.size))

    def _best(
        self, left_ns: float, waiting: int, price: float, rest: float
    ) -> tuple[Point | None, float]:
        """The batch that earns most at this price, and the backend time it wastes against the
        best there is with a full queue."""
        best: Point | None = None
        best_worth = 0.0
        each_ns = self.lead.per_request_ns
        for size in range(1, min(waiting, len(self.by_size) - 1) + 1):
            left_ns -= each_ns if size > 1 else 0
            for point in self.by_size[size]:
                run_ns = self.tables[point.variant][size]
                if run_ns > left_ns:
                    break
                worth = size * (point.accuracy - rest) - price * run_ns
                if best is None or worth > best_worth:
                    best, best_worth = point, worth
        return best, -best_worth / price if price > 0.0 else 0.0

    def _batch_here(self, now_ns: int, slot: Slot, first: Request) -> Batch | None:
        """The same on this very backend, with what is known of these very requests and with
        what each of them allows; the first is in the batch."""
        price, rest = self._price(now_ns)
        for allowance in (1.0 + self.caution, 1.0):
            variant, taken = self._best_here(slot, first, allowance, price, rest)
            if taken:
                for request in taken:
                    self._remove(request)
                return Batch(variant, taken)
        return None

    def _best_here(
        self, slot: Slot, first: Request, allowance: float, price: float, rest: float
    ) -> tuple[int, list[Request]]:
        best_variant, best_size = -1, 0
        best_worth = 0.0
        best: list[Request] = []
        for number in self.constrained.left_to(first):
            variant, index = self.variants[number], self.allowed[number]
            if not slot.runs(variant):
                continue
            company = self._company(first, variant, slot.size_max(variant))
            earned, until_ns = 0.0, NEVER
            for size, request in enumerate(company, 1):
                until_ns = min(until_ns, request.deadline_ns)
                run_ns = slot.plan_ns(variant, size)
                if run_ns * allowance > until_ns - slot.start_at_ns:
                    break
                own = request.accuracies
                earned += (self.accuracy[number] if own is None else own[index]) - rest
                worth = earned - price * run_ns
                if best_size == 0 or worth > best_worth:
                    best_variant, best_size, best_worth, best = variant, size, worth, company
        return best_variant, best[:best_size]

    def _company(self, first: Request, variant: int, size_max: int) -> list[Request]:
        """Requests that may run with the first on this variant; after it by deadline."""
        queue = self.queue
        company = queue.items[queue.head : queue.head + size_max]
        if len(self.constrained) > 0:
            company += self.constrained.content_with(variant)
            company.sort(key=lambda each: (each is not first, each.deadline_ns))
        return company[:size_max]

    def _plain(self, slot: Slot) -> bool:
        """Whether the tables hold on this backend as they stand."""
        changed = slot.resident is not None or slot.room is not None
        return not changed and slot.kind == self.pool_tables.only and slot.factor == 1.0

    # Holding and dropping

    def _hold_ns(self, now_ns: int, left_ns: int) -> int:
        """How long to wait before asking again; 0: go now."""
        hold = self.options.hold
        if hold == "eager":
            return 0
        if hold == "auto" and self.share < 1.0:
            # While it waits, those who share the backends use them.
            hold = "deferred"
        first = self.queue.first()
        latest_ns = first.arrived_at_ns + self.options.hold_ns_max
        for each in self.queue.items[self.queue.head : self.queue.head + len(self.by_size)]:
            latest_ns = min(latest_ns, each.start_by_ns)
        if latest_ns <= now_ns:
            return 0
        waiting = len(self.queue)
        left_ns = int(left_ns / (1.0 + self.caution))
        price, rest = self._price(now_ns)
        point, wasted_ns = self._best(left_ns, waiting, price, rest)
        if point is None:
            return 0
        if hold == "deferred":
            early_ns = int(self.rules.hold_margin * self.signals.wait_ns)
            return min(self._full_in_ns(point, left_ns) - early_ns, latest_ns - now_ns)
        # One more request comes in about a gap: is it worth the backend's waiting?
        gap_ns = self.gap_ns
        better, wasted_then_ns = self._best(left_ns - gap_ns, waiting + 1, price, rest)
        if better is None or wasted_ns - wasted_then_ns <= gap_ns:
            return 0
        run_ns = self.tables[better.variant][better.size]
        return max(1, int(min(2.0 * gap_ns, left_ns - run_ns, latest_ns - now_ns)))

    def _full_in_ns(self, point: Point, left_ns: int) -> int:
        """How long until one more request would not fit the batch (Symphony Fig. 16)."""
        table = self.tables[point.variant]
        if point.size + 1 >= len(table) or point.size >= self._full_size(table):
            return 0
        return left_ns - table[point.size + 1] - self.lead.per_request_ns * point.size

    def _full_size(self, table: list[int]) -> int:
        """The largest batch that can be gathered and run within the SLO."""
        return max(1, bisect_right(table, self.end_in_ns - self.gap_ns) - 1)

    def _alone_ns(self) -> int:
        return min([table[1] for table in self.pool_tables.quickest])

    def _drop_hopeless(self, start_at_ns: int, spare: bool) -> None:
        """Drop heads that fit no batch; and in overload those that would keep all batches small
        (a sliding window, as `fermata.router.policies.deferred`)."""
        queue = self.queue
        cheapest = self.tables[self.hull[0].variant]
        size = min(self.window, len(cheapest) - 1)
        window_ns = cheapest[size] + self.lead.per_request_ns * (size - 1)
        alone_ns = self._alone_ns()
        while len(queue) > 0:
            first = queue.first()
            left_ns = first.deadline_ns - start_at_ns
            if left_ns < alone_ns:
                self._doubt(first)
                self.outbox.drop(queue.pop(), DropReason.LATE)
            elif left_ns < window_ns and not spare and len(queue) >= 2 * self.window > 2:
                self.outbox.drop(queue.pop(), DropReason.WINDOW)
            else:
                break
        while len(self.constrained) > 0:
            first = self.constrained.first()
            if first.deadline_ns - start_at_ns >= self.constrained.alone_ns(first):
                return
            self.constrained.remove(first)
            self._doubt(first)
            self.outbox.drop(first, DropReason.LATE)

    def _doubt(self, request: Request) -> None:
        """A margin that lets nothing run is never refuted by a run."""
        slo_ns = request.deadline_ns - request.arrived_at_ns - self.lead.ns(1)
        for variant in self.variants:
            self.pool_tables.relax_margins(variant, slo_ns)
