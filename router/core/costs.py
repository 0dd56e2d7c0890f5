"""The cost of a batch: profiled run times, and the margin that execution has taught us."""

from bisect import bisect_left, insort_right
from collections import deque
from dataclasses import dataclass
from typing import Final

from fermata.foundation.units import NEVER


@dataclass(frozen=True, slots=True)
class CostRules:
    """How fast margins and factors are learnt, and unlearnt."""

    ratio_window: int = 256
    """Batches remembered for each octave of sizes, per variant and kind of backend."""
    ratio_window_min: int = 16
    """Below this many samples a quantile says little, and the profile's own p99 still counts."""
    own_min: int = 3
    """Below this many samples an octave has no opinion: one alone may be an accident."""
    memory: int = 2048
    """Batches of a variant, of whatever size, after which a sample is forgotten. A margin that
    keeps its octave from running at all would never be refuted otherwise."""
    suspect: float = 2.0
    """A delay weighs less on large batches than on small ones. Where large ones took so many times
    as long as small ones do, both by their profile, that was a fault which may be over."""
    patience: int = 32
    """Batches of a variant, none of them that large, until it is taken to be."""
    factor_step: float = 0.002
    """The planned times are rewritten only when the factor has moved by this much."""
    swap_share: int = 4
    """One swap-in counts for a quarter, those before it for the rest."""
    backend_window: int = 8
    """Batches by which a backend is compared with its peers: half of them settle a median."""
    refusals: int = 64
    """Offers of a slow backend that nothing fits: after so many it is tried as if it were not slow,
    or one that has recovered would never show it."""
    backend_tolerance: float = 0.05
    """A backend is planned with a factor of its own once it is this much slower than its peers."""


RULES: Final = CostRules()
NO_ROOM_NS = NEVER // 8
"""Planned for batches that do not fit: no deadline is that far away."""


class RatioWindow:
    """The recent ratios of actual to profiled run time, kept sorted for quantiles."""

    __slots__ = ("ordered", "recent", "size")

    def __init__(self, size: int = RULES.ratio_window) -> None:
        self.size = size
        self.recent: deque[tuple[int, float]] = deque()
        """(batch number, ratio)."""
        self.ordered: list[float] = []

    def add(self, batch: int, ratio: float) -> None:
        self.recent.append((batch, ratio))
        insort_right(self.ordered, ratio)
        if len(self.recent) > self.size:
            self._forget_oldest()

    def forget_before(self, batch: int) -> bool:
        """Drop what is older than that batch; whether anything was."""
        dropped = False
        while self.recent and self.recent[0][0] < batch:
            self._forget_oldest()
            dropped = True
        return dropped

    def forget_above(self, ratio: float) -> None:
        self.recent = deque(each for each in self.recent if each[1] <= ratio)
        self.ordered = sorted(each for _, each in self.recent)

    def forget_largest(self) -> None:
        largest = self.ordered.pop()
        for index, (_, ratio) in enumerate(self.recent):
            if ratio == largest:
                del self.recent[index]
                return

    def _forget_oldest(self) -> None:
        _, ratio = self.recent.popleft()
        del self.ordered[bisect_left(self.ordered, ratio)]
        assert len(self.ordered) == len(self.recent)

    def quantile(self, share: float) -> float:
        count = len(self.ordered)
        return self.ordered[min(count - 1, int(share * count))]


class Octave:
    """Batch sizes from 2^n to 2^(n+1) - 1, which share a margin."""

    __slots__ = (
        "borrowed_ns",
        "factor",
        "first",
        "last",
        "patience",
        "ran",
        "ratios",
        "raw",
        "waits_since",
    )

    def __init__(self, first: int, last: int, factor: float, rules: CostRules) -> None:
        self.first = first
        self.last = last
        self.ratios = RatioWindow(rules.ratio_window)
        """With the backends' own factors taken out."""
        self.raw = RatioWindow(rules.ratio_window)
        """As they were: what backends are compared by. Compared by the others, a factor would
        lower the very median that it is measured against, and rise without end."""
        self.factor = factor
        """Times the profile's median; what the plan is."""
        self.borrowed_ns = 0
        """On top of that: a delay seen on other sizes."""
        self.waits_since = 0
        """The number of the last batch of these sizes, or of that at which they were forgiven."""
        self.ran = 0
        """Batches since they were."""
        self.patience = rules.patience


