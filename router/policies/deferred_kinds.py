"""Deferred scheduling on a pool with several kinds of backends: one candidate for each kind.

All candidates are formed from one queue. A slower kind must begin earlier, so its candidate is
ripe earlier, and passes over the first requests where they leave it too little time: those are
left to faster kinds. Only the fastest kind drops heads, by the rules of `ModelThread`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.costs import VariantCost
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Request
from fermata.router.core.lead import Lead
from fermata.router.core.rate import RateMeter
from fermata.router.core.slot import Slot
from fermata.router.core.source import Bid, Source, kind_lane
from fermata.router.policies.deferred_options import DeferredOptions
from fermata.router.policies.sizing import full_size, target_size


@dataclass(frozen=True, slots=True)
class HoldSizes:
    """Sizes from which on a candidate is not held any longer."""

    at_once: int = NEVER
    at_lull: int = NEVER
    """Once a lull has begun."""


def hold_sizes(
    options: DeferredOptions,
    cost: VariantCost,
    target: int,
    rps: float,
    quiet_rps: float | None,
    tolerance: float,
) -> HoldSizes:
    """The sizes from which on waiting does not pay; `quiet_rps` is the rate after lulls, or None
    where arrivals do not come in bursts. A request may cost `tolerance` times what it does in the
    target batch."""
    # Symphony 4.3: waiting for one more request pays while b < beta x lambda. With lambda the
    # rate after a lull, the rule also tells when a burst is over and waiting is pointless.
    beta_s = cost.beta_ns / SECOND
    at_once = at_lull = NEVER
    if options.beta_lambda > 0.0:
        at_once = int(options.beta_lambda * beta_s * rps) + 1
    if tolerance > 1.0:
        at_once = min(at_once, efficient_size(cost.plan_ns, target, tolerance))
    if options.lull_beta_lambda > 0.0 and quiet_rps is not None:
        at_lull = int(options.lull_beta_lambda * beta_s * quiet_rps) + 1
    return HoldSizes(at_once, at_lull)


def efficient_size(plan_ns: Sequence[int], target: int, tolerance: float) -> int:
    """The smallest batch whose cost per request is within that factor of the target's."""
    limit_ns = tolerance * plan_ns[target] / target
    low, high = 1, target
    while low < high:
        middle = (low + high) // 2
        if plan_ns[middle] <= limit_ns * middle:
            high = middle
        else:
            low = middle + 1
    return low


