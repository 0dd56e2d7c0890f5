"""The cost of a batch: profiled run times, and the margin that execution has taught us."""

from collections import deque
from collections.abc import Sequence

from fermata.foundation.units import NEVER
from fermata.router.core.margins.fixed_cost import fixed_cost_ns
from fermata.router.core.margins.ratios import RULES, CostRules, Octave, RatioWindow
from fermata.router.core.margins.seeds import seed_of
from fermata.router.core.margins.siblings import Siblings

__all__ = [
    "NO_ROOM_NS",
    "RULES",
    "CostRules",
    "Costs",
    "RatioWindow",
    "VariantCost",
]

NO_ROOM_NS = NEVER // 8
"""Planned for batches that do not fit: no deadline is that far away."""


class VariantCost:
    """Run times of one variant on one kind of backend, by batch size; index 0 is unused.

    Margins are learnt by octave. A hiccup of the machine doubles a batch of 1 ms and is nothing to
    one of 20 ms: one factor for all sizes would let small batches forbid the large ones, which
    carry the load. Sizes that have not run yet take over the delay of those that have, as it is.
    """

    __slots__ = (
        "awaited",
        "batches",
        "beta_ns",
        "octaves",
        "on_trial",
        "p50_ns",
        "plan_ns",
        "proven",
        "room",
        "rules",
        "share",
        "size_max",
    )

    def __init__(self, p50_ns: list[int], seed: float, rules: CostRules = RULES) -> None:
        assert min(p50_ns) > 0, "times are divided by these"
        self.rules = rules
        self.share = rules.margin_share
        """Of the runs, those that margins are enough for."""
        self.p50_ns = [0, *p50_ns]
        self.size_max = len(p50_ns)
        self.room = 0
        """The largest batch that memory suffices for, where it does not for all; 0: it does."""
        self.batches = 0
        self.octaves: list[Octave] = []
        first = 1
        while first <= self.size_max:
            self.octaves.append(Octave(first, min(2 * first - 1, self.size_max), seed, rules))
            first *= 2
        self.on_trial = False
        """It is planned without a margin, for one batch."""
        self.awaited = False
        """That batch runs."""
        self.proven = 0
        """Such batches in a row that belied the margin."""
        self.plan_ns = list(self.p50_ns)
        """Planned run times, never falling; rewritten in place, so that sources may hold on to
        the list."""
        self.beta_ns = fixed_cost_ns(p50_ns)
        self._rewrite()

    @property
    def seed(self) -> float:
        """The profile's margin of a request alone."""
        return self.octaves[0].seed

    @property
    def factor(self) -> float:
        """The largest margin of any size, relative to the profile."""
        room = self.room or self.size_max
        ends = [min(octave.last, room) for octave in self.octaves]
        return max(self.plan_ns[size] / self.p50_ns[size] for size in ends)

    def ratio(self) -> float | None:
        """The median of what has run most."""
        most = max(self.octaves, key=lambda octave: len(octave.raw.ordered)).raw.ordered
        return most[len(most) // 2] if most else None

    def expect_ns(self, size: int) -> int:
        """How long a batch of that size usually takes: as profiled, until batches tell better."""
        p50_ns = self.p50_ns[size]
        ordered = self.octaves[size.bit_length() - 1].ratios.ordered
        count = len(ordered)
        return p50_ns if count < self.rules.own_min else int(p50_ns * ordered[count // 2])

    def mean_ratio(self, size: int) -> float:
        """The mean of actual over profiled run time: what batches of that size take of a backend.
        Sizes that have hardly run are believed to be as those next to them that have."""
        rules, octave = self.rules, self.octaves[size.bit_length() - 1]
        least = rules.ratio_window_min
        if len(octave.raw.ordered) < least:
            told = [each for each in self.octaves if len(each.raw.ordered) >= least]
            if not told:
                return octave.usual(rules.own_min)
            octave = _nearest(octave, told)
        return octave.raw.mean(rules.hang * octave.raw.quantile(rules.common))

    def pace(self, size: int) -> float:
        """Mean run time of a batch of that size over the planned one. Margins are for deadlines:
        added up over all that waits, they would have backends seem full that are not."""
        return self.mean_ratio(size) * self.p50_ns[size] / self.plan_ns[size]

    def learn(self, size: int, ratio: float, backend_factor: float) -> None:
        """A batch of that size took so many times its profiled time, on a backend that takes so
        many times as long as its peers."""
        rules = self.rules
        self.batches += 1
        octave = self.octaves[size.bit_length() - 1]
        forgiven = self.awaited and self._judge(octave, size, ratio / backend_factor)
        octave.raw.add(self.batches, ratio)
        octave.ratios.add(self.batches, ratio / backend_factor)
        octave.waits_since = self.batches
        octave.ran += 1
        changed = forgiven or len(octave.ratios.ordered) <= rules.ratio_window_min
        if self._forgive_larger_than(octave):
            changed = True
        oldest = self.batches - rules.memory
        for each in self.octaves:
            each.raw.forget_before(oldest)
            if each.ratios.forget_before(oldest) and each is not octave:
                changed = True
        if not changed:
            # Take a rise as it comes, a fall only when it is worth rewriting the table.
            learnt = octave.ratios.quantile(self.share)
            changed = learnt > octave.factor or octave.factor - learnt > rules.factor_step
        if changed:
            self.plan()

    def _forgive_larger_than(self, octave: Octave) -> bool:
        """Larger sizes that were much slower than these are now, and have not run since, may try
        again; whether any may. If they were right, they wait twice as long the next time."""
        forgiven, rules = False, self.rules
        if len(octave.ratios.ordered) >= rules.ratio_window_min:
            limit = rules.suspect * octave.factor
            for each in self.octaves:
                if each.first <= octave.first:
                    continue
                if each.factor <= limit:
                    if each.ran >= rules.ratio_window_min:
                        each.patience = rules.patience
                elif self.batches - each.waits_since >= each.patience:
                    each.ratios.forget_above(limit)
                    each.waits_since, each.ran = self.batches, 0
                    each.patience = min(2 * each.patience, rules.memory)
                    forgiven = True
        return forgiven

    # Trials

    def begin_trial(self) -> bool:
        """Plan the next batch without a margin, where nothing but an unproven one is in its way;
        whether it is. What has run often is believed, unless its margin is that of a fault."""
        rules, taught = self.rules, self._taught()
        if taught:
            unproven = any(self._claim(each.first) > self._fault(each) for each in taught)
        else:
            usual = [rules.trial_worth * each.usual(rules.own_min) for each in self.octaves]
            claims = [self._claim(each.first) for each in self.octaves]
            unproven = any(claim > most for claim, most in zip(claims, usual, strict=True))
        if unproven:
            self.on_trial = True
            self._rewrite()
        return unproven

    def end_trial(self) -> None:
        """A batch has been granted on trial: plan with the margin again until it has ended."""
        if self.on_trial:
            self.on_trial, self.awaited = False, True
            self._rewrite()

    def _fault(self, octave: Octave) -> float:
        """A ratio that no tail of such run times has: a fault's."""
        rules, count = self.rules, len(octave.ratios.ordered)
        if count < rules.ratio_window_min:
            return rules.suspect * octave.usual(1)
        return rules.suspect * octave.ratios.quantile(rules.common)

    def _claim(self, size: int) -> float:
        return self.plan_ns[size] / self.p50_ns[size]

    def _judge(self, octave: Octave, size: int, ratio: float) -> bool:
        """Compare a trial with the margin. Some in a row that are nearer to what is usual have it
        forgotten; whether it was."""
        self.awaited = False
        rules, usual = self.rules, octave.usual(self.rules.own_min)
        belied = 2.0 * ratio <= usual + self._claim(size) and ratio <= rules.suspect * usual
        self.proven = self.proven + 1 if belied else 0
        if self.proven < rules.own_min:
            return False
        self.proven = 0
        for each in self.octaves:
            each.seed = 1.0
            each.ratios.forget_above(self._fault(each))
        return True

    def relax_margin(self) -> None:
        """Make the margin of the smallest batch a little smaller."""
        smallest = self.octaves[0]
        if smallest.borrowed_ns > 0:
            self._taught()[0].ratios.forget_largest()
        elif smallest.ratios.ordered:
            smallest.ratios.forget_largest()
        else:
            for octave in self.octaves:
                octave.seed = max(1.0, 0.9 * octave.seed)
                if octave.ratios.ordered:
                    octave.ratios.forget_largest()
        self.plan()

    def plan_within(self, slo_ns: int) -> None:
        """Have margins be enough for the most runs with which a request has time for two of them:
        one that was slow, for which it had to wait, and its own.

        Where some runs take longer than that, a margin for these would let nothing run beside
        them. They are late anyway, and all others need not be.
        """
        rules = self.rules
        self._believe(rules.margin_share)
        if 2 * self.plan_ns[1] <= slo_ns or not self._has_faults():
            return
        for share in rules.smaller_shares:
            self._believe(share)
            if 2 * self.plan_ns[1] <= slo_ns:
                return
        self._believe(rules.margin_share)

    def _has_faults(self) -> bool:
        """Whether margins are those of runs that took far longer than most."""
        share = self.rules.margin_share
        return any(each.ratios.quantile(share) > self._fault(each) for each in self._taught())

    def _believe(self, share: float) -> None:
        if share != self.share:
            self.share = share
            self.plan()

    def plan(self) -> None:
        """Set every octave's margin from what has run, and the table from the margins."""
        taught = self._taught()
        for octave in taught:
            octave.factor, octave.borrowed_ns = octave.ratios.quantile(self.share), 0
        for octave in self.octaves:
            if octave not in taught:
                self._borrow(octave, taught)
        self._rewrite()

    def _taught(self) -> list[Octave]:
        least = self.rules.ratio_window_min
        return [each for each in self.octaves if len(each.ratios.ordered) >= least]

    def _borrow(self, octave: Octave, taught: list[Octave]) -> None:
        """The margin of sizes that have hardly run."""
        ordered = octave.ratios.ordered
        own = octave.usual(self.rules.own_min)
        octave.factor, octave.borrowed_ns = max(own, octave.seed), 0
        if not taught:
            if ordered:
                octave.factor = max(ordered[-1], octave.seed)
            return
        nearest = _nearest(octave, taught)
        octave.factor = own
        delay_ns = int((nearest.factor - 1.0) * self.p50_ns[nearest.last])
        octave.borrowed_ns = max(0, delay_ns - int((own - 1.0) * self.p50_ns[octave.last]))

    def _rewrite(self) -> None:
        highest_ns = 0
        for octave in self.octaves:
            factor, more_ns = octave.factor, octave.borrowed_ns
            if self.on_trial:
                factor, more_ns = max(1.0, octave.usual(self.rules.own_min)), 0
            for size in range(octave.first, octave.last + 1):
                highest_ns = max(highest_ns, int(self.p50_ns[size] * factor) + more_ns)
                self.plan_ns[size] = highest_ns
        assert highest_ns < NO_ROOM_NS, "planned times fall, and cannot be searched"
        for size in range(self.room + 1, self.size_max + 1) if self.room else ():
            self.plan_ns[size] = NO_ROOM_NS


def _nearest(octave: Octave, others: Sequence[Octave]) -> Octave:
    return min(others, key=lambda other: abs(other.first - octave.first))


class Costs:
    """Every variant's cost on every kind of backend, refined by what really happens."""

    __slots__ = (
        "backend_factor",
        "backend_ratios",
        "backend_room",
        "by_kind",
        "pardoned",
        "patience",
        "refusals",
        "rules",
        "siblings",
        "swap_in_ns",
        "trials",
    )

    def __init__(self, rules: CostRules = RULES) -> None:
        self.rules = rules
        self.by_kind: list[dict[int, VariantCost]] = [{}]
        self.swap_in_ns: dict[int, int] = {}
        """Time to bring in a variant that is not resident; absent means none."""
        self.backend_ratios: dict[int, deque[float]] = {}
        self.backend_factor: dict[int, float] = {}
        """Factors of backends that are slower than their peers; absent means 1."""
        self.backend_room: dict[int, dict[int, int]] = {}
        """For backends that are short of memory, by variant: the largest batch that fits there."""
        self.refusals: dict[int, int] = {}
        """Refusals of slow backends, since the last batch that ran there."""
        self.pardoned: dict[int, float] = {}
        """Factors that slow backends had, which are tried as if they were not: their next batch
        tells."""
        self.patience: dict[int, int] = {}
        """Refusals until that is done, for those that were still as slow the last time."""
        self.siblings: dict[int, Siblings] = {}
        """By variant: those that a policy may run in its place."""
        self.trials: set[int] = set()
        """Variants that are planned without a margin until one batch of them is granted."""

    def add(
        self,
        variant: int,
        p50_ns: list[int],
        p99_ns: list[int] | None = None,
        kind: int = 0,
        swap_in_ns: int = 0,
    ) -> None:
        """Make a variant known on a kind of backend; times by batch size, from 1 up."""
        while len(self.by_kind) <= kind:
            self.by_kind.append({})
        seed = seed_of(p50_ns, p99_ns, self.rules)
        self.by_kind[kind][variant] = VariantCost(p50_ns, seed, self.rules)
        if swap_in_ns:
            self.swap_in_ns[variant] = swap_in_ns

    def of(self, variant: int, kind: int = 0) -> VariantCost:
        return self.by_kind[kind][variant]

    def observe(self, variant: int, kind: int, backend: int, size: int, run_ns: int) -> None:
        """A batch ran for that long: refine the variant's margin and the backend's own factor."""
        cost = self.by_kind[kind][variant]
        assert 0 < size <= cost.size_max
        ratio = run_ns / cost.p50_ns[size]
        usual = cost.ratio()
        if usual is not None:
            # Relative to the median of its peers, so that a model whose profile is wrong
            # everywhere does not look like a slow backend.
            self._compare(backend, ratio / usual)
        factor = self.backend_factor.get(backend, 1.0)
        cost.learn(size, ratio, factor)
        if self.siblings and variant in self.siblings:
            self._doubt_sibling(variant)

    # Trials

    def add_siblings(self, variants: Sequence[int]) -> None:
        """A policy chooses among these: one that the others keep from running is tried at times."""
        if len(variants) > 1:
            self.siblings.update(dict.fromkeys(variants, Siblings(variants, self.rules)))

    def _doubt_sibling(self, variant: int) -> None:
        """A variant has run; try one of its siblings that has not for long. A margin that keeps a
        variant from running would never be refuted otherwise."""
        siblings = self.siblings[variant]
        other = siblings.passed_over(variant)
        if other < 0 or other in self.trials:
            return
        tried = [costs[other].begin_trial() for costs in self.by_kind if other in costs]
        if any(tried):
            self.trials.add(other)
            siblings.on_trial(other)

    def end_trial(self, variant: int) -> None:
        """A batch of this variant has been granted."""
        if variant in self.trials:
            self.trials.discard(variant)
            for costs in self.by_kind:
                if variant in costs:
                    costs[variant].end_trial()

    def observe_swap(self, variant: int, swap_ns: int) -> None:
        """Bringing a variant in took that long: move a quarter of the way there, or all of it
        where nothing was known."""
        known_ns = self.swap_in_ns[variant]
        share = self.rules.swap_share if known_ns > 1 else 1
        self.swap_in_ns[variant] = max(1, known_ns + (swap_ns - known_ns) // share)

    def relax_margin(self, variant: int) -> None:
        """A request had no chance from the start, only for the margin's sake.

        A margin that lets nothing run is never refuted by a run, so each such request makes it a
        little smaller, until one runs and teaches better.
        """
        for costs in self.by_kind:
            cost = costs.get(variant)
            if cost is not None:
                cost.relax_margin()

    def limit(self, variant: int, size: int) -> None:
        """Form no batches larger than this, whatever the profile says; 0: as it says."""
        for costs in self.by_kind:
            cost = costs.get(variant)
            if cost is not None and cost.room != size:
                cost.room = size
                cost._rewrite()

    def limit_on(self, backend: int, sizes: dict[int, int]) -> None:
        """Run no larger batches than these on one backend; variants that are absent have room."""
        if sizes:
            self.backend_room[backend] = sizes
        else:
            self.backend_room.pop(backend, None)

    def refuse(self, backend: int, alone: bool = False) -> None:
        """Nothing that waited would fit a slow backend; `alone`: it has nowhere else to go, and
        the second such refusal is enough."""
        patience = self.patience.get(backend, self.rules.refusals)
        refusals = self.refusals.get(backend, 0) + (patience // 2 if alone else 1)
        self.refusals[backend] = refusals
        if refusals >= patience:
            # It is planned as its peers until its next batch tells whether it is slow still.
            self.refusals.pop(backend)
            self.pardoned[backend] = self.backend_factor.pop(backend)

    def forget(self, backend: int) -> None:
        """A backend has gone for good; one of the same number starts afresh."""
        for known in (self.refusals, self.pardoned, self.patience):
            known.pop(backend, None)
        self.backend_ratios.pop(backend, None)
        self.backend_factor.pop(backend, None)

    def _compare(self, backend: int, relative: float) -> None:
        ratios = self.backend_ratios.get(backend)
        if ratios is None:
            ratios = self.backend_ratios[backend] = deque(maxlen=self.rules.backend_window)
        if backend in self.pardoned:
            self._retry(backend, relative, ratios)
        ratios.append(relative)
        self.refusals.pop(backend, None)
        if len(ratios) < self.rules.backend_window // 2:
            return
        median = sorted(ratios)[len(ratios) // 2]
        if median > 1.0 + self.rules.backend_tolerance:
            self.backend_factor[backend] = median
        elif backend in self.backend_factor:
            del self.backend_factor[backend]
            self.patience.pop(backend, None)

    def _retry(self, backend: int, relative: float, ratios: deque[float]) -> None:
        """One that was pardoned starts afresh if it is nearer to its peers than to what it was.
        Otherwise it is slow from this batch on, or each pardon would teach its peers' margins
        what is its own; and the next pardon takes twice as long, as each costs requests."""
        if 2.0 * relative <= 1.0 + self.pardoned.pop(backend):
            ratios.clear()
            self.patience.pop(backend, None)
        else:
            patience, rules = self.patience.get(backend, self.rules.refusals), self.rules
            self.patience[backend] = min(2 * patience, rules.refusals_max)
