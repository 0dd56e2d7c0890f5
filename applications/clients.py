"""Clients of an application, for simulations."""

from dataclasses import dataclass

from fermata.foundation.sections import Count, Fraction, Positive, PositiveTime, Whole


@dataclass(frozen=True, slots=True)
class ClientsSpec:
    """Clients of one application that are alike."""

    count: Count = 1
    """How many."""
    slo_ns: PositiveTime = 0
    """Their SLO; the application's where absent."""
    fps: Positive | None = None
    """Frames a second of each."""
    weight: Positive = 1.0
    """A stream of weight 2 loses half as often."""
    priority: Whole = 0
    """1 is refused last, 0 first."""
    trace: str = ""
    """Their uplink in the scenario's network; the first where absent."""
    accuracy_floor: Fraction = 0.0
    """No variant below it may serve them."""
    pinned: str = ""
    """The only variant that may serve them; any where absent."""
