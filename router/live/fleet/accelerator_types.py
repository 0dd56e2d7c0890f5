"""Accelerator types of backends, each with run times of its own."""

from fermata.router.assembly import Assembly
from fermata.router.links.messages import Ready


class AcceleratorTypes:
    """The engine's numbers of accelerator types, in the order in which they are met."""

    def __init__(self, built: Assembly, first: str) -> None:
        """`first` is the type whose run times the engine was built with; empty: the first met."""
        self.built = built
        self.numbers: dict[str, int] = {first: 0} if first else {}

    def name_of(self, number: int) -> str:
        """The type with that number; empty where no backend of it has been met."""
        return next((name for name, each in self.numbers.items() if each == number), "")

    def number_of(self, ready: Ready) -> int:
        """The number of a backend's type; the first of a type brings the run times that differ."""
        if ready.kind in self.numbers:
            return self.numbers[ready.kind]
        number = self.numbers[ready.kind] = len(self.numbers)
        if number == 0:
            return 0
        costs = self.built.engine.costs
        told = {variant: (list(p50_ns), list(p99_ns)) for variant, p50_ns, p99_ns in ready.costs}
        for variant, name in enumerate(self.built.variants):
            # The configuration of a variant holds for every type.
            p50_ns, p99_ns = told.get(name, (costs.of(variant).p50_ns[1:], None))
            costs.add(variant, p50_ns, p99_ns, kind=number)
        return number