class VariantCost:
    """Run times of one variant on one kind of backend, by batch size; index 0 is unused.

    Margins are learnt by octave. A hiccup of the machine doubles a batch of 1 ms and is nothing to
    one of 20 ms: one factor for all sizes would let small batches forbid the large ones, which
    carry the load. Sizes that have not run yet take over the delay of those that have, as it is.
    """

    __slots__ = (
        "batches",
        "beta_ns",
        "octaves",
        "p50_ns",
        "plan_ns",
        "room",
        "rules",
        "seed",
        "size_max",
    )

    def __init__(self, p50_ns: list[int], seed: float, rules: CostRules = RULES) -> None:
        assert min(p50_ns) > 0, "times are divided by these"
        self.rules = rules
        self.p50_ns = [0, *p50_ns]
        self.size_max = len(p50_ns)
        self.room = 0
        """The largest batch that memory suffices for, where it does not for all; 0: it does."""
        self.seed = seed
        """From the profile; what counts until batches have run."""
        self.batches = 0
        self.octaves: list[Octave] = []
        first = 1
        while first <= self.size_max:
            self.octaves.append(Octave(first, min(2 * first - 1, self.size_max), seed, rules))
            first *= 2
        self.plan_ns = list(self.p50_ns)
        """Planned run times, never falling; rewritten in place, so that sources may hold on to
        the list."""
        self.beta_ns = fixed_cost_ns(p50_ns)
        self._rewrite()

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

    def learn(self, size: int, ratio: float, backend_factor: float, share: float) -> None:
        """A batch of that size took so many times its profiled time, on a backend that takes so
        many times as long as its peers."""
        rules = self.rules
        self.batches += 1
        octave = self.octaves[size.bit_length() - 1]
        octave.raw.add(self.batches, ratio)
        octave.ratios.add(self.batches, ratio / backend_factor)
        octave.waits_since = self.batches
        octave.ran += 1
        changed = len(octave.ratios.ordered) <= rules.ratio_window_min
        if self._forgive_larger_than(octave):
            changed = True
        oldest = self.batches - rules.memory
        for each in self.octaves:
            each.raw.forget_before(oldest)
            if each.ratios.forget_before(oldest) and each is not octave:
                changed = True
        if not changed:
            # Take a rise as it comes, a fall only when it is worth rewriting the table.
            learnt = octave.ratios.quantile(share)
            changed = learnt > octave.factor or octave.factor - learnt > rules.factor_step
        if changed:
            self.plan(share)

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

    def relax_margin(self, share: float) -> None:
        """Make the margin of the smallest batch a little smaller."""
        smallest = self.octaves[0]
        if smallest.borrowed_ns > 0:
            self._taught()[0].ratios.forget_largest()
        elif smallest.ratios.ordered:
            smallest.ratios.forget_largest()
        else:
            self.seed = max(1.0, 0.9 * self.seed)
            for octave in self.octaves:
                if octave.ratios.ordered:
                    octave.ratios.forget_largest()
        self.plan(share)

    def plan(self, share: float) -> None:
        """Set every octave's margin from what has run, and the table from the margins."""
        taught = self._taught()
        for octave in taught:
            octave.factor, octave.borrowed_ns = octave.ratios.quantile(share), 0
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
        own = ordered[len(ordered) // 2] if len(ordered) >= self.rules.own_min else 1.0
        octave.factor, octave.borrowed_ns = max(own, self.seed), 0
        if not taught:
            if ordered:
                octave.factor = max(ordered[-1], self.seed)
            return
        nearest = min(taught, key=lambda other: abs(other.first - octave.first))
        octave.factor = own
        delay_ns = int((nearest.factor - 1.0) * self.p50_ns[nearest.last])
        octave.borrowed_ns = max(0, delay_ns - int((own - 1.0) * self.p50_ns[octave.last]))

    def _rewrite(self) -> None:
        highest_ns = 0
        for octave in self.octaves:
            factor, more_ns = octave.factor, octave.borrowed_ns
            for size in range(octave.first, octave.last + 1):
                highest_ns = max(highest_ns, int(self.p50_ns[size] * factor) + more_ns)
                self.plan_ns[size] = highest_ns
        assert highest_ns < NO_ROOM_NS, "planned times fall, and cannot be searched"
        for size in range(self.room + 1, self.size_max + 1) if self.room else ():
            self.plan_ns[size] = NO_ROOM_NS


def fixed_cost_ns(p50_ns: list[int]) -> int:
    """Beta of l(b) = alpha b + beta by least squares; never negative."""
    count = len(p50_ns)
    if count == 1:
        return p50_ns[0]
    mean_size = (count + 1) / 2
    mean_ns = sum(p50_ns) / count
    spread = sum((size - mean_size) ** 2 for size in range(1, count + 1))
    slope = (
        sum((size - mean_size) * (p50_ns[size - 1] - mean_ns) for size in range(1, count + 1))
        / spread
    )
    return max(0, round(mean_ns - slope * mean_size))


class Costs:
    """Every variant's cost on every kind of backend, refined by what really happens."""

    __slots__ = (
        "backend_factor",
        "backend_ratios",
        "backend_room",
        "by_kind",
        "margin_quantile",
        "refusals",
        "rules",
        "swap_in_ns",
    )

    def __init__(self, margin_quantile: float = 0.98, rules: CostRules = RULES) -> None:
        self.margin_quantile = margin_quantile
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
        """Refusals of those, since the last batch that ran there."""

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
        seed = 1.0
        if p99_ns is not None:
            seed = max(high / low for high, low in zip(p99_ns, p50_ns, strict=True))
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
        cost.learn(size, ratio, factor, self.margin_quantile)

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
                cost.relax_margin(self.margin_quantile)

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

    def refuse(self, backend: int, weight: int = 1) -> None:
        """Nothing that waited would fit a slow backend."""
        refusals = self.refusals.get(backend, 0) + weight
        self.refusals[backend] = refusals
        if refusals >= self.rules.refusals:
            self.forget(backend)

    def forget(self, backend: int) -> None:
        """A backend has gone for good; one of the same number starts afresh."""
        self.refusals.pop(backend, None)
        self.backend_ratios.pop(backend, None)
        self.backend_factor.pop(backend, None)

    def _compare(self, backend: int, relative: float) -> None:
        ratios = self.backend_ratios.get(backend)
        if ratios is None:
            ratios = self.backend_ratios[backend] = deque(maxlen=self.rules.backend_window)
        ratios.append(relative)
        self.refusals.pop(backend, None)
        if len(ratios) < self.rules.backend_window // 2:
            return
        median = sorted(ratios)[len(ratios) // 2]
        if median > 1.0 + self.rules.backend_tolerance:
            self.backend_factor[backend] = median
        elif backend in self.backend_factor:
            del self.backend_factor[backend]
