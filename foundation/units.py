"""Integer nanoseconds: the only unit of time inside."""

from typing import Final

NEVER: Final = 1 << 62
"""A point in time that never comes, yet still fits a machine word after additions."""

SECOND: Final = 1_000_000_000


def ms(milliseconds: float) -> int:
    """Nanoseconds in that many milliseconds; for the edge, where users write milliseconds."""
    return round(milliseconds * 1_000_000)


def seconds(value: float) -> int:
    """Nanoseconds in that many seconds."""
    return round(value * SECOND)
