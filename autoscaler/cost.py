"""The cost of serving: backend time, shared among those it served."""

from collections.abc import Mapping
from dataclasses import dataclass

HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class CostShare:
    """The part of one application, or of one stream, in the whole."""

    name: str
    backend_hours: float
    """Time its batches ran, and its part of the time in which none ran."""
    busy_hours: float
    cost: float


def allocate_cost(
    busy_ns: Mapping[str, float], allocated_ns: float, price_per_hour: float
) -> tuple[CostShare, ...]:
    """Every part of the allocated time.

    Idle and start-up time is shared in proportion to the time used; where nothing ran, alike.
    """
    used = sum(busy_ns.values())
    parts: list[CostShare] = []
    for name, busy in busy_ns.items():
        share = busy / used if used > 0 else 1.0 / len(busy_ns)
        hours = share * allocated_ns / HOUR_NS
        parts.append(CostShare(name, hours, busy / HOUR_NS, hours * price_per_hour))
    return tuple(parts)
