"""Ratios of actual to profiled run time, and the rules by which margins come of them."""

from bisect import bisect_left, insort_right
from collections import deque
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CostRules:
    """How fast margins and factors are learnt, and unlearnt."""

    margin_share: float = 0.98
    """Share of the runs that margins are enough for."""
    smaller_shares: tuple[float, ...] = (0.95, 0.9, 0.75)
    """The same where that share would leave nobody time to run."""
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
    believed: float = 1.5
    """So many times what other sizes say, a size's own 99th percentile is a mistake."""
    common: float = 0.9
    """Share of the runs of a size that no fault has touched."""
    hang: float = 4.0
    """So many times what no fault has touched, a run hung. In means it counts as that: how long it
    hung says nothing of the time that runs take."""
    trial_after: int = 8
    """Batches of its siblings after which a variant that they keep from running is tried."""
    trial_after_max: int = 8192
    """That grows twofold with each trial, up to here, until it has run for long enough."""
    trial_worth: float = 1.05
    """A trial is for variants that would be planned so many times shorter without a margin."""
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
    refusals_max: int = 4096
    """That grows twofold with each such trial that shows it as slow as before, up to here."""
    backend_tolerance: float = 0.05
    """A backend is planned with a factor of its own once it is this much slower than its peers."""


RULES: Final = CostRules()


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

    def mean(self, most: float) -> float:
        """The mean, with what is above `most` counted as that."""
        below = bisect_left(self.ordered, most)
        count = len(self.ordered)
        return (sum(self.ordered[:below]) + most * (count - below)) / count


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
        "seed",
        "waits_since",
    )

    def __init__(self, first: int, last: int, seed: float, rules: CostRules) -> None:
        self.first = first
        self.last = last
        self.seed = seed
        """From the profile; what counts until batches have run."""
        self.ratios = RatioWindow(rules.ratio_window)
        """With the backends' own factors taken out."""
        self.raw = RatioWindow(rules.ratio_window)
        """As they were: what backends are compared by. Compared by the others, a factor would
        lower the very median that it is measured against, and rise without end."""
        self.factor = seed
        """Times the profile's median; what the plan is."""
        self.borrowed_ns = 0
        """On top of that: a delay seen on other sizes."""
        self.waits_since = 0
        """The number of the last batch of these sizes, or of that at which they were forgiven."""
        self.ran = 0
        """Batches since they were."""
        self.patience = rules.patience

    def usual(self, least: int) -> float:
        """The median ratio, once there are that many."""
        ordered = self.ratios.ordered
        return ordered[len(ordered) // 2] if len(ordered) >= least else 1.0
