"""Deferred batch scheduling (Symphony, sections 4.2-4.3 and appendix C)."""

from bisect import bisect_right
from collections.abc import Sequence

from fermata.foundation.units import NEVER
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import (
    NO_LANES,
    POOL_ONLY,
    Bid,
    SourceContext,
    SourceTimer,
)
from fermata.router.policies.content_upgrade import suited
from fermata.router.policies.deferred_kinds import HoldSizes, KindCandidate, KindCandidates
from fermata.router.policies.deferred_options import DeferredOptions
from fermata.router.policies.deferred_targets import BatchTargets
from fermata.router.policies.family import Family
from fermata.router.policies.sizing import LOSSES, after_batch, after_loss, overload_window


class ModelThread(BatchTargets):
    """The deferred source of one model: holds requests until one more would not fit.

    Deviations from the paper, each an option: the queue is ordered by deadline, since clients of
    one model may differ in SLO; heads are dropped by a sliding window, not lazily, and passed over
    in overload; the hold ends earlier by the time that ripe bids have lately waited for a backend,
    and when a burst is over.
    """

    tells_demand = True
    by_kind = True
    framed = False
    """Whether some request has had to start before its successor came."""

    def __init__(
        self,
        variant: int,
        options: DeferredOptions,
        family: Family | None = None,
        slo_ns_max: int = NEVER,
    ) -> None:
        super().__init__(variant, options, slo_ns_max)
        self.may_run = frozenset((variant,))
        self.family = family
        """The family whose variants may take its place where requests suit them; None: none."""
        self.hold_until_ns = NEVER
        """When the candidate is held no longer, however far its deadline."""
        self.size = 0
        """Requests in the candidate; 0 where each of several kinds has one of its own."""
        self.standing_bid = Bid()
        self.silence = SourceTimer(self)

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        desk.precedence.join(self.queue, of_request=False)
        self._plan_for(self.kind)

    def on_leave(self) -> None:
        self._set_demand(0.0)
        self.desk.precedence.leave(self.queue)

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        if self.rate.on_arrival(now_ns, request.rows):
            self._aim(request.deadline_ns - request.arrived_at_ns)
            self.timers.arm(self.silence, now_ns + self.rules.silent_ns)
        if request.start_by_ns != NEVER and not self.framed:
            self.framed = True
        queue = self.queue
        if queue.push(request):
            return self._anew(now_ns)
        # The common case: the candidate was the whole queue, and has room for one more.
        size = self.size + request.rows
        items, head = queue.items, queue.head
        if size == len(items) - head + queue.extra and size <= self.cost.size_max:
            lead = self.lead
            lead_ns = lead.start_ns + lead.per_request_ns * size
            end_by_ns = items[head].deadline_ns - lead_ns
            if now_ns + self.plan_ns[size] <= end_by_ns:
                if request.start_by_ns < self.hold_until_ns:
                    self.hold_until_ns = request.start_by_ns
                self._stand(now_ns, size, end_by_ns, queue.begin >= 0)
                return POOL_ONLY
        if self.kinds is not None:
            return self.kinds.lanes
        return self._anew(now_ns) if queue.begin >= 0 and self._can_grow(now_ns) else NO_LANES

    def _can_grow(self, now_ns: int) -> bool:
        """Whether those with most time fill a larger batch than the candidate."""
        size = self.size + 1
        if size > self.cost.size_max or size > len(self.queue):
            return False
        end_at_ns = now_ns + self.lead.ns(size) + self.plan_ns[size]
        return self.queue.items[-size].deadline_ns >= end_at_ns

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        if not self.queue.remove(request):
            return NO_LANES
        return self._anew(now_ns)

    def on_plan(self, now_ns: int) -> Sequence[int]:
        """Another sub-cluster: the candidate stands there as it stood here."""
        if self.rate.rps > 0.0:
            self._set_demand(self.rate.rps)
        return self._anew(now_ns)

    def on_kinds(self, now_ns: int, kinds: tuple[int, ...]) -> Sequence[int]:
        """Plan with the tables of the kinds that are there, each for itself if they are several."""
        if self.kinds is None and kinds == (self.kind,):
            return NO_LANES
        # Until a rate is known, no kind holds what one kind alone would not.
        hold = HoldSizes(self.at_once, self.at_lull)
        found = KindCandidates(self, self.variant, self.queue, kinds, hold)
        self.kinds = found if len(kinds) > 1 else None
        self._plan_for(found.fastest)
        if self.slo_ns > 0:
            self._aim(self.slo_ns)
        self.size = 0
        return (POOL_ONLY[0], *self._anew(now_ns))

    def _anew(self, now_ns: int) -> Sequence[int]:
        """Form what stands in the lanes anew; returns them."""
        if self.kinds is not None:
            return self.kinds.lanes
        self._rebuild(now_ns)
        return POOL_ONLY

    def on_time(self, now_ns: int) -> Sequence[int]:
        """Nothing has arrived for a while: the model needs no backends, and whoever still waits
        has nobody to wait for."""
        self.rate.fall_silent()
        self._set_demand(0.0)
        if self.options.hold != "auto":
            return NO_LANES
        self.at_once = 1
        if self.kinds is not None:
            self.kinds.hold_from(HoldSizes(1))
        return self._anew(now_ns)

    def losses(self) -> DeadlineQueue:
        return self.queue

    def queued_places(self) -> int:
        return self.queue.rows

    # The candidate

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        if self.size == 0:
            return None if self.kinds is None else self._bid_by_kind(self.kinds, now_ns, lane)
        bid = self.standing_bid
        if bid.expires_at_ns < now_ns:
            self._rebuild(now_ns)
            return bid if self.size > 0 else None
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        if not slot.runs(self.variant):
            return None
        if self.kinds is not None:
            return self._grant_by_kind(self.kinds, slot)
        waiting = len(self.queue)
        size = self._prune(slot.start_at_ns, spare=self.desk.free_backends(self) > 1)
        first = self._begin()
        if size > 0 and not slot.plain(self.variant):
            budget_ns = self.queue.items[first].deadline_ns - slot.start_at_ns
            size = self._whole(min(size, slot.size_that_fits(self.variant, budget_ns)))
        batch = self._take(slot, first, size) if size > 0 else None
        if len(self.queue) != waiting:
            # A bid that has only been offered the wrong backend stands as it is.
            self._rebuild(now_ns)
        return batch

    def _take(self, slot: Slot, first: int, size: int) -> Batch:
        """The batch of so many places, from that request on."""
        queue, variant = self.queue, self.variant
        taken = queue.pop_rows(first, size)
        if self.family is not None:
            variant = suited(self.family, slot, variant, taken)
        if queue.lost > 0.0:
            queue.lost = after_batch(queue.lost, len(taken))
        return Batch(variant, taken, size)

    def _rebuild(self, now_ns: int) -> None:
        """Form the candidate anew from the queue as it stands."""
        lead = self.lead
        size = self._prune(now_ns + lead.ns(1), spare=self.desk.free_backends(self) > 0)
        self.size = 0
        while size > 0 and self.queue.extra and self._leaves_late(now_ns):
            first = self.queue.pop()
            self.drop_late(first, self.variant, first.deadline_ns, self.kind)
            size = self._prune(now_ns + lead.ns(1), spare=self.desk.free_backends(self) > 0)
        if size == 0:
            return
        begin = self._begin()
        end_by_ns = self.queue.items[begin].deadline_ns
        while size > 1 and now_ns + lead.ns(size) + self.plan_ns[size] > end_by_ns:
            size -= 1
        full = self.queue.begin >= 0
        if self.queue.extra:
            size = self._whole(size)
            # Rows of one request stay together: the next one finds no room.
            full = size < self.queue.rows
        self.hold_until_ns = self._hold_until_ns(begin, size)
        self._stand(now_ns, size, end_by_ns - lead.ns(size), full)
        if self.queue.begin >= 0:
            # Whoever has been passed over is told in time that nothing came of it.
            hopeless_at_ns = self.queue.first().deadline_ns - lead.ns(1) - self.plan_ns[1]
            bid = self.standing_bid
            bid.expires_at_ns = min(bid.expires_at_ns, hopeless_at_ns)

    def _whole(self, size: int) -> int:
        """The most places up to that size that whole requests fill, from the first one on."""
        queue = self.queue
        return queue.fill(size, queue.head) if queue.extra else size

    def _leaves_late(self, now_ns: int) -> bool:
        """Whether all rows of the first request take longer to fetch and run than it has."""
        first = self.queue.first()
        ready_at_ns = now_ns + self.lead.ns(first.rows)
        return ready_at_ns + self.plan_ns[first.rows] > first.deadline_ns

    def _hold_until_ns(self, first: int, size: int) -> int:
        """The earliest of what these requests allow: the user's limit, their successors."""
        items = self.queue.items
        hold_ns_max = self.options.hold_ns_max
        if hold_ns_max == NEVER and not self.framed:
            return NEVER
        return min(
            min(request.start_by_ns, request.arrived_at_ns + hold_ns_max)
            for request in items[first : first + size]
        )

    def _stand(self, now_ns: int, size: int, end_by_ns: int, full: bool = False) -> None:
        """Bid for a batch of this size whose run, begun without delay, must end by then."""
        before, self.size = self.size, size
        plan_ns = self.plan_ns
        bid = self.standing_bid
        bid.size = size
        bid.expires_at_ns = bid.key = end_by_ns - plan_ns[size]
        if self.tight and self._is_patient(size, full):
            self._hold_patiently(size, end_by_ns)
            return
        if full or size >= self.at_once or size == self.cost.size_max:
            # Not before everything of this instant has arrived: frames of cameras come together.
            if before == 0 or bid.ripe_at_ns > now_ns:
                bid.ripe_at_ns = min(now_ns + 1, bid.expires_at_ns)
            return
        # Symphony Fig. 16, frontrun: wait until one more request could not fit. We leave as much
        # earlier as ripe bids have lately waited, so that they find a backend in time.
        early_ns = int(self.options.wait_margin * self.signals.wait_ns)
        ripe_at_ns = end_by_ns - plan_ns[size + 1] - early_ns
        if size >= self.at_lull:
            ripe_at_ns = min(ripe_at_ns, self.rate.last_at_ns + self.rate.lull_ns)
        if self.hold_until_ns != NEVER:
            ripe_at_ns = min(ripe_at_ns, self.hold_until_ns - early_ns)
        bid.ripe_at_ns = ripe_at_ns

    def _is_patient(self, size: int, full: bool) -> bool:
        """Whether to wait for more, whatever that costs those who are there."""
        losing = self.queue.lost > self.rules.losing
        return losing and not full and size < self.cost.size_max

    def _hold_patiently(self, size: int, end_by_ns: int) -> None:
        """Hold for as long as the deadline allows: each batch that leaves with few costs those who
        come while it runs."""
        next_ns = self.plan_ns[size + 1]
        early_ns = int((self._slowest() - 1.0) * next_ns)
        ripe_at_ns = end_by_ns - next_ns - early_ns
        if self.hold_until_ns != NEVER:
            ripe_at_ns = min(ripe_at_ns, self.hold_until_ns - early_ns)
        self.standing_bid.ripe_at_ns = ripe_at_ns

    def _slowest(self) -> float:
        """How much longer than its peers the slowest backend takes, up to what counts as a peer;
        left for the last moment, it would never run again."""
        factors = self.costs.backend_factor
        return min(self.rules.slowest, max(factors.values())) if factors else 1.0

    def _prune(self, start_at_ns: int, spare: bool) -> int:
        """Size of the batch that could start then, after dropping the heads that stand in its way.

        A head goes if it fits no batch at all, or if the queue could fill the window but the head
        would not let it: waiting for it would keep every later batch small (docs/papers.md).
        In overload some have to go anyway: heads are passed over, or the window is wider
        (`overload_window`).
        With a backend to spare the others have one of their own, and nobody needs to go.
        """
        queue, window = self.queue, self.window
        queue.begin = -1
        if queue.lost > LOSSES.heavy and self._fills(self.kind):
            return self._pass_over(start_at_ns)
        if queue.lost > LOSSES.losing and not spare:
            desk = self.desk
            mixed = self.kinds is not None
            backends = desk.backends_of_kind(self.kind) if mixed else desk.backends_for(self)
            least = self._overload_target(queue.lost)
            wide = overload_window(queue, self.plan_ns, start_at_ns, backends, least)
            # Where too few wait to fill the window, a head makes room for as many as there are.
            window = max(window, wide) if queue.rows >= window else wide
        while len(queue) > 0:
            # Index 0 of the table is a batch of nobody, which fits any budget from 0 up.
            first = queue.first()
            room = bisect_right(self.plan_ns, first.deadline_ns - start_at_ns) - 1
            fits = queue.fill(room, queue.head) if queue.extra else min(room, len(queue))
            if fits > 0 and (room >= window or spare or queue.rows < window):
                return fits
            queue.lost = after_loss(queue.lost)
            if fits > 0:
                self.outbox.drop(queue.pop(), DropReason.WINDOW)
                continue
            self.drop_late(queue.pop(), self.variant, first.deadline_ns, self.kind)
        return 0

    def _fills(self, kind: int) -> bool:
        """Whether that kind runs the largest full batch, and heads that stand in its way stay in
        the queue. Slower kinds do so in overload: what they pass over is left to faster ones. The
        fastest does in heavy overload where others make more of this backend, and the next one may
        have room for these. With them nobody gets over an overload that is slight, or of one
        application alone (docs/papers.md)."""
        queue = self.queue
        if queue.lost <= LOSSES.losing or queue.extra or not self.options.pass_over:
            return False
        return kind != self.kind or (queue.lost > LOSSES.heavy and not self._is_alone())

    def _pass_over(self, start_at_ns: int) -> int:
        """Size of the largest batch that could start then and be full. Drops who is too late."""
        queue, plan_ns = self.queue, self.plan_ns
        while len(queue) > 0 and queue.first().deadline_ns < start_at_ns + plan_ns[1]:
            queue.lost = after_loss(queue.lost)
            late = queue.pop()
            self.drop_late(late, self.variant, late.deadline_ns, self.kind)
        first, size = queue.full_batch(start_at_ns, plan_ns, self.cost.size_max)
        if size > 0:
            queue.begin = first
        return size

    def _begin(self) -> int:
        """Where the candidate begins in the queue's `items`."""
        return self.queue.head if self.queue.begin < 0 else self.queue.begin

    # The candidates, where the pool has several kinds of backends

    def _bid_by_kind(self, kinds: KindCandidates, now_ns: int, lane: int) -> Bid | None:
        candidate = kinds.by_lane.get(lane)
        if candidate is None or not self._form(kinds, candidate, now_ns + self.lead.ns(1), 0):
            return None
        end_by_ns = candidate.fit(self.queue, now_ns, self.lead)
        if candidate.size == 0:
            return None
        hold_until_ns = self._hold_until_ns(candidate.first, candidate.size)
        early_ns = int(self.options.wait_margin * self.desk.wait_ns(candidate.kind))
        full = self._fills(candidate.kind)
        return candidate.stand(now_ns, end_by_ns, hold_until_ns, early_ns, self.rate, full)

    def _grant_by_kind(self, kinds: KindCandidates, slot: Slot) -> Batch | None:
        candidate = kinds.of(slot.kind)
        if candidate is None or not self._form(kinds, candidate, slot.start_at_ns, 1):
            return None
        size = candidate.size_on(slot, self.variant, self.queue)
        return self._take(slot, candidate.first, size) if size > 0 else None

    def _form(
        self, kinds: KindCandidates, candidate: KindCandidate, start_at_ns: int, offered: int
    ) -> int:
        """Choose the candidate of a kind anew, where so many backends of it are offered; returns
        its size. The fastest kind begins with the first request, and drops what it cannot serve."""
        if candidate.kind != self.kind:
            if self._fills(candidate.kind):
                return candidate.fill(self.queue, start_at_ns)
            return kinds.form(candidate, start_at_ns, offered)
        waiting = len(self.queue)
        size = self._prune(start_at_ns, kinds.has_spare(start_at_ns, offered))
        another = len(self.queue) < waiting
        if self.queue.begin >= 0:
            another = candidate.leads_anew(self.queue, self.queue.begin, size)
        candidate.begin_with(self._begin(), size, another)
        return size
