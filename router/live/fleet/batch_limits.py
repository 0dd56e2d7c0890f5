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

    def on_ready(
        self, backend: int, variants: Iterable[str], limits: Sequence[tuple[str, int]]
    ) -> None:
        sizes = {**dict.fromkeys(variants, 0), **dict(limits)}
        known = {self.numbers[name]: size for name, size in sizes.items() if name in self.numbers}
        before = self.told.pop(backend, {})
        if known:
            self.told[backend] = known
        self.costs.limit_on(backend, {variant: size for variant, size in known.items() if size})
        for variant in known.keys() | before.keys():
            self.costs.limit(variant, self._usual(variant))

    def _usual(self, variant: int) -> int:
        """The batch size that at least half of its backends have room for: batches are planned
        before it is certain where they run, and one that is short of memory is not to make all of
        them small."""
        sizes = [each[variant] for each in self.told.values() if variant in each]
        short = sorted(size for size in sizes if size)
        return short[len(sizes) // 2] if len(short) > len(sizes) // 2 else 0

    def on_gone(self, backend: int) -> None:
        self.on_ready(backend, (), ())
