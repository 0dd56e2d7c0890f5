"""Times of a live source's frames, by the source's own clock."""

from dataclasses import dataclass
from typing import ClassVar

from fermata.foundation.units import ms, seconds


@dataclass(frozen=True, slots=True)
class SourceClockRules:
    """How far a source's times are believed."""

    drift_ns_per_s: int = ms(0.2)
    """By so much two clocks may part in a second."""
    jump_ns: int = seconds(10)
    """A frame that would be older has times of another beginning."""


class SourceClock:
    """Tells when frames were taken. Only the source knows, on a clock of its own: the frame that
    came soonest after its time tells how far the two clocks are apart. Pure."""

    rules: ClassVar[SourceClockRules] = SourceClockRules()

    def __init__(self) -> None:
        self.apart_ns: int | None = None
        """Our time less the source's, of the frame that came soonest; None before the first."""
        self.last_ns = 0
        """The source's time of the last frame."""

    def captured_at_ns(self, now_ns: int, source_ns: int | None) -> int:
        """Time of a frame that came now, and was taken at `source_ns` by the source's clock."""
        if source_ns is None:
            return now_ns
        apart_ns = now_ns - source_ns
        rules, known = self.rules, self.apart_ns
        if known is not None:
            since_ns = source_ns - self.last_ns
            known += since_ns * rules.drift_ns_per_s // seconds(1)
            if since_ns < 0 or apart_ns - known > rules.jump_ns:
                known = None
        self.last_ns = source_ns
        self.apart_ns = apart_ns if known is None else min(known, apart_ns)
        return source_ns + self.apart_ns
