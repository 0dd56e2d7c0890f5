"""Slot routing: a learned policy sets each instance's share of the arrivals, slot by slot."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from random import Random

import numpy as np

from fermata.foundation.units import NEVER
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, SourceTimer
from fermata.router.policies.family import Family
from fermata.router.policies.rl.batching import batch_size
from fermata.router.policies.rl.checkpoint import Checkpoint
from fermata.router.policies.rl.load_range import LoadRange
from fermata.router.policies.rl.observation import InstanceStates, Memory, encode
from fermata.router.policies.rl.options import SlotRoutingOptions
from fermata.router.policies.rl.sampling import even_draw
from fermata.router.policies.routing.deadline import DeadlineRouting
from fermata.router.policies.routing.instance import Instance


class SlotRouting(DeadlineRouting):
    """Probabilistic routing (RL-edge Section 3): at the beginning of each slot the policy looks at
    the instances and sets the shares by which requests are drawn to them during the slot.

    It falls back to deadline-aware routing while the instances, or the load, are not those it was
    trained for, and for any slot that begins with an observation unlike those of its training.
    """

    def __init__(
        self,
        family: Family,
        options: SlotRoutingOptions,
        checkpoint: Checkpoint | None,
        rng: Random,
    ) -> None:
        super().__init__(family, options)
        self.checkpoint = checkpoint
        self.memory = Memory(1 if checkpoint is None else checkpoint.scales.memory)
        self.rng = rng
        self.first_draw = rng.random()
        self.drawn = 0
        self.shares: list[float] = []
        """By instance, in this slot."""
        self.cumulative: list[float] = []
        self.limits: tuple[tuple[int, int], ...] = ()
        self.arrivals = 0
        """In this slot."""
        self.slot_ends_at_ns = 0
        self.slot_timer = SourceTimer(self)
        self.ticking = False
        """Whether the end of the slot is on the timer; while nothing happens, it need not be."""
        self.slots = 0
        self.slots_fallen_back = 0
        self.slots_off_load = 0
        """Slots that fell back because of a load that it was not trained for."""
        names = [variant.name for variant in family.spec.variants]
        self.trained = {} if checkpoint is None else checkpoint.places(names)
        """The policy's own tier of each variant that it knows, by place in the family."""
        self.load = LoadRange((), 1)
        if checkpoint is not None:
            self.load = LoadRange(checkpoint.rates_rps, checkpoint.slot_ns)
        self.lined: list[Instance] = []
        """The instances as the policy counts them."""

    # Slots

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        checkpoint = self.checkpoint
        if checkpoint is None:
            return super().on_request(now_ns, request)
        lanes: Sequence[int] = NO_LANES
        if self.ticking and now_ns >= self.slot_ends_at_ns:
            # Live, a timer may be later than a request.
            lanes = self.on_time(now_ns)
        if now_ns >= self.slot_ends_at_ns:
            # Nothing has happened since some earlier slot ended, so this is how this one began,
            # and those before.
            self.memory.forget()
            if self.slots:
                passed_ns = now_ns - self.slot_ends_at_ns
                self.load.note(0, 1 + passed_ns // checkpoint.slot_ns)
            self._begin_slot(now_ns, checkpoint, 0)
        if not self.ticking:
            self.ticking = True
            self.timers.arm(self.slot_timer, self.slot_ends_at_ns)
        self.arrivals += 1
        return [*lanes, *super().on_request(now_ns, request)]

    def on_time(self, now_ns: int) -> Sequence[int]:
        lanes = super().on_time(now_ns)
        checkpoint = self.checkpoint
        if checkpoint is None or not self.ticking or now_ns < self.slot_ends_at_ns:
            return lanes
        arrivals = self.arrivals
        self.load.note(arrivals)
        self._begin_slot(now_ns, checkpoint, arrivals)
        self.ticking = arrivals > 0 or any(len(each) for each in self.instances.ordered)
        if self.ticking:
            self.timers.arm(self.slot_timer, self.slot_ends_at_ns)
        # Other batch sizes, or none, may set waiting requests free.
        return [*lanes, *(each.lane for each in self.instances.ordered if each.queue)]

    def _begin_slot(self, now_ns: int, checkpoint: Checkpoint, arrivals: int) -> None:
        self.slot_ends_at_ns = (now_ns // checkpoint.slot_ns + 1) * checkpoint.slot_ns
        self.arrivals = 0
        self.slots += 1
        self.aware = True
        if self._as_trained(checkpoint):
            count = np.array(float(arrivals))
            seen = encode(self._states(now_ns), count, checkpoint.scales)
            observation = self.memory.recall(seen)
            self.memory.keep(seen)
            if self.load.foreign:
                self.slots_off_load += 1
            elif checkpoint.trusts(observation):
                decision = checkpoint.decide(observation)
                self.aware = False
                self.shares = decision.shares.tolist()
                self.cumulative = list(accumulate(self.shares))
                self.limits = decision.limits
        self.slots_fallen_back += self.aware
        for instance in self.instances.ordered if self.aware else ():
            if instance.sent and instance.queue:
                self._watch(instance)

    def on_change(self, now_ns: int) -> None:
        # The shares of this slot are for other instances; a new slot may find the old ones again.
        self.aware = True
        self.memory.forget()
        # Files may list the variants in another order than the one it was trained with.
        known = [each for each in self.instances.ordered if each.tier in self.trained]
        self.lined = sorted(known, key=lambda each: (self.trained[each.tier], each.backend))

    def _as_trained(self, checkpoint: Checkpoint) -> bool:
        if len(self.lined) < len(self.instances.ordered):
            return False
        return tuple(self.trained[each.tier] for each in self.lined) == checkpoint.tiers

    def _states(self, now_ns: int) -> InstanceStates:
        rows = np.zeros((4, len(self.lined)))
        for place, instance in enumerate(self.lined):
            held = [*instance.sent, *instance.queue]
            if held:
                elapsed_ns = max(0, now_ns - instance.started_at_ns) if instance.sent else 0
                oldest_ns = now_ns - held[0].arrived_at_ns
                youngest_ns = now_ns - held[-1].arrived_at_ns
                rows[:, place] = (len(held), elapsed_ns, oldest_ns, youngest_ns)
        return InstanceStates(rows[0], rows[1], rows[2], rows[3])

    def describe(self) -> dict[str, float]:
        return {
            "slots": self.slots,
            "slots_fallen_back": self.slots_fallen_back,
            "slots_off_load": self.slots_off_load,
            "falls_back": float(self.aware),
        }

    # Requests

    def _route(self, now_ns: int, request: Request, below_ns: int = NEVER) -> Instance | None:
        if self.aware:
            return super()._route(now_ns, request, below_ns)
        instance = self._drawn(request)
        if instance is None:
            self.outbox.drop(request, DropReason.FLOOR)
            return None
        if len(instance) >= self.options.buffer:
            self.outbox.drop(request, DropReason.FULL)
            return None
        return instance

    def _drawn(self, request: Request) -> Instance | None:
        """The instance that the shares draw, of those that the request's client leaves it."""
        lined, cumulative = self.lined, self.cumulative
        if request.allowed is not None:
            pairs = list(zip(lined, self.shares, strict=True))
            pairs = [pair for pair in pairs if self.family.admits(request, pair[0].tier)]
            if not pairs:
                return None
            lined = [instance for instance, _ in pairs]
            cumulative = list(accumulate(share for _, share in pairs))
        # Rounding may leave the last sum a little below the whole.
        place = bisect_right(cumulative, self._draw() * cumulative[-1])
        return lined[min(place, len(lined) - 1)]

    def _draw(self) -> float:
        checkpoint = self.checkpoint
        if checkpoint is None or not checkpoint.even:
            return self.rng.random()
        self.drawn += 1
        return float(even_draw(self.first_draw, self.drawn - 1))

    def _join(self, instance: Instance | None, request: Request) -> Sequence[int]:
        lanes = super()._join(instance, request)
        if self.aware or instance is None:
            return lanes
        # Every one more may complete a batch.
        return lanes or ((instance.lane,) if self._batches(instance) else NO_LANES)

    def _batches(self, instance: Instance) -> bool:
        return not self.aware and self._limits(instance) != (1, 1)

    def _limits(self, instance: Instance) -> tuple[int, int]:
        """The smallest and the largest batch there, in this slot."""
        return self.limits[self.trained[instance.tier]]

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        bid = super().bid(now_ns, lane)
        instance = self.instances.of_lane(lane)
        if bid is None or instance is None or not self._batches(instance):
            return bid
        bid.size = batch_size(len(instance.queue), self._limits(instance))
        if bid.size == 0:
            bid.size = 1
            bid.ripe_at_ns = bid.expires_at_ns + 1
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        instance = self.instances.get(slot.backend)
        if instance is None or not self._batches(instance):
            return super().grant(now_ns, slot)
        instance.kind = slot.kind
        variant = self.family.variants[instance.tier]
        size_max = slot.size_max(variant)
        while instance.queue:
            size = min(size_max, batch_size(len(instance.queue), self._limits(instance)))
            if size == 0:
                return None
            ends_at_ns = slot.start_at_ns + slot.plan_ns(variant, size)
            taken = instance.queue[:size]
            late = [request for request in taken if self._limit_ns(request) < ends_at_ns]
            if not late:
                del instance.queue[:size]
                expect_ns = self._mean_ns(instance, instance.tier, size) + slot.swap_in_ns(variant)
                instance.on_sent(taken, slot.start_at_ns + slot.wait_ns(size), expect_ns)
                return Batch(variant, taken)
            for request in late:
                instance.queue.remove(request)
                self.outbox.drop(request, DropReason.LATE)
        return None
