"""Jellyfish+ and ModelSwitching: one variant for all requests, chosen by the load alone.

These are the baselines of the RAMSIS paper (section 7). Backends take what waits in the central
queue as soon as they are free, in batches of at most the size that leaves half the SLO for waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fermata.foundation.units import SECOND
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, POOL_ONLY, Bid, Source, SourceContext
from fermata.router.policies.central.pool_tables import PoolTables
from fermata.router.policies.family import Family
from fermata.router.policies.hard_limit import size_within_limits, who_allow
from fermata.router.policies.load_monitor import LoadMonitor
from fermata.router.policies.sizing import size_for_half


@dataclass(frozen=True, slots=True)
class JellyfishPlusOptions:
    """Jellyfish with several backends for an SLO."""

    window_ns: int = 500_000_000
    """Window of the load monitor."""
    load_rps: float = 0.0
    """A load that is known ahead; 0: what the monitor sees."""
    throughput_factor: float = 1.05
    """Throughput that a variant must have over the load."""


@dataclass(frozen=True, slots=True)
class ModelSwitchingOptions:
    """ModelSwitching needs to be told what each variant sustains."""

    window_ns: int = 500_000_000
    """Window of the load monitor."""
    load_rps: float = 0.0
    """A load that is known ahead; 0: what the monitor sees."""
    sustained_rps: tuple[float, ...] = ()
    """Highest load at which each variant's p99 latency meets the SLO, in the family's order;
    `fermata.simulator.sustained_load` measures it."""


class LoadGranular(Source):
    """The source of one application whose variant follows the load."""

    respects_client_limits = True
    hears_kinds = True

    def __init__(
        self, family: Family, options: JellyfishPlusOptions | ModelSwitchingOptions
    ) -> None:
        self.family = family
        self.options = options
        self.queue = DeadlineQueue()
        self.monitor = LoadMonitor(options.window_ns)
        self.standing_bid = Bid()
        self.order = sorted(family.choices(), key=lambda each: -family.accuracy[each])
        """Family indices that may be chosen, the most accurate first."""
        if not self.order:
            self.order = [family.variants.index(family.serving)]
        self.may_run = frozenset(family.variants[index] for index in self.order)

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        self.pool_tables = PoolTables(desk, self.family.variants)
        self._follow_load(0)

    def on_kinds(self, now_ns: int, kinds: tuple[int, ...]) -> Sequence[int]:
        """Choose by the run times of the backends that are there."""
        if not self.pool_tables.on_kinds(kinds):
            return NO_LANES
        self._follow_load(now_ns)
        return POOL_ONLY

    # The choice

    def _follow_load(self, now_ns: int) -> None:
        """The most accurate variant that sustains the load, or the fastest."""
        self.pool_tables.renew()
        self.tables = self.pool_tables.mean
        quickest = self.pool_tables.quickest
        self.fastest = min(self.order, key=lambda each: quickest[each][1])
        self.load_rps = self.options.load_rps or self.monitor.rps(now_ns)
        self.index = self._choice(self.order)
        self.size_max = size_for_half(self.tables[self.index], self.family.slo_ns)

    def _choice(self, order: list[int]) -> int:
        able = (index for index in order if self._sustains(index, self.load_rps))
        return next(able, min(order, key=lambda each: self.tables[each][1]))

    def _left_to(self, request: Request) -> list[int]:
        """Family indices that may serve it, the most accurate first."""
        allowed, variants = request.allowed, self.family.variants
        if allowed is None:
            return self.order
        return [index for index in self.order if variants[index] in allowed]

    def _sustains(self, index: int, load_rps: float) -> bool:
        options = self.options
        if isinstance(options, ModelSwitchingOptions):
            return load_rps <= options.sustained_rps[index]
        table, slo_ns = self.tables[index], self.family.slo_ns
        if 2 * table[1] > slo_ns:
            return False
        size = size_for_half(table, slo_ns)
        backends = self.share * self.desk.backends_for(self)
        throughput_rps = backends * size * SECOND / table[size]
        return throughput_rps >= options.throughput_factor * load_rps

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        if self.monitor.on_arrival(now_ns):
            self._follow_load(now_ns)
        if not self._left_to(request):
            self.outbox.drop(request, DropReason.FLOOR)
            return NO_LANES
        self.queue.push(request)
        return POOL_ONLY

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        return POOL_ONLY if self.queue.remove(request) else NO_LANES

    # Bid and grant

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        queue = self.queue
        alone_ns = self.lead.ns(1) + self.pool_tables.quickest[self.fastest][1]
        while len(queue) > 0 and queue.first().expires_at_ns < now_ns + alone_ns:
            self._drop_late(queue.pop())
        if len(queue) == 0:
            return None
        bid = self.standing_bid
        bid.size = min(len(queue), self.size_max)
        bid.ripe_at_ns = now_ns
        bid.key = bid.expires_at_ns = queue.first().expires_at_ns - alone_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        queue, bid = self.queue, self.standing_bid
        bid.again = False
        absent: set[frozenset[int] | None] = set()
        for first in queue.items[queue.head :]:
            if first.allowed in absent:
                continue
            left = self._left_to(first)
            if not any(slot.runs(self.family.variants[index]) for index in left):
                # Another backend may have what it insists on, and others may run here.
                absent.add(first.allowed)
                bid.again = True
                continue
            batch = self._batch(slot, first, left)
            if batch is not None:
                bid.again = False
                queue.take(batch.requests)
                return batch
            if (
                slot.kind != self.pool_tables.only
                or slot.factor != 1.0
                or slot.resident is not None
            ):
                # Another backend may still be fast enough.
                return None
            queue.remove(first)
            self._drop_late(first)
        return None

    def _batch(self, slot: Slot, first: Request, left: list[int]) -> Batch | None:
        """The load's variant, or what the first leaves, for all who allow it; the fastest where
        that would be too late."""
        plain = first.allowed is None
        index = self.index if plain else self._choice(left)
        fastest = self.fastest if plain else min(left, key=lambda each: self.tables[each][1])
        for each in (index, fastest):
            variant = self.family.variants[each]
            if not slot.runs(variant):
                continue
            size_max = len(self.tables[each]) - 1
            if each == index:
                size_max = size_for_half(self.tables[each], self.family.slo_ns)
            taken = who_allow(self.queue, variant, size_max)
            size = size_within_limits(taken, slot, variant, size_max)
            if size > 0:
                return Batch(variant, taken[:size])
        return None

    def _drop_late(self, first: Request) -> None:
        slo_ns = first.expires_at_ns - first.arrived_at_ns - self.lead.ns(1)
        self.pool_tables.relax_margins(self.family.variants[self.fastest], slo_ns)
        self.outbox.drop(first, DropReason.LATE)
