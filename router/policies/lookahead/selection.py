"""Which of the tables that have been solved is the one to use."""

from dataclasses import dataclass

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Load, backends and run times that a table is solved for."""

    marks: tuple[float, ...]
    """Load, part, dispersion and caution, in steps; whole ones where a table is solved for them."""
    fixed: Key
    """Backends and run times."""

    @property
    def key(self) -> Key:
        return (*self.marks, *self.fixed)

    def rounded(self) -> "Conditions":
        """Those of the nearest table."""
        return Conditions(tuple(float(round(each)) for each in self.marks), self.fixed)

    def distance(self, other: "Conditions") -> float:
        """Steps from one load to the other."""
        return sum(abs(a - b) for a, b in zip(self.marks, other.marks, strict=True))


class TableSelection:
    """The conditions of the table in use, and of the one that is being solved."""

    def __init__(self, moved: float) -> None:
        """The table in use is left when a mark has moved by so many steps."""
        self.moved = moved
        self.used: Conditions | None = None
        self.asked: Conditions | None = None

    def fits(self, now: Conditions) -> bool:
        """Whether the table in use is of such a load, such backends and run times."""
        used = self.used
        if used is None or used.fixed != now.fixed:
            return False
        pairs = zip(now.marks, used.marks, strict=True)
        return all(abs(a - b) < self.moved for a, b in pairs)

    def is_better(self, solved: Conditions, now: Conditions) -> bool:
        """Whether a table that has been solved is to be used, though leads and run times may have
        moved a little meanwhile: where the one in use does not fit, and is no nearer. That may have
        been taken since this one was asked for."""
        if self.used is None:
            return True
        return not self.fits(now) and solved.distance(now) <= self.used.distance(now)
