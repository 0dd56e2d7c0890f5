"""The queue that looks ahead: every batch by its accuracy and by the backlog that it leaves.

Beyond the papers: as RAMSIS it solves a decision process for the load there is, but for all
backends and applications together, and with holding and the size of batches among the decisions.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import ClassVar

from fermata.foundation.units import NEVER
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, Compute, DropReason, Request
from fermata.router.core.signals import Promise
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, SourceContext
from fermata.router.policies.central.accuracy_hull import concave_hull
from fermata.router.policies.central.options import CentralOptions
from fermata.router.policies.central.running_work import RunningWork
from fermata.router.policies.central.source import CentralQueue
from fermata.router.policies.family import Family
from fermata.router.policies.lookahead.arrival_rate import ArrivalRate
from fermata.router.policies.lookahead.fleet import PoolKinds, batch_on, occupied
from fermata.router.policies.lookahead.market import Market
from fermata.router.policies.lookahead.outcomes import OutcomeCount
from fermata.router.policies.lookahead.rules import LookaheadRules
from fermata.router.policies.lookahead.selection import Conditions, TableSelection
from fermata.router.policies.lookahead.values import (
    RULES,
    Choice,
    QueueProblem,
    ValueTable,
    told_apart,
)
from fermata.router.policies.sizing import LOSSES, after_batch, after_loss, overload_window


class LookaheadQueue(CentralQueue):
    """The source of one application with several variants, which looks its decisions up.

    Tables are solved outside (`Compute`), for the load, the backends and the run times there are.
    Until the first has come, the cheapest variant serves.
    """

    look: ClassVar[LookaheadRules] = LookaheadRules()

    def __init__(
        self, family: Family, options: CentralOptions, markets: dict[object, Market]
    ) -> None:
        super().__init__(family, options)
        self.markets = markets
        """By pool, for all applications of the policy."""
        self.arrivals = ArrivalRate()
        self.table: ValueTable | None = None
        self.selection = TableSelection(self.look.moved)
        self.backends = 1.0
        self.allowance = 1.0
        """Run times are planned this many times longer, by the table in use."""
        self.overloaded = False
        """Not even the cheapest batches keep up with the load."""
        self.failures = 0
        self.outcome = OutcomeCount()
        self.accuracy_of = dict(zip(self.variants, self.accuracy, strict=True))
        self.fleet = PoolKinds(self.under_way)
        self.chosen_for: tuple[int, float, int] = (-1, 0.0, 0)
        """Time, time left and requests waiting at the last look into the table."""
        self.chosen: tuple[Choice | None, Choice | None] = (None, None)
        self.last_at_ns = 0
        """When the newest request arrived."""
        self.wanted = 0
        """Size of the batch that is held for."""
        self.room_ns = 0
        """In overload: what a whole batch takes longer than one request."""
        self.looked_at = 0
        """Requests that leave the bid as it is, as long as fewer than so many wait."""

    def attach(self, desk: SourceContext) -> None:
        self.market = self.markets.setdefault(desk.pool, Market())
        self.stake = self.market.join()
        self.table, self.selection = None, TableSelection(self.look.moved)
        super().attach(desk)
        desk.precedence.join(self.queue, of_request=True)

    def on_leave(self) -> None:
        super().on_leave()
        self.market.leave(self.stake)
        self.desk.precedence.leave(self.queue)

    def losses(self) -> DeadlineQueue:
        return self.queue

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        if self.arrivals.on_arrival(now_ns):
            moved = abs(math.log(self.arrivals.gap_ns / self.gap_ns))
            if moved > (self.look.follow if self.arrivals.blocks > 0 else self.look.young):
                self.gap_ns = self.arrivals.gap_ns
                self._follow_load()
        self.last_at_ns = now_ns
        lanes = super().on_request(now_ns, request)
        self._count_waiting()
        queue = self.queue
        if request.allowed is None and len(queue) < self.looked_at and queue.first() is not request:
            # The common case: it waits with the others, for company or for a backend.
            return NO_LANES
        return lanes

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        bid = super().bid(now_ns, lane)
        if bid is not None and len(self.queue) > 0:
            bid.key -= self.room_ns
        self.looked_at = 0
        if bid is not None and bid.ripe_at_ns > now_ns:
            self.looked_at = self.wanted
        elif bid is not None and not bid.again and self.desk.free_backends(self) == 0:
            self.looked_at = NEVER
        return bid

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.arrivals.fall_silent()
        self.stake.rate = 0.0
        return super().on_time(now_ns)

    def on_computed(self, now_ns: int, result: object) -> Sequence[int]:
        assert isinstance(result, ValueTable)
        solved, self.selection.asked = self.selection.asked, None
        if solved is not None:
            self.market.keep(solved.key, result)
            if self.selection.is_better(solved, self._conditions()):
                self._use(result, solved)
        self._follow_load()
        return NO_LANES

    def on_compute_failed(self, now_ns: int, work: Callable[[], object]) -> Sequence[int]:
        """Keep the table there is; the next change of load asks again."""
        self.failures += 1
        self.selection.asked = None
        return NO_LANES

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        self.own_busy_ns += run_ns
        self._learn_caution(now_ns, batch)
        outcome, size = self.outcome, len(batch.requests)
        outcome.answered += size
        outcome.right += size * self.accuracy_of[batch.variant]
        return NO_LANES

    def figures(self) -> dict[str, float]:
        """The promise of the table in use."""
        found = {"table_failures": float(self.failures)}
        told = self.promise(self.application)
        if told is not None:
            found["promised_accuracy"] = told.accuracy
            found["promised_violation"] = told.violation
        return found

    def promise(self, application: int) -> Promise | None:
        """That of the table in use: what it foretells, and what came of it so far."""
        if self.table is None:
            return None
        self._settle_outcomes()
        foretold = self.table.foretold
        if self.stake.part < 1.0:
            # The process knows others as copies of the application; experience knows better.
            foretold = self.outcome.whole.expected(foretold)
        return self.table.outcomes.expected(foretold)

    def _settle_outcomes(self) -> None:
        counts, table = self.outbox.ledger.applications, self.table
        if self.application < len(counts):
            count = counts[self.application]
            self.outcome.settle(count.good, count.bad, None if table is None else table.outcomes)

    def _learn_caution(self, now_ns: int, batch: Batch) -> None:
        before = self.caution
        earliest_ns = min([each.deadline_ns for each in batch.requests], default=now_ns)
        if before == 0.0 and earliest_ns >= now_ns:
            # The common case: there is nothing to learn, and nothing to unlearn.
            return
        super()._learn_caution(now_ns, batch)
        self.caution = min(self.caution, before + self.look.caution_rise)

    def _count_waiting(self) -> None:
        waiting, stake = len(self.queue) + len(self.constrained), self.stake
        self.market.set_backlog(stake, waiting * self.gap_ns * stake.part)

    # Tables

    def _aim(self, now_ns: int) -> None:
        """Take the load and the run times as they are now."""
        self.pool_tables.renew()
        self.tables = self.pool_tables.mean
        slo_ns = self.family.slo_ns or 2 * max(table[-1] for table in self.tables)
        self.end_in_ns = slo_ns - self.lead.ns(1)
        self.arrivals.least_ns = self.end_in_ns
        self._count_others(now_ns)
        self.fleet.count(self.desk, self.variants, self.end_in_ns)
        self.tables = [self.costs.of(each, self.fleet.kind).plan_ns for each in self.variants]
        self.spaced = [self._with_inputs(each) for each in self.tables]
        self.constrained.tables = self.pool_tables.known
        able = self.desk.backends_for(self) * self.fleet.worth
        least = 1.0 if self.share == 1.0 else max(1.0, able) * self.share
        self.backends = max(least, able - self._strangers())
        if self.arrivals.gap_ns > 0.0:
            self.gap_ns = self.arrivals.gap_ns
        points = self._points(int(self.end_in_ns - self.options.headroom * slo_ns))
        self.hull = concave_hull(points)
        if self.arrivals.gap_ns == 0.0:
            # Of an unknown load the worst is assumed: the first answers tell little anyway.
            self.gap_ns = self.hull[0].each_ns / self.backends
        self.stake.offer(points)
        self.market.set_end(self.stake, float(self.end_in_ns))
        if self.desk.precedence.mixed:
            cheapest = self.tables[self.hull[0].variant]
            self.desk.precedence.tell(self.queue, self.end_in_ns, cheapest)
        busy = self.hull[0].each_ns / self.gap_ns if self.arrivals.gap_ns > 0.0 else 0.0
        self.demand.set(self.signals, busy if self.rate.rps > 0.0 else 0.0)
        self._follow_load()

    def _free_backends(self) -> int:
        """Backends of the fastest kind that can be had: slower ones may stay idle for long."""
        if self.fleet.speed:
            return self.desk.free_of_kind(self, self.fleet.kind)
        return super()._free_backends()

    def _strangers(self) -> float:
        """Backends that applications outside the market keep busy."""
        return self.others if len(self.market.stakes) == 1 else 0.0

    def _follow_load(self) -> None:
        """Use the table of the load there is; have it solved where there is none."""
        selection, now = self.selection, self._conditions()
        if selection.fits(now):
            return
        rounded = now.rounded()
        table = self.market.tables.get(rounded.key)
        if table is not None:
            self._use(table, rounded)
        elif selection.asked is None:
            selection.asked = rounded
            problem = self._problem(rounded.marks, round(self.backends, 1))
            self.outbox.effects.append(Compute(self.family.application, problem))

    def _conditions(self) -> Conditions:
        """The load there is, backends and run times."""
        rules, stake = self.look, self.stake
        stake.rate = 1.0 / self.gap_ns if self.arrivals.gap_ns > 0.0 else 0.0
        stake.part = self.market.part_of(stake, self.backends)
        self._count_waiting()
        self._set_window()
        low, high = rules.dispersion
        marks = (
            -math.log(self.gap_ns * stake.part) / rules.load_step,
            math.log(stake.part) / rules.part_step,
            math.log(min(high, max(low, self.arrivals.dispersion)), 4.0),
            self.caution / rules.caution_step,
        )
        backends = round(self.backends, 1)
        fixed = backends, told_apart(self.spaced, self.accuracy, self.end_in_ns)
        return Conditions(marks, fixed)

    def _use(self, table: ValueTable, conditions: Conditions) -> None:
        self._settle_outcomes()
        self.table, self.selection.used = table, conditions
        self.chosen_for = (-1, 0.0, 0)
        self.allowance = 1.0 + conditions.marks[3] * self.look.caution_step

    def _problem(self, marks: tuple[float, ...], backends: float) -> QueueProblem:
        load, part, dispersion, caution = marks
        rules = self.look
        allowance = 1.0 + caution * rules.caution_step
        return QueueProblem(
            tuple(tuple(int(run_ns * allowance) for run_ns in table) for table in self.spaced),
            tuple(
                occupied(
                    self.costs.of(each, self.fleet.kind).p50_ns,
                    self.lead.ns(1),
                    self.lead.per_request_ns,
                    self.desk.batches_ahead(),
                )
                for each in self.variants
            ),
            tuple(self.accuracy),
            float(self.end_in_ns),
            math.exp(-load * rules.load_step),
            backends,
            4.0**dispersion,
            min(1.0, math.exp(part * rules.part_step)),
        )

    def _set_window(self) -> None:
        """In lasting overload a head makes room for a whole batch of the cheapest variant."""
        cheapest = self.hull[0]
        self.overloaded = cheapest.each_ns > self.gap_ns * self.backends * self.stake.part
        if self.overloaded:
            self.window = max(1, cheapest.size)
        else:
            roomy = int(self.options.drop_window * cheapest.size)
            self.window = max(1, min(roomy, self._pace_size(self.backends * self.stake.part)))

    # Decisions

    def _state(self, now_ns: int, table: ValueTable) -> int:
        """The table's state for the backlog as it is: requests that wait, or as many as would have
        come since the oldest did; and the batches under way."""
        backlog_ns = self.market.ahead_ns(float(self.end_in_ns))
        if len(self.queue) > 0:
            left_ns = self.queue.first().deadline_ns - now_ns - self.lead.ns(1)
            backlog_ns = max(backlog_ns, RULES.patience * (self.end_in_ns - left_ns))
        own = self.backends * self.stake.part
        backlog_ns += self.fleet.left_ns(now_ns) / own
        backlog = backlog_ns / table.problem.gap_ns
        states = table.states
        state = bisect_right(states, backlog) - 1
        if state < 0:
            return 0
        if state + 1 < len(states) and states[state + 1] - backlog < backlog - states[state]:
            return state + 1
        return state

    def _choose(
        self, now_ns: int, left_ns: float, table: ValueTable
    ) -> tuple[Choice | None, Choice | None]:
        """The best batch that can start now; and one that is better, and worth waiting for.

        Run times are those of now, which the table may not know yet.
        """
        asked = (now_ns, left_ns, len(self.queue))
        if asked != self.chosen_for:
            # A grant follows its bid at once, and asks the same again.
            self.chosen_for = asked
            self.chosen = self._look_up(now_ns, left_ns, table)
        return self.chosen

    def _look_up(
        self, now_ns: int, left_ns: float, table: ValueTable
    ) -> tuple[Choice | None, Choice | None]:
        waiting, each_ns = len(self.queue), self.lead.per_request_ns
        gap_ns = self._next_gap_ns(now_ns)
        wanted: Choice | None = None
        for choice in table.ranked(self._state(now_ns, table)):
            size = choice[1]
            run_ns = self.tables[choice[2]][size] * self.allowance + each_ns * (size - 1)
            if size <= waiting:
                if run_ns <= left_ns:
                    return choice, wanted
            elif wanted is None and run_ns + (size - waiting) * gap_ns <= left_ns:
                wanted = choice
        return None, wanted

    def _next_gap_ns(self, now_ns: int) -> float:
        """Time until one more arrives: the longer nobody has come, the longer it will last."""
        return max(self.gap_ns, self.look.silence * (now_ns - self.last_at_ns))

    def _batch_by_deadline(self, now_ns: int, slot: Slot) -> Batch | None:
        queue, table = self.queue, self.table
        left_ns = queue.first().deadline_ns - slot.start_at_ns
        if self._hold_ns(now_ns, left_ns) > 0:
            return None
        if self.fleet.is_slower(slot) and table is not None and self.evidence == 0:
            return self._batch_on_slower(now_ns, slot, table)
        if not self._plain(slot) or self.evidence > 0:
            return self._batch_here(now_ns, slot, queue.first())
        if table is None:
            cheapest = self.hull[0].variant
            if self.tables[cheapest][1] > left_ns:
                alone_ns = [each[1] for each in self.tables]
                cheapest = alone_ns.index(min(alone_ns))
            if self.tables[cheapest][1] > left_ns:
                return None
            return self._filled(cheapest, 1, len(self.tables[cheapest]) - 1, left_ns)
        self._shed(now_ns, slot, table)
        left_ns = queue.first().deadline_ns - slot.start_at_ns
        choice, _ = self._choose(now_ns, left_ns, table)
        if choice is None:
            # Caution is given up before a request is.
            choice, _ = self._choose(now_ns, left_ns * self.allowance, table)
        if choice is None:
            return None
        return self._filled(choice[2], choice[1], choice[4], left_ns / self.allowance)

    def _work_on(self, kind: int) -> RunningWork:
        return self.fleet.work_on(kind)

    def _plain(self, slot: Slot) -> bool:
        changed = slot.resident is not None or slot.room is not None
        return not changed and slot.kind == self.fleet.kind and slot.factor == 1.0

    def _batch_on_slower(self, now_ns: int, slot: Slot, table: ValueTable) -> Batch | None:
        """The same on a backend of a slower kind. It stays idle where faster ones would earn more
        than the backlog costs."""
        state = self._state(now_ns, table)
        found = batch_on(slot, table.ranked(state), self.variants, self.queue, self.allowance)
        if found is None:
            return None
        variant, first, size = found
        if self.accuracy[variant] + table.slope(state) < table.accuracy:
            return None
        return Batch(self.variants[variant], self.queue.pop_from(first, size))

    def _shed(self, now_ns: int, slot: Slot, table: ValueTable) -> None:
        """In lasting overload, drop old heads where the table would rather have one less."""
        queue = self.queue
        while self.overloaded and len(queue) > 1:
            left_ns = queue.first().deadline_ns - slot.start_at_ns
            if left_ns > (1.0 - RULES.patience) * self.end_in_ns:
                return
            choice, _ = self._choose(now_ns, left_ns, table)
            dropped = float(table.worth[self._state(now_ns, table), -1])
            if choice is None or dropped <= choice[3]:
                return
            self.outbox.drop(queue.pop(), DropReason.WINDOW)
            if self.desk.precedence.mixed:
                queue.lost = after_loss(queue.lost)
            self._count_waiting()

    def _filled(self, variant: int, size: int, limit: int, left_ns: float) -> Batch | None:
        """A batch of at least this size, filled up to the limit as far as it ends in time."""
        run_ns, each_ns = self.tables[variant], self.lead.per_request_ns
        most = min(limit, len(self.queue), len(run_ns) - 1)
        while most > size and run_ns[most] + each_ns * (most - 1) > left_ns:
            most -= 1
        return Batch(self.variants[variant], self.queue.pop_many(max(size, most)))

    def _hold_ns(self, now_ns: int, left_ns: int) -> int:
        table = self.table
        if self.options.hold == "eager" or table is None:
            return 0
        first = self.queue.first()
        latest_ns = min(first.start_by_ns, first.arrived_at_ns + self.options.hold_ns_max)
        if latest_ns <= now_ns:
            return 0
        least_ns = max(1.0, self.look.hold_least * self.end_in_ns)
        choice, wanted = self._choose(now_ns, left_ns, table)
        if choice is not None and self.desk.free_backends(self) <= self.stake.left_free:
            spare_ns = self.look.yielded * self.end_in_ns
            if left_ns - choice[0] > 4.0 * spare_ns:
                self.wanted = 0
                return int(spare_ns)
        if wanted is None:
            return 0
        self.wanted = wanted[1]
        gap_ns = self._next_gap_ns(now_ns)
        gather_ns = max(least_ns, (wanted[1] - len(self.queue)) * gap_ns)
        run_ns = self.tables[wanted[2]][wanted[1]] * self.allowance
        hold_ns = min(gather_ns, left_ns - run_ns - gap_ns, latest_ns - now_ns)
        return int(hold_ns) if hold_ns >= least_ns else 0

    def _drop_hopeless(self, start_at_ns: int, spare: bool) -> None:
        if len(self.queue) + len(self.constrained) == 0:
            return
        waiting, self.room_ns = len(self.queue), 0
        if self.overloaded or self.queue.lost > LOSSES.losing:
            # Rather some whole batches than many small ones.
            self.window = max(1, min(self.hull[0].size, waiting // 2))
            if not spare:
                self._make_room(start_at_ns)
        super()._drop_hopeless(start_at_ns, spare)
        if len(self.queue) < waiting:
            self.queue.lost = after_loss(self.queue.lost, waiting - len(self.queue))

    def _make_room(self, start_at_ns: int) -> None:
        """Drop heads that leave no room for the largest batch of the cheapest variant."""
        queue, table = self.queue, self.tables[self.hull[0].variant]
        window = overload_window(queue, table, start_at_ns, self.backends)
        self.room_ns = table[window] - table[1] if self.desk.precedence.mixed else 0
        end_at_ns = start_at_ns + table[window]
        while queue.rows >= window > 1 and queue.first().deadline_ns < end_at_ns:
            self.outbox.drop(queue.pop(), DropReason.WINDOW)

    def _price(self, now_ns: int) -> tuple[float, float]:
        price = 0.0
        if self.table is not None:
            problem = self.table.problem
            slope = self.table.slope(self._state(now_ns, self.table))
            price = slope / (problem.gap_ns * problem.backends)
        else:
            price = self.hull[0].accuracy / self.hull[0].each_ns
        return price, max(each.accuracy - price * each.each_ns for each in self.hull)

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        batch = super().grant(now_ns, slot)
        if batch is not None:
            self.queue.lost = after_batch(self.queue.lost, len(batch.requests))
        if batch is None and self.fleet.is_slower(slot):
            # With a longer backlog it may be of use.
            self.standing_bid.again = True
        self._count_waiting()
        return batch
