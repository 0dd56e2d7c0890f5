"""The backends of a file: so many of one kind, or groups of several kinds."""

from dataclasses import dataclass

from fermata.foundation.sections import Count, Positive, keys, read_section
from fermata.foundation.validation import Fields


@dataclass(frozen=True, slots=True)
class BackendGroup:
    """Backends of one kind."""

    count: Count
    """Backends of this group."""
    kind: str = ""
    """Kind of device; variants may have a profile of their own for it."""
    slower: Positive = 1.0
    """Run times over those of the variant, where it has no profile for this kind."""

    @property
    def same_as(self) -> tuple[str, float]:
        """Kind and slowness: equal for groups with the same run times."""
        return self.kind, self.slower


def read_backends(row: Fields, key: str) -> tuple[BackendGroup, ...]:
    """The groups under a key; a number is one group."""
    if not isinstance(row.data.get(key), list):
        return (BackendGroup(row.integer(key, low=1)),)
    rows = row.rows(key, keys(BackendGroup))
    if not rows:
        row.integer(key, low=1)
    return tuple(read_section(BackendGroup, each) for each in rows)


def kinds_of(groups: tuple[BackendGroup, ...]) -> tuple[BackendGroup, ...]:
    """The first group of each kind, by the kind's number."""
    found: dict[tuple[str, float], BackendGroup] = {}
    for group in groups:
        found.setdefault(group.same_as, group)
    return tuple(found.values())


def kind_numbers(groups: tuple[BackendGroup, ...]) -> tuple[int, ...]:
    """By backend: the number of its kind."""
    order = [group.same_as for group in kinds_of(groups)]
    return tuple(order.index(group.same_as) for group in groups for _ in range(group.count))
