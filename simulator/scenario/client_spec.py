"""Clients of an application, as a scenario says them."""

from dataclasses import dataclass

from fermata.foundation.check import check_positive, refuse
from fermata.foundation.units import ms
from fermata.foundation.validation import Fields
from fermata.profiles.profile import Profile

CLIENT_KEYS = (
    "count",
    "slo_ms",
    "fps",
    "weight",
    "priority",
    "trace",
    "accuracy_floor",
    "pinned",
)


@dataclass(frozen=True, slots=True)
class ClientsSpec:
    """Clients of one application that are alike."""

    count: int
    slo_ns: int
    fps: float | None
    weight: float
    priority: int
    trace: str = ""
    """A trace of the scenario's network; empty: the first."""
    accuracy_floor: float = 0.0
    """No variant below it may serve them."""
    pinned: str = ""
    """The only variant that may; empty: any."""


def check_reachable(name: str, slo_ms: float, fastest_ns: int) -> None:
    """Refuse an SLO that the fastest variant cannot meet."""
    if ms(slo_ms) < fastest_ns:
        rule = f"no batch of 1 can meet it; must be at least {fastest_ns / 1e6:g} ms"
        refuse(name, slo_ms, rule)


def read_clients(row: Fields, slo_ms: float, variants: tuple[Profile, ...]) -> ClientsSpec:
    """A group of clients of an application with this SLO and these variants."""
    own_slo_ms = row.positive("slo_ms") or slo_ms
    check_reachable(row.name("slo_ms"), own_slo_ms, min(each.latency_ns(1) for each in variants))
    pinned = row.text("pinned", "")
    if pinned and pinned not in [variant.name for variant in variants]:
        refuse(row.name("pinned"), pinned, "is not among the variants")
    weight = row.number("weight", 1)
    check_positive(row.name("weight"), weight)
    return ClientsSpec(
        count=row.integer("count", 1, low=1),
        slo_ns=ms(own_slo_ms),
        fps=row.positive("fps"),
        weight=weight,
        priority=row.integer("priority", 0),
        trace=row.text("trace", ""),
        accuracy_floor=row.fraction("accuracy_floor") or 0.0,
        pinned=pinned,
    )
