"""The rate that one router carries, learnt from the CPU time that its requests take. Pure."""

from dataclasses import dataclass
from typing import Final

from fermata.foundation.units import SECOND


@dataclass(frozen=True, slots=True)
class CapacityRules:
    """How R_max is learnt."""

    busy_min: float = 0.35
    """Busy share of a core below which a span says nothing: what a router does without requests
    would count as theirs."""
    busy_max: float = 0.8
    """Busy share of a core up to which a router is loaded: beyond it events queue up."""
    keep: float = 0.7
    """Share of the CPU time counted so far that is left after one more span."""
    start_rps_min: float = 1_000.0
    start_rps_max: float = 200_000.0
    """Limits of the value to start from: a trial on a machine that is held up, or whose clock is
    coarse, says anything."""

    def start_rps(self, carried_rps: float) -> float:
        """R_max to start from, where a trial has carried so much with a whole core."""
        return min(self.start_rps_max, max(self.start_rps_min, self.busy_max * carried_rps))


RULES: Final = CapacityRules()


class RouterCapacity:
    """R_max of routers that are alike. All spans of all of them teach it."""

    def __init__(self, rules: CapacityRules = RULES) -> None:
        self.rules = rules
        self.start_rps: float | None = None
        """R_max until a router was busy enough to tell; None: not known."""
        self.requests = 0.0
        self.cpu_ns = 0.0
        """CPU time that these took, older ones less. So a span counts by its CPU time."""

    @property
    def rate_rps(self) -> float | None:
        """Requests a second that one carries; None until anything is known."""
        if not self.cpu_ns:
            return self.start_rps
        return self.rules.busy_max * self.requests * SECOND / self.cpu_ns

    def on_span(self, requests: int, cpu_ns: int, span_ns: int) -> None:
        """Learn from what one router did in a span of time."""
        rules = self.rules
        if requests <= 0 or cpu_ns < rules.busy_min * span_ns:
            return
        self.requests = rules.keep * self.requests + requests
        self.cpu_ns = rules.keep * self.cpu_ns + cpu_ns
