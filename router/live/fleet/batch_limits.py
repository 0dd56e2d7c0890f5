"""Batch sizes that the memory of backends suffices for."""

from collections.abc import Iterable, Sequence

from fermata.router.assembly import Assembly


class BatchSizeLimits:
    """The largest batch of each variant that fits, here and in general."""

    def __init__(self, built: Assembly) -> None:
        self.costs = built.engine.costs
        self.numbers = {name: variant for variant, name in enumerate(built.variants)}
        self.told: dict[int, dict[int, int]] = {}
        """By backend, then by variant that it has; 0: as large as the profile says."""
        self.counts: dict[int, dict[int, int]] = {}
        """By variant, then by size: backends that have told it."""

    def on_ready(
        self, backend: int, variants: Iterable[str], limits: Sequence[tuple[str, int]]
    ) -> None:
        sizes = {**dict.fromkeys(variants, 0), **dict(limits)}
        known = {self.numbers[name]: size for name, size in sizes.items() if name in self.numbers}
        before = self.told.pop(backend, {})
        if known:
            self.told[backend] = known
        self.costs.limit_on(backend, {variant: size for variant, size in known.items() if size})
        for variant, size in before.items() - known.items():
            self._count(variant, size, -1)
        for variant, size in known.items() - before.items():
            self._count(variant, size, 1)
        for variant in {variant for variant, _ in before.items() ^ known.items()}:
            self.costs.limit(variant, self._usual(variant))

    def _count(self, variant: int, size: int, change: int) -> None:
        sizes = self.counts.setdefault(variant, {})
        sizes[size] = sizes.get(size, 0) + change
        if not sizes[size]:
            del sizes[size]

    def _usual(self, variant: int) -> int:
        """The batch size that at least half of its backends have room for: batches are planned
        before it is certain where they run, and one that is short of memory is not to make all of
        them small."""
        counts = self.counts.get(variant, {})
        half = sum(counts.values()) // 2
        passed = 0
        for size in sorted(size for size in counts if size):
            passed += counts[size]
            if passed > half:
                return size
        return 0

    def on_gone(self, backend: int) -> None:
        self.on_ready(backend, (), ())
