"""Run times that have moved: whether tables still fit the batches that run."""

from collections import Counter

from fermata.router.core.costs import NO_ROOM_NS, Costs
from fermata.router.policies.family import Family
from fermata.router.policies.ramsis.tables import SolveJob, stretched

DRIFT = 0.05
"""Tables are made anew once planned run times have moved by this much."""
OWN_MIN = 8
"""With fewer batches of its own, a variant is judged by the sizes that others have run."""


class RecentBatches:
    """Batches of one kind of backend, by variant and size."""

    __slots__ = ("by_variant",)

    def __init__(self) -> None:
        self.by_variant: dict[int, Counter[int]] = {}

    def add(self, variant: int, size: int) -> None:
        self.by_variant.setdefault(variant, Counter())[size] += 1

    def sizes(self, variant: int) -> Counter[int]:
        """Batches by size: of this variant, or of all where it has hardly run."""
        own = self.by_variant.get(variant, Counter())
        if own.total() >= OWN_MIN:
            return own
        return sum(self.by_variant.values(), Counter())


def drifted(
    job: SolveJob, family: Family, costs: Costs, lead_ns: int, ran: RecentBatches | None = None
) -> bool:
    """Whether run times are now planned, or batches sent, so differently that tables are wrong.

    Batches count as often as they run: tables hold many sizes that never do, and these would hide
    that all the others are slower. Where none has run, all sizes count alike.
    """
    left_ns = family.slo_ns - family.reply_ns - lead_ns
    if family.slo_ns and abs(left_ns - job.problem.slo_ns) > DRIFT * family.slo_ns:
        return True
    for variant, then_ns in zip(job.variants, job.problem.latency_ns, strict=True):
        now_ns = stretched(costs, variant, job.kind, job.share)
        if _room(now_ns) != _room(then_ns):
            return True
        sizes = ran.sizes(variant) if ran is not None else Counter()
        counts = [sizes[size] for size in range(1, len(then_ns) + 1)]
        if not any(counts):
            counts = [1] * len(then_ns)
        now, then = _total_ns(now_ns, counts), _total_ns(then_ns, counts)
        if abs(now - then) > DRIFT * then:
            return True
    return False


def _room(times_ns: list[int] | tuple[int, ...]) -> int:
    """Sizes for which memory suffices."""
    return sum(run_ns < NO_ROOM_NS for run_ns in times_ns)


def _total_ns(times_ns: list[int] | tuple[int, ...], counts: list[int]) -> int:
    pairs = zip(times_ns, counts, strict=True)
    return sum(run_ns * count for run_ns, count in pairs if run_ns < NO_ROOM_NS)
