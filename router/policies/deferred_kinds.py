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
from fermata.router.core.rate import RateMeter
from fermata.router.core.source import Bid
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

    __slots__ = ("bid", "cost", "first", "full", "hold", "kind", "size", "target", "window")

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
        self, now_ns: int, end_by_ns: int, hold_until_ns: int, early_ns: int, rate: RateMeter
    ) -> Bid:
        """The bid for the batch that was formed, whose run must end by then."""
        size, plan_ns, bid = self.size, self.cost.plan_ns, self.bid
        bid.size = size
        bid.expires_at_ns = bid.key = end_by_ns - plan_ns[size]
        if size >= self.hold.at_once or size == self.cost.size_max:
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


def _deadline(request: Request) -> int:
    return request.deadline_ns
