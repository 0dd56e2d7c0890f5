"""Makes a measured column non-decreasing, and tells what that changed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One value that was raised."""

    index: int
    before: float
    after: float


def monotone(
    values: Sequence[float], floor: Sequence[float] | None = None
) -> tuple[tuple[float, ...], tuple[Change, ...]]:
    """The running maximum of `values`, nowhere below `floor`, with each value it raised.

    A larger batch that measures faster is noise (or a faster kernel that padding would also reach),
    and schedulers search latency tables by bisection, so the table must not fall.
    """
    raised: list[float] = []
    changes: list[Change] = []
    for index, value in enumerate(values):
        after = value if floor is None else max(value, floor[index])
        if raised:
            after = max(after, raised[-1])
        if after != value:
            changes.append(Change(index, value, after))
        raised.append(after)
    return tuple(raised), tuple(changes)
