"""Which variants a client's accuracy floor and pin leave."""

from fermata.router.policies.family import Family

KNOWN_MAX = 1024
"""Wishes remembered; clients may make up as many as they like."""


class AllowedVariants:
    """Turns what a request says into variants, once for each thing that is said."""

    def __init__(self, families: tuple[Family, ...], names: tuple[str, ...]) -> None:
        self.families = families
        self.names = names
        """Accuracies of variants, by the engine's number."""
        self.known: dict[tuple[int, float, str], frozenset[int]] = {}

    def allowed(self, application: int, floor: float, pinned: str) -> frozenset[int] | None:
        """The variants that may serve such a request; None: every one. Empty where nobody has
        the pinned name, or no variant is known to reach the floor."""
        if floor <= 0.0 and not pinned:
            return None
        wish = application, floor, pinned
        found = self.known.get(wish)
        if found is None:
            if len(self.known) >= KNOWN_MAX:
                self.known.clear()
            found = self.known[wish] = self._find(self.families[application], floor, pinned)
        return found

    def _find(self, family: Family, floor: float, pinned: str) -> frozenset[int]:
        reached = family.above(floor) if floor > 0.0 else frozenset(family.variants)
        if not pinned:
            return reached
        return frozenset(variant for variant in reached if self.names[variant] == pinned)
