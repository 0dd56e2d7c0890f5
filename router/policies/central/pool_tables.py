"""Planned run times on the kinds of backends that a pool has, for policies with one queue."""

from collections.abc import Sequence

from fermata.router.core.costs import Costs
from fermata.router.core.source import SourceContext


class PoolTables:
    """Tables of some variants, by size: those of the only kind there is, or of all kinds together.

    Where kinds differ, the load is planned with backends of their mean speed. A request is given up
    only where the quickest kind would be too late for it.
    """

    __slots__ = ("costs", "desk", "kinds", "known", "mean", "quickest", "variants")

    def __init__(self, desk: SourceContext, variants: Sequence[int]) -> None:
        self.desk = desk
        self.costs: Costs = desk.costs
        self.variants = variants
        self.kinds: tuple[int, ...] = (0,)
        """Kinds of backends that are up; the first one of all before any is."""
        self.mean: list[list[int]] = []
        """By variant. With one kind of backends these are the lists that its costs rewrite."""
        self.quickest: list[list[int]] = []
        """On the quickest kind that is up."""
        self.known: list[list[int]] = []
        """On the quickest kind that is known, whether it is up or not."""
        self.renew()

    @property
    def only(self) -> int:
        """The only kind there is; -1 where there are several."""
        return self.kinds[0] if len(self.kinds) == 1 else -1

    def on_kinds(self, kinds: tuple[int, ...]) -> bool:
        """The pool has these from now on; whether that is a change."""
        if kinds == self.kinds:
            return False
        self.kinds = kinds
        self.renew()
        return True

    def renew(self) -> None:
        """Read run times anew, where those of several kinds have to be put together."""
        if len(self.kinds) == 1:
            self.mean = [self._of(variant, self.kinds[0]) for variant in self.variants]
            self.quickest = self.mean
        else:
            counts = [max(1, self.desk.backends_of_kind(kind)) for kind in self.kinds]
            found = [[self._of(variant, kind) for kind in self.kinds] for variant in self.variants]
            self.mean = [_mean(tables, counts) for tables in found]
            self.quickest = [_quickest(tables) for tables in found]
        self.known = self.quickest
        if len(self.costs.by_kind) > len(self.kinds):
            self.known = [
                _quickest([each[variant].plan_ns for each in self.costs.by_kind if variant in each])
                for variant in self.variants
            ]

    def relax_margins(self, variant: int, slo_ns: int) -> None:
        """Doubt a margin that alone lets nothing run in time: no run would ever refute it."""
        for kind in self.kinds:
            cost = self.costs.of(variant, kind)
            if cost.p50_ns[1] <= slo_ns < cost.plan_ns[1]:
                self.costs.relax_margin(variant)
                return

    def _of(self, variant: int, kind: int) -> list[int]:
        return self.costs.of(variant, kind).plan_ns


def _quickest(tables: Sequence[Sequence[int]]) -> list[int]:
    return list(map(min, zip(*tables, strict=False)))


def _mean(tables: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
    """Run times at the mean speed of backends, so many of each table; size 0 is unused."""
    total = sum(counts)
    mean_ns = [0]
    for sizes_ns in zip(*(table[1:] for table in tables), strict=False):
        speed = sum(count / run_ns for run_ns, count in zip(sizes_ns, counts, strict=True))
        mean_ns.append(round(total / speed))
    return mean_ns