class KindCandidate:
    """A model's next batch on one kind of backend."""

    __slots__ = (
        "bid",
        "cost",
        "first",
        "full",
        "hold",
        "kind",
        "leader_due_ns",
        "size",
        "target",
        "window",
    )

    def __init__(self, kind: int, cost: VariantCost) -> None:
        self.kind = kind
        self.cost = cost
        self.bid = Bid()
        self.target = 1
        self.full = 1
        self.window = 1
        self.hold = HoldSizes()
        self.first = 0
        """Where it begins in the queue's `items`."""
        self.size = 0
        self.leader_due_ns = 0
        """Deadline of the first one, where heads are passed over."""

    def take_cost(self, cost: VariantCost) -> None:
        """Plan with the run times of another variant, which may take smaller batches."""
        self.cost = cost
        self.target = min(self.target, cost.size_max)
        self.full = min(self.full, cost.size_max)
        self.window = min(self.window, cost.size_max)

    def is_able(self, slo_ns: int) -> bool:
        """Whether a request alone is in time."""
        return self.cost.plan_ns[1] <= slo_ns

    def capacity_rps(self, backends: int, slo_ns: int) -> float:
        """The rate of so many backends with batches of the target's size; 0 where none is fast
        enough."""
        if not self.is_able(slo_ns):
            return 0.0
        return backends * self.target * SECOND / self.cost.plan_ns[self.target]

    def form(self, queue: DeadlineQueue, start_at_ns: int, spare: bool) -> int:
        """Choose the batch that could start then; returns its size.

        It begins with the first request that leaves room for the window, or near the end of the
        queue, where fewer are left than fill it. With a backend to spare nobody is passed over who
        fits at all.
        """
        plan_ns, items, head = self.cost.plan_ns, queue.items, queue.head
        first = bisect_left(items, start_at_ns + plan_ns[1], lo=head, key=_deadline)
        if not spare and self.window > 1:
            roomy_ns = start_at_ns + plan_ns[self.window]
            roomy = bisect_left(items, roomy_ns, lo=head, key=_deadline)
            first = min(roomy, max(first, len(items) - self.window + 1))
        self.first, self.size = first, 0
        if first < len(items):
            fits = bisect_right(plan_ns, items[first].deadline_ns - start_at_ns) - 1
            self.size = queue.fill(fits, first) if queue.extra else min(fits, len(items) - first)
        return self.size

    def fill(self, queue: DeadlineQueue, start_at_ns: int) -> int:
        """Choose the largest batch that could start then and be full, whoever is passed over."""
        first, size = queue.full_batch(start_at_ns, self.cost.plan_ns, self.cost.size_max)
        self.begin_with(first, size, self.leads_anew(queue, first, size))
        return size

    def leads_anew(self, queue: DeadlineQueue, first: int, size: int) -> bool:
        """Whether another request is the first one now; notes which it is."""
        before_ns = self.leader_due_ns
        self.leader_due_ns = queue.items[first].deadline_ns if size > 0 else 0
        return self.leader_due_ns != before_ns

    def begin_with(self, first: int, size: int, another: bool) -> None:
        """Take the batch that was chosen; `another` tells that it is not the one before, made
        larger."""
        self.first, self.size = first, size
        if another:
            # How long the one before was ripe tells nothing of its wait.
            self.bid.ripe_at_ns = 0

    def fit(self, queue: DeadlineQueue, now_ns: int, lead: Lead) -> int:
        """Leave out whoever would make the batch start too late; returns when its run, begun
        without delay, must end."""
        plan_ns, size = self.cost.plan_ns, self.size
        end_by_ns = queue.items[self.first].deadline_ns
        while size > 1 and now_ns + lead.ns(size) + plan_ns[size] > end_by_ns:
            size -= 1
        self.size = size = self._whole(queue, size)
        return end_by_ns - lead.ns(size)

    def size_on(self, slot: Slot, variant: int, queue: DeadlineQueue) -> int:
        """How many places of the batch are in time on the backend that is offered."""
        budget_ns = queue.items[self.first].deadline_ns - slot.start_at_ns
        return self._whole(queue, min(self.size, slot.size_that_fits(variant, budget_ns)))

    def _whole(self, queue: DeadlineQueue, size: int) -> int:
        return queue.fill(size, self.first) if queue.extra else size

    def aim(
        self,
        options: DeferredOptions,
        slo_ns: int,
        rps: float,
        quiet_rps: float | None,
        tolerance: float,
    ) -> tuple[float, float]:
        """Set the sizes for this part of the rate, as `hold_sizes` says; returns the backends
        needed, and those that would just do."""
        self.cost.plan_within(slo_ns)
        plan_ns = self.cost.plan_ns
        self.target = target = target_size(plan_ns, slo_ns, rps, self.target)
        self.full = full = full_size(plan_ns, slo_ns, rps, self.full)
        self.window = max(1, int(options.drop_window * target))
        self.hold = hold_sizes(options, self.cost, target, rps, quiet_rps, tolerance)
        return (
            rps * plan_ns[target] / (target * SECOND),
            rps * plan_ns[full] / (full * SECOND),
        )

    def stand(
        self,
        now_ns: int,
        end_by_ns: int,
        hold_until_ns: int,
        early_ns: int,
        rate: RateMeter,
        full: bool,
    ) -> Bid:
        """The bid for the batch that was formed, whose run must end by then; `full` tells that
        whoever comes makes it no larger."""
        size, plan_ns, bid = self.size, self.cost.plan_ns, self.bid
        bid.size = size
        bid.expires_at_ns = bid.key = end_by_ns - plan_ns[size]
        if full or size >= self.hold.at_once or size == self.cost.size_max:
            # Not before everything of this instant has arrived: frames of cameras come together.
            if bid.ripe_at_ns > now_ns or bid.ripe_at_ns == 0:
                bid.ripe_at_ns = min(now_ns + 1, bid.expires_at_ns)
            return bid
        ripe_at_ns = end_by_ns - plan_ns[size + 1] - early_ns
        if size >= self.hold.at_lull:
            ripe_at_ns = min(ripe_at_ns, rate.last_at_ns + rate.lull_ns)
        if hold_until_ns != NEVER:
            ripe_at_ns = min(ripe_at_ns, hold_until_ns - early_ns)
        bid.ripe_at_ns = ripe_at_ns
        return bid


