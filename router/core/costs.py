"""What a batch costs: profiled run times, and the margin that execution has taught us."""

from bisect import bisect_left, insort_right
from collections import deque

RATIO_WINDOW = 256
"""Batches remembered per variant and kind of backend."""
RATIO_WINDOW_MIN = 16
"""Below this many samples the profile's own p99 still counts."""
FACTOR_STEP = 0.002
"""The planned times are rewritten only when the factor has moved by this much."""
BACKEND_WINDOW = 8
"""Batches by which a backend is compared with its peers: a median settles after half of them."""
BACKEND_TOLERANCE = 0.05
"""A backend is planned with a factor of its own once it is this much slower than its peers."""


class RatioWindow:
    """The recent ratios of actual to profiled run time, kept sorted for quantiles."""

    __slots__ = ("ordered", "recent", "seed")

    def __init__(self, seed: float) -> None:
        self.seed = seed
        self.recent: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, ratio: float) -> None:
        self.recent.append(ratio)
        insort_right(self.ordered, ratio)
        if len(self.recent) > RATIO_WINDOW:
            oldest = self.recent.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]

    def doubt(self) -> None:
        """Forget the largest ratio, or trust the seed less where there is none."""
        if self.ordered:
            self.recent.remove(self.ordered.pop())
        else:
            self.seed = max(1.0, 0.9 * self.seed)

    def quantile(self, share: float) -> float:
        count = len(self.ordered)
        if count == 0:
            return self.seed
        learnt = self.ordered[min(count - 1, int(share * count))]
        return max(learnt, self.seed) if count < RATIO_WINDOW_MIN else learnt


class VariantCost:
    """Run times of one variant on one kind of backend, by batch size; index 0 is unused."""

    __slots__ = ("beta_ns", "factor", "p50_ns", "plan_ns", "ratios", "size_max")

    def __init__(self, p50_ns: list[int], seed: float) -> None:
        self.p50_ns = [0, *p50_ns]
        self.size_max = len(p50_ns)
        self.ratios = RatioWindow(seed)
        self.factor = 1.0
        self.plan_ns = list(self.p50_ns)
        """Planned run times; rewritten in place, so that sources may hold on to the list."""
        self.beta_ns = fixed_cost_ns(p50_ns)
        self.set_factor(seed)

    def set_factor(self, factor: float) -> None:
        self.factor = factor
        if factor == 1.0:
            self.plan_ns[:] = self.p50_ns
        else:
            self.plan_ns[:] = [int(latency_ns * factor) for latency_ns in self.p50_ns]


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

    __slots__ = ("backend_factor", "backend_ratios", "by_kind", "margin_quantile", "swap_in_ns")

    def __init__(self, margin_quantile: float = 0.98) -> None:
        self.margin_quantile = margin_quantile
        self.by_kind: list[dict[int, VariantCost]] = [{}]
        self.swap_in_ns: dict[int, int] = {}
        """What it costs to bring a variant in that is not resident; absent means nothing."""
        self.backend_ratios: dict[int, deque[float]] = {}
        self.backend_factor: dict[int, float] = {}
        """Of backends that are slower than their peers; absent means 1."""

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
        self.by_kind[kind][variant] = VariantCost(p50_ns, seed)
        if swap_in_ns:
            self.swap_in_ns[variant] = swap_in_ns

    def of(self, variant: int, kind: int = 0) -> VariantCost:
        return self.by_kind[kind][variant]

    def observe(self, variant: int, kind: int, backend: int, size: int, run_ns: int) -> None:
        """A batch ran for that long: refine the variant's margin and the backend's own factor."""
        cost = self.by_kind[kind][variant]
        ratio = run_ns / cost.p50_ns[size]
        ordered = cost.ratios.ordered
        if ordered:
            # Relative to the median of its peers, so that a model whose profile is wrong
            # everywhere does not look like a slow backend.
            self._compare(backend, ratio / ordered[len(ordered) // 2])
        cost.ratios.add(ratio / self.backend_factor.get(backend, 1.0))
        learnt = cost.ratios.quantile(self.margin_quantile)
        # Take a rise as it comes, a fall only when it is worth rewriting the table.
        if learnt > cost.factor or cost.factor - learnt > FACTOR_STEP:
            cost.set_factor(learnt)

    def doubt(self, variant: int) -> None:
        """A request had no chance from the start, only for the margin's sake.

        A margin that lets nothing run is never refuted by a run, so each such request makes it a
        little smaller, until one runs and teaches better.
        """
        for costs in self.by_kind:
            cost = costs.get(variant)
            if cost is not None:
                cost.ratios.doubt()
                cost.set_factor(cost.ratios.quantile(self.margin_quantile))

    def forget(self, backend: int) -> None:
        """A backend has gone for good; one of the same number starts afresh."""
        self.backend_ratios.pop(backend, None)
        self.backend_factor.pop(backend, None)

    def _compare(self, backend: int, relative: float) -> None:
        ratios = self.backend_ratios.get(backend)
        if ratios is None:
            ratios = self.backend_ratios[backend] = deque(maxlen=BACKEND_WINDOW)
        ratios.append(relative)
        if len(ratios) < BACKEND_WINDOW // 2:
            return
        median = sorted(ratios)[len(ratios) // 2]
        if median > 1.0 + BACKEND_TOLERANCE:
            self.backend_factor[backend] = median
        elif backend in self.backend_factor:
            del self.backend_factor[backend]
