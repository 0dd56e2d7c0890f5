"""Variants that a client's accuracy floor and pin leave."""

from fermata.router.policies.family import Family


class AllowedVariants:
    """Turns the limits of a request into variants, once for each combination."""

    def __init__(
        self, families: tuple[Family, ...], names: tuple[str, ...], known_max: int = 1024
    ) -> None:
        """`known_max` answers are kept; clients may ask for as many as they like."""
        self.families = families
        self.names = names
        """Names of variants, by the engine's number."""
        self.known_max = known_max
        self.known: dict[tuple[int, float, str], frozenset[int]] = {}

    def allowed(self, application: int, floor: float, pinned: str) -> frozenset[int] | None:
        """The variants that may serve such a request; None: every one. Empty where no variant has
        the pinned name, or none is known to reach the floor."""
        if floor <= 0.0 and not pinned:
            return None
        wish = application, floor, pinned
        found = self.known.get(wish)
        if found is None:
            if len(self.known) >= self.known_max:
                self.known.clear()
            found = self.known[wish] = self._find(self.families[application], floor, pinned)
        return found

    def _find(self, family: Family, floor: float, pinned: str) -> frozenset[int]:
        reached = family.above(floor) if floor > 0.0 else frozenset(family.variants)
        if not pinned:
            return reached
        return frozenset(variant for variant in reached if self.names[variant] == pinned)
