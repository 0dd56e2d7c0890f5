"""Deadline-aware routing: each request goes to the most accurate instance that will be in time."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from fermata.foundation.units import NEVER
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, Source, SourceContext, SourceTimer
from fermata.router.core.timers import Timer
from fermata.router.policies.family import Family
from fermata.router.policies.routing.instance import Instance, Instances
from fermata.router.policies.routing.mix import read_mix
from fermata.router.policies.routing.service_times import ServiceTimes
from fermata.router.policies.unassigned import Unassigned

OVERDUE = 3.0
"""So many deviations after its expected end, whoever waits behind a run looks elsewhere."""


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    """The instances, and how careful routing is."""

    buffer: int = 15
    """Requests an instance holds at most, the running one included."""
    mix: str = ""
    """Instances of each variant, as `2/2`, in the order of the configuration; scaled to the
    backends there are. Empty: the most accurate and the fastest variant, half each."""
    reserve: float = 3.0
    """A request must be predicted to end so many standard deviations before its deadline; the
    deviation is that of all the work before its end, learnt for each variant."""
    reserve_ns: int = 0
    """The reserve is never less."""
    aware: bool = True
    """False: only look for room in a buffer, and serve the late too, until their hard limit."""


class Watch(Timer):
    """Wakes those who wait at an instance whose run does not end."""

    __slots__ = ("instance", "source")

    def __init__(self, source: "DeadlineRouting", instance: Instance) -> None:
        super().__init__()
        self.source = source
        self.instance = instance

    def fire(self, now_ns: int) -> None:
        source = self.source
        source.desk.refresh(now_ns, source, source.on_overdue(now_ns, self.instance))


class DeadlineRouting(Source):
    """The clairvoyant's rule without its foresight: the most accurate variant whose shortest
    instance is predicted to end before the deadline less a reserve, else any instance that may
    still be in time, else none. A request whose instance falls behind is routed again."""

    owns_backends = True
    respects_client_limits = True

    def __init__(self, family: Family, options: RoutingOptions) -> None:
        self.family = family
        self.options = options
        self.aware = options.aware
        self.accuracy = family.accuracy or (1.0,) * len(family.variants)
        self.stranded = Unassigned(self)
        self.homeless: list[tuple[Request, int]] = []
        """Taken out of a buffer where they would have been late, and how long that instance takes
        for one; routed again at once, to faster ones only, so that it comes to an end."""
        self.rehousing = SourceTimer(self)
        self.owed_until_ns: dict[int, int] = {}
        """By backend that is shared: until then it has had the time of its share."""

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        costs = [desk.costs.of(variant) for variant in self.family.variants]
        speed = [cost.p50_ns[1] for cost in costs]
        weights = read_mix(self.options.mix, self.family, speed)
        self.instances = Instances(weights, speed)
        self.times = [ServiceTimes(cost) for cost in costs]
        # Best first; among equals the faster.
        self.order = sorted(range(len(speed)), key=lambda tier: (-self.accuracy[tier], speed[tier]))
        self.fastest_ns = min(speed[tier] for tier in self.instances.mixed)

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        return self._admit(now_ns, request)

    def _admit(self, now_ns: int, request: Request) -> Sequence[int]:
        """Find an instance for a request that has come, or has to move."""
        if not self.instances.ordered:
            if any(self.family.admits(request, tier) for tier in self.instances.mixed):
                self.stranded.add(request, self.fastest_ns + self.lead.ns(1))
            else:
                self.outbox.drop(request, DropReason.FLOOR)
            return NO_LANES
        return self._join(self._route(now_ns, request), request)

    def _join(self, instance: Instance | None, request: Request) -> Sequence[int]:
        if instance is None:
            return NO_LANES
        if instance.sent and self.aware:
            self._watch(instance)
        # Only a new first request changes the bid.
        return (instance.lane,) if instance.join(request) else NO_LANES

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        for instance in self.instances.ordered:
            if request in instance.queue:
                instance.queue.remove(request)
                return (instance.lane,)
        self.homeless = [each for each in self.homeless if each[0] is not request]
        return NO_LANES

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        instance = self.instances.get(backend)
        if instance is None:
            return NO_LANES
        tier = self.family.variants.index(batch.variant)
        size = len(batch.requests)
        p50_ns = self._p50_ns(instance, tier, size)
        self.times[tier].observe((run_ns - batch.swap_in_ns) / p50_ns)
        instance.on_done(now_ns, size, self._mean_ns(instance, tier, size))
        return self._rescue(now_ns, instance)

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        known = self.instances.get(backend) is not None
        moved: list[Request] = []
        if up and not known:
            changed = self.instances.add(backend)
            moved = self.stranded.take_all()
        elif not up and known:
            gone, changed = self.instances.remove(backend)
            moved = list(gone.queue)
            if gone.watch is not None:
                self.timers.disarm(gone.watch)
        else:
            return NO_LANES
        for instance in changed:
            moved.extend(instance.queue)
            instance.queue.clear()
        self.on_change(now_ns)
        moved.sort(key=lambda request: request.arrived_at_ns)
        lanes = [instance.lane for instance in changed]
        for request in moved:
            lanes.extend(self._admit(now_ns, request))
        return lanes

    def on_change(self, now_ns: int) -> None:
        """The instances are not what they were."""

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.stranded.drop_hopeless(now_ns)
        moved, self.homeless = self.homeless, []
        lanes: list[int] = []
        for request, slower_ns in moved:
            lanes.extend(self._join(self._route(now_ns, request, slower_ns), request))
        return lanes

    # Routing

    def _route(self, now_ns: int, request: Request, below_ns: int = NEVER) -> Instance | None:
        """The instance for this request, of those that take less for one; without one it is
        dropped."""
        if not self.aware:
            return self._with_room(request)
        best, reason = self._find(now_ns, request, below_ns)
        if best is None:
            self.outbox.drop(request, reason)
        return best

    def _find(
        self, now_ns: int, request: Request, below_ns: int = NEVER
    ) -> tuple[Instance | None, str]:
        """The instance that may be in time, or why there is none."""
        best: Instance | None = None
        best_ends_at_ns = request.deadline_ns + 1
        room, reason = False, DropReason.FLOOR if below_ns == NEVER else DropReason.LATE
        for tier in self.order:
            if not self.instances.tiers[tier] or not self.family.admits(request, tier):
                continue
            if self.instances.speed[tier] >= below_ns:
                continue
            instance = self._shortest(now_ns, tier)
            if instance is None:
                reason = reason if room else DropReason.FULL
                continue
            room, reason = True, DropReason.LATE
            ends_at_ns, reserve_ns = self._predict(now_ns, instance, request)
            if ends_at_ns + reserve_ns <= request.deadline_ns:
                return instance, reason
            if ends_at_ns < best_ends_at_ns:
                best, best_ends_at_ns = instance, ends_at_ns
        return best, reason

    def _with_room(self, request: Request) -> Instance | None:
        admitted = self._admitted(request)
        best = min(admitted, key=len, default=None)
        if best is not None and len(best) < self.options.buffer:
            return best
        self.outbox.drop(request, DropReason.FULL if admitted else DropReason.FLOOR)
        return None

    def _admitted(self, request: Request) -> list[Instance]:
        """The instances that the request's client leaves it."""
        ordered = self.instances.ordered
        if request.allowed is None:
            return ordered
        return [each for each in ordered if self.family.admits(request, each.tier)]

    def _shortest(self, now_ns: int, tier: int) -> Instance | None:
        """The instance of a tier that has room and is free first. Of several the first is taken, so
        that work gathers on few and the others idle."""
        best: Instance | None = None
        best_work_ns = 0.0
        each_ns = self.instances.speed[tier] * self.times[tier].mean
        doubt_ns = self.instances.speed[tier] * self.times[tier].spread
        for instance in self.instances.tiers[tier]:
            if len(instance) < self.options.buffer:
                free_at_ns = max(now_ns, instance.free_at_ns(now_ns, doubt_ns))
                work_ns = free_at_ns + len(instance.queue) * each_ns
                if best is None or work_ns < best_work_ns:
                    best, best_work_ns = instance, work_ns
        return best

    def _predict(self, now_ns: int, instance: Instance, request: Request) -> tuple[int, int]:
        """When this request would end on this instance, and the reserve for that; never, if
        someone who is to go after it would be late for it."""
        times = self.times[instance.tier]
        p50_ns = self._p50_ns(instance, instance.tier, 1)
        each_ns = int(times.mean * p50_ns)
        spread_ns = self._spread(instance.tier) * p50_ns
        starts_at_ns = self._starts_at_ns(now_ns, instance, spread_ns)
        place = instance.place_of(request)
        # Where the backend is shared, others run between those that wait here.
        turn_ns = each_ns if self.share == 1.0 else int(each_ns / self.share)
        for later in range(place, len(instance.queue)):
            ends_at_ns = starts_at_ns + (later + 1) * turn_ns + each_ns
            if ends_at_ns > instance.queue[later].deadline_ns:
                return NEVER, 0
        runs = place + 1 + (1 if instance.sent else 0)
        reserve_ns = int(self.options.reserve * spread_ns * sqrt(runs))
        reserve_ns += max(0, self.owed_until_ns.get(instance.backend, 0) - starts_at_ns)
        ends_at_ns = starts_at_ns + place * turn_ns + each_ns
        return ends_at_ns, max(reserve_ns, self.options.reserve_ns)

    def _spread(self, tier: int) -> float:
        """The spread of a tier's run times; as if nothing were known of it, while it is tried."""
        times = self.times[tier]
        if self.costs.trials and self.family.variants[tier] in self.costs.trials:
            return min(times.spread, times.rules.spread_unknown)
        return times.spread

    def _starts_at_ns(self, now_ns: int, instance: Instance, doubt_ns: float) -> int:
        """When the first of its queue is expected to start."""
        free_at_ns = int(instance.free_at_ns(now_ns, doubt_ns))
        if self.shares_backends:
            free_at_ns = max(free_at_ns, self.desk.free_at_ns(instance.backend))
        return max(now_ns + self.lead.ns(1), free_at_ns)

    def _owe(self, slot: Slot, expect_ns: float) -> None:
        """Leave the others their time after a run on a backend that is shared."""
        owed_ns = max(slot.start_at_ns, self.owed_until_ns.get(slot.backend, 0))
        self.owed_until_ns[slot.backend] = owed_ns + int(expect_ns / self.share)

    def _p50_ns(self, instance: Instance, tier: int, size: int) -> float:
        cost = self.costs.of(self.family.variants[tier], instance.kind)
        return cost.p50_ns[size] * self.costs.backend_factor.get(instance.backend, 1.0)

    def _mean_ns(self, instance: Instance, tier: int, size: int) -> float:
        return self.times[tier].mean * self._p50_ns(instance, tier, size)

    def _rescue(self, now_ns: int, instance: Instance) -> Sequence[int]:
        """Route those again that a slow run has made late on this instance."""
        if not self.aware or not instance.queue:
            return NO_LANES
        each_ns = int(self._mean_ns(instance, instance.tier, 1))
        ends_at_ns = self._starts_at_ns(now_ns, instance, 0.0)
        late: list[Request] = []
        for request in instance.queue:
            if ends_at_ns + each_ns > request.deadline_ns:
                late.append(request)
            else:
                ends_at_ns += each_ns
        lanes: list[int] = [instance.lane] if late else []
        for request in late:
            instance.queue.remove(request)
        for request in late:
            lanes.extend(self._admit(now_ns, request))
        return lanes

    # Runs that do not end

    def _watch(self, instance: Instance) -> None:
        """Look after those who wait there once its run is overdue."""
        if instance.watch is None:
            instance.watch = Watch(self, instance)
        if instance.watch.stamp == 0:
            self.timers.arm(instance.watch, self._overdue_at_ns(instance))

    def _overdue_at_ns(self, instance: Instance) -> int:
        spread = self.times[instance.tier].spread
        doubt_ns = OVERDUE * spread * self._p50_ns(instance, instance.tier, 1)
        return instance.due_at_ns + 1 + int(doubt_ns)

    def on_overdue(self, now_ns: int, instance: Instance) -> Sequence[int]:
        """Route those again that wait behind a run which should have ended. Whoever finds nothing
        better stays, and looks again once the run is twice as late."""
        if not instance.sent or not instance.queue or not self.aware:
            return NO_LANES
        assert instance.watch is not None
        overdue_at_ns = self._overdue_at_ns(instance)
        if now_ns < overdue_at_ns:
            self.timers.arm(instance.watch, overdue_at_ns)
            return NO_LANES
        self.timers.arm(instance.watch, now_ns + now_ns - instance.due_at_ns)
        lanes: list[int] = [instance.lane]
        for request in list(instance.queue):
            instance.queue.remove(request)
            better, _ = self._find(now_ns, request)
            lanes.extend(self._join(better or instance, request))
        return lanes

    # Bid and grant

    def _limit_ns(self, request: Request) -> int:
        """When it must have ended to be run at all."""
        return request.deadline_ns if self.aware else request.expires_at_ns

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        instance = self.instances.of_lane(lane)
        if instance is None:
            return None
        cost = self.costs.of(self.family.variants[instance.tier], instance.kind)
        alone_ns = self.lead.ns(1) + cost.plan_ns[1]
        while instance.queue and self._limit_ns(instance.queue[0]) < now_ns + alone_ns:
            self._give_up(now_ns, instance, instance.queue.pop(0))
        if not instance.queue:
            return None
        bid = instance.bid
        bid.size = 1
        bid.ripe_at_ns = now_ns
        # The lane has one source, so the key decides nothing.
        bid.key = bid.expires_at_ns = self._limit_ns(instance.queue[0]) - alone_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        instance = self.instances.get(slot.backend)
        if instance is None:
            return None
        instance.kind = slot.kind
        variant = self.family.variants[instance.tier]
        plan_ns = slot.plan_ns(variant, 1)
        while instance.queue:
            request = instance.queue.pop(0)
            if slot.start_at_ns + plan_ns <= self._limit_ns(request):
                batch = Batch(variant, [request])
                expect_ns = self._mean_ns(instance, instance.tier, 1) + slot.swap_in_ns(variant)
                instance.on_sent(batch.requests, slot.start_at_ns, expect_ns)
                if self.shares_backends:
                    self._owe(slot, expect_ns)
                if instance.queue and self.aware:
                    self._watch(instance)
                return batch
            self._give_up(now_ns, instance, request)
        return None

    def _give_up(self, now_ns: int, instance: Instance, request: Request) -> None:
        """It can no longer be in time here; perhaps on a faster instance."""
        speed_ns = self.instances.speed[instance.tier]
        ends_at_ns = now_ns + self.lead.ns(1) + self.fastest_ns
        if self.aware and self.fastest_ns < speed_ns and ends_at_ns <= request.deadline_ns:
            self.homeless.append((request, speed_ns))
            self.timers.arm(self.rehousing, now_ns)
        else:
            variant = self.family.variants[instance.tier]
            self.drop_late(request, variant, self._limit_ns(request), instance.kind)
