"""Room for batches: what backends say that their memory suffices for."""

from collections.abc import Sequence

from router.assembly import Assembly


class Room:
    """The largest batch of each variant that fits wherever it may run."""

    def __init__(self, built: Assembly) -> None:
        self.costs = built.engine.costs
        self.numbers = {name: variant for variant, name in enumerate(built.variants)}
        self.told: dict[int, dict[int, int]] = {}
        """By backend, then by variant."""

    def on_ready(self, backend: int, limits: Sequence[tuple[str, int]]) -> None:
        known = {self.numbers[name]: size for name, size in limits if name in self.numbers}
        before = self.told.pop(backend, {})
        if known:
            self.told[backend] = known
        for variant in known.keys() | before.keys():
            # Batches are formed before it is certain where they run.
            sizes = [each[variant] for each in self.told.values() if variant in each]
            self.costs.limit(variant, min(sizes, default=0))

    def on_gone(self, backend: int) -> None:
        self.on_ready(backend, ())
