"""Batch sizes that a model's rate and SLO allow, and from which size on nobody is held."""

import math
from dataclasses import dataclass
from typing import ClassVar

from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.rate import QUICK, RULES, RateMeter
from fermata.router.core.signals import SourceDemand
from fermata.router.core.source import Source
from fermata.router.policies.deferred_kinds import HoldSizes, KindCandidates, hold_sizes
from fermata.router.policies.deferred_options import DeferredOptions
from fermata.router.policies.sizing import full_size, learn_slo_ns, target_size


@dataclass(frozen=True, slots=True)
class DeferredRules:
    """Limits by which a model is taken to be silent, or bursty."""

    silent_ns: int = 2 * SECOND
    """A model without arrivals for so long counts no demand."""
    losing: float = 0.01
    """Share lost lately from which who cannot wait for the next batch is held for this one."""
    slowest: float = 1.1
    """Backends that take longer by more than this are left to others."""
    alone: float = 0.99
    """Share of all demand from which an application has the backends to itself."""
    roomy: float = 1.25
    """Runs of a target batch in the time that a request has, from which on overload fills it."""
    bursty: float = 0.5
    """Arrivals whose rate after a lull is below this share of the mean come in bursts."""


class BatchTargets(Source):
    """Learns a model's rate and SLO, and says what its batches are to be (Symphony, Eqns 2-3)."""

    own: ClassVar[bool] = True
    """Requests are nobody's parts, so that they may wait for the sake of others."""
    rules: ClassVar[DeferredRules] = DeferredRules()
    kind = 0
    """The kind of backend that `cost` is of: the fastest of those that are there."""
    kinds: KindCandidates | None = None
    """Where the pool has several."""
    tight = False
    """Whether to hold for those who cannot wait for the end of a batch (`_is_tight`)."""

    def __init__(self, variant: int, options: DeferredOptions, slo_ns_max: int) -> None:
        self.variant = variant
        self.options = options
        self.queue = DeadlineQueue()
        self.rate = RateMeter(QUICK if self.own else RULES)
        self.slo_ns = 0
        self.slo_ns_max = slo_ns_max
        """The application's: clients that can wait for longer must not make windows of a size that
        nobody else's deadline leaves room for."""
        self.target = 1
        """Batch size that the model's rate and SLO allow."""
        self.window = 1
        """A head must leave room for a batch of this size, or be dropped."""
        self.at_once = NEVER if options.hold == "deferred" else 1
        """A candidate of this size is not held any longer."""
        self.at_lull = NEVER
        """Nor is one of this size, once a lull has begun."""
        self.demand = SourceDemand()
        self.full = 1
        """Batch size when every backend is busy."""

    def _plan_for(self, kind: int) -> None:
        """Use the table of this kind of backend."""
        if kind != self.kind:
            self.kind = kind
        self.cost = self.costs.of(self.variant, kind)
        self.plan_ns = self.cost.plan_ns
        self.target = min(self.target, self.cost.size_max)
        self.full = min(self.full, self.cost.size_max)

    def _aim(self, slo_ns: int) -> None:
        """Set the target batch from the learnt rate: Eqns 2-3 with the model's own rate."""
        self.slo_ns = learn_slo_ns(self.slo_ns, min(slo_ns, self.slo_ns_max))
        rps = self.rate.rps
        if rps <= 0.0:
            return
        if self.desk.precedence.mixed:
            self.desk.precedence.tell(self.queue, self.slo_ns - self.lead.ns(1), self.plan_ns)
        if self.kinds is not None:
            self._aim_by_kind(self.kinds, rps)
            return
        self.cost.plan_within(self.slo_ns - self.lead.ns(1))
        # Most never are, and then have one attribute less: sources with many are slower to read.
        if self._is_tight() != self.tight:
            self.tight = not self.tight
        self.target = target_size(self.plan_ns, self.slo_ns, rps, self.target)
        # Where each batch costs those who come meanwhile, none is to be smaller than it could be.
        share = 1.0 if self.tight else self.options.drop_window
        self.window = max(1, int(share * self.target))
        self._set_demand(rps)
        self._set_hold(rps)

    def _is_tight(self) -> bool:
        """Whether who comes while a batch runs cannot wait for its end, nor has anybody else use
        for the time that others are held meanwhile."""
        if self.options.hold != "auto" or not self.own or not self._is_alone():
            return False
        return self.slo_ns - self.lead.ns(1) < 2 * self.plan_ns[1]

    def _aim_by_kind(self, kinds: KindCandidates, rps: float) -> None:
        """The same for each kind, with its part of the rate."""
        tolerance = self._cost_tolerance()
        needed = kinds.aim(self.options, self.slo_ns, rps, self._quiet_rps(rps), tolerance)
        if tolerance == math.inf:
            kinds.hold_from(HoldSizes(1))
        self.window = kinds.window
        self.demand.set(self.signals, *needed)

    def _set_demand(self, rps: float) -> None:
        """Tell how many backends this rate needs."""
        if self.kinds is not None and rps > 0.0:
            self._aim_by_kind(self.kinds, rps)
            return
        plan_ns, target = self.plan_ns, self.target
        backends_min = 0.0
        if rps > 0.0:
            self.full = full_size(plan_ns, self.slo_ns, rps, self.full)
            backends_min = rps * plan_ns[self.full] / (self.full * SECOND)
        backends = rps * plan_ns[target] / (target * SECOND)
        self.demand.set(self.signals, backends, backends_min, backends * self.cost.pace(target))

    def _set_hold(self, rps: float) -> None:
        """Decide from which size on a candidate is not held."""
        tolerance = self._cost_tolerance()
        if tolerance == math.inf:
            self.at_once = 1
            return
        quiet_rps = self._quiet_rps(rps)
        hold = hold_sizes(self.options, self.cost, self.target, rps, quiet_rps, tolerance)
        self.at_once, self.at_lull = hold.at_once, hold.at_lull

    def _cost_tolerance(self) -> float:
        """How many times the cost in a target batch a request may cost, rather than be held;
        without limit where nobody is held, whatever the size."""
        options, backends = self.options, self._able_backends()
        tolerance = 1.0 + options.efficient
        if options.hold == "deferred":
            return tolerance
        # Before the first backend is up, load says nothing; nobody is to wait longer than for it.
        # Margins are for deadlines: with them, a few slow batches would make backends seem full.
        load = self.signals.usual_demand / backends if backends else 0.0
        busy = load * self._alone() if self.own else load
        if options.hold == "eager" or busy < options.auto_load or busy == 0.0:
            return math.inf
        return max(tolerance, options.auto_busy / load)

    def _alone(self) -> float:
        """How many times the cost in a target batch a request costs alone."""
        target = self._target()
        return self.plan_ns[1] * target / self.plan_ns[target]

    def _target(self) -> int:
        """The target batch, on the fastest kind where there are several."""
        return self.target if self.kinds is None else self.kinds.target

    def _overload_target(self, lost: float) -> int:
        """The batch that a head must leave room for at least where so many are lost. Each waits in
        lasting overload until it just does, so that no batch is larger. Where the time of requests
        is hardly more than a target batch takes, they would go before they have waited at all.
        """
        target = self._target()
        room_ns = self.slo_ns - self.lead.ns(1)
        if not self._is_alone() or room_ns < self.rules.roomy * self.plan_ns[target]:
            return 1
        return int(min(1.0, self.options.drop_window + lost) * target)

    def _able_backends(self) -> int:
        """Backends that can be in time; idle ones that cannot do not make the others less busy."""
        if self.kinds is None:
            return self.desk.backends_for(self)
        return self.kinds.able_backends(self.slo_ns)

    def _quiet_rps(self, rps: float) -> float | None:
        """The rate after lulls, where arrivals come in bursts."""
        quiet_rps = self.rate.rps_after_lull
        return quiet_rps if quiet_rps < self.rules.bursty * rps else None

    def _is_alone(self) -> bool:
        """Whether nobody else has use for the time that its requests are held."""
        return self.demand.backends > self.rules.alone * self.signals.demand