class KindCandidates:
    """A model's candidates on the kinds of its pool, the fastest kind first."""

    __slots__ = ("by_lane", "fastest", "lanes", "queue", "source")

    def __init__(
        self,
        source: Source,
        variant: int,
        queue: DeadlineQueue,
        kinds: Sequence[int],
        hold: HoldSizes,
    ) -> None:
        self.source = source
        self.queue = queue
        found = [KindCandidate(kind, source.costs.of(variant, kind)) for kind in kinds]
        found.sort(key=lambda each: each.cost.plan_ns[1])
        self.fastest = found[0].kind
        self.by_lane = {kind_lane(each.kind): each for each in found}
        self.lanes = tuple(self.by_lane)
        self.hold_from(hold)

    def of(self, kind: int) -> KindCandidate | None:
        return self.by_lane.get(kind_lane(kind))

    def hold_from(self, hold: HoldSizes) -> None:
        """Hold no candidate of these sizes, whatever its kind."""
        for each in self.by_lane.values():
            each.hold = hold

    def run(self, variant: int) -> None:
        """Form candidates of another variant from now on."""
        for each in self.by_lane.values():
            each.take_cost(self.source.costs.of(variant, each.kind))

    @property
    def window(self) -> int:
        """The fastest kind's: it alone drops heads."""
        return self.by_lane[kind_lane(self.fastest)].window

    @property
    def target(self) -> int:
        return self.by_lane[kind_lane(self.fastest)].target

    def form(self, candidate: KindCandidate, start_at_ns: int, offered: int) -> int:
        """Choose the candidate of a kind that is not the fastest, where so many backends of it are
        offered; returns its size."""
        free = self.source.desk.free_backends(self.source, kind_lane(candidate.kind))
        return candidate.form(self.queue, start_at_ns, free > offered)

    def has_spare(self, start_at_ns: int, offered: int) -> bool:
        """Whether more than those offered can be had, of kinds that serve anybody here in time."""
        items, free = self.queue.items, 0
        for lane, each in self.by_lane.items():
            if items and start_at_ns + each.cost.plan_ns[1] <= items[-1].deadline_ns:
                free += self.source.desk.free_backends(self.source, lane)
        return free > offered

    def able_backends(self, slo_ns: int) -> int:
        """Backends that can be in time; idle ones that cannot do not make the others less busy."""
        able = [each.kind for each in self.by_lane.values() if each.is_able(slo_ns)]
        return sum(map(self.source.desk.backends_of_kind, able))

    def aim(
        self,
        options: DeferredOptions,
        slo_ns: int,
        rps: float,
        quiet_rps: float | None,
        tolerance: float,
    ) -> tuple[float, float, float]:
        """Set the sizes of each kind for its part of the rate; returns the backends needed, those
        that would just do, and those needed without margins."""
        capacities = {
            lane: each.capacity_rps(self.source.desk.backends_of_kind(each.kind), slo_ns)
            for lane, each in self.by_lane.items()
        }
        total_rps = sum(capacities.values())
        backends = backends_min = usual = 0.0
        for lane, each in self.by_lane.items():
            if capacities[lane] > 0.0:
                part = capacities[lane] / total_rps
                quiet_part = None if quiet_rps is None else part * quiet_rps
                needed = each.aim(options, slo_ns, part * rps, quiet_part, tolerance)
                backends, backends_min = backends + needed[0], backends_min + needed[1]
                usual += needed[0] * each.cost.pace(each.target)
        return backends, backends_min, usual


def _deadline(request: Request) -> int:
    return request.deadline_ns
