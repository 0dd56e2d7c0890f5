"""The server's knowledge of its clients, from their reports."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fermata.clients.network.frame_bits import FrameBits
from fermata.foundation.units import SECOND
from fermata.router.core.events import ClientReport


@dataclass(frozen=True, slots=True)
class ClientRateRules:
    """How rates of clients are measured, and how far they are held to them."""

    over_ns: int = SECOND
    """Frames are counted over so long."""
    burst_ns: int = SECOND // 2
    """Frames of so long may come at once, as after a gap in the network."""
    burst_least: float = 3.0
    """Frames that may always come at once."""


class ClientNeeds(NamedTuple):
    """The needs of one client and its network: plain data for the decision."""

    number: int
    slo_ns: int
    """From the camera to the answer."""
    fps: float
    bandwidth_bps: float
    """0 where it does not know yet."""
    round_trip_ns: int
    accuracy_floor: float
    pinned: int
    """The only variant that may serve it; below 0: any."""
    bits_by_side: dict[int, float]
    """Bits of its frames."""
    source_size: int = 0
    """The largest size that its source can fill; 0: any."""


class KnownClient:
    """One client: what it last said, and how large its frames are."""

    __slots__ = (
        "allowance",
        "bits",
        "counted",
        "counted_from_ns",
        "heard_at_ns",
        "last",
        "measured_fps",
        "planned_fps",
        "refilled_at_ns",
    )
    rules: ClassVar[ClientRateRules] = ClientRateRules()

    def __init__(self, now_ns: int, report: ClientReport) -> None:
        self.bits = FrameBits()
        self.counted = 0
        self.counted_from_ns = now_ns
        self.measured_fps = 0.0
        """Frames a second in the last full second; 0 before."""
        self.planned_fps = max(report.fps, 1.0)
        """Rate that the last decision counts on."""
        self.allowance = self.rules.burst_least
        """Frames that may come now within that rate."""
        self.refilled_at_ns = now_ns
        self.last = report
        self.hear(now_ns, report)

    def hear(self, now_ns: int, report: ClientReport) -> None:
        self.heard_at_ns = now_ns
        self.last = report
        if report.input_size > 0 and report.frame_bits > 0:
            self.bits.add(report.input_size, report.frame_bits)

    @property
    def fps(self) -> float:
        """The rate to plan for: as said, or as measured where that is more."""
        return max(self.last.fps, self.measured_fps)

    def count(self, now_ns: int) -> None:
        """A frame has come."""
        since_ns = now_ns - self.counted_from_ns
        if since_ns >= self.rules.over_ns:
            self.measured_fps = self.counted * SECOND / since_ns
            self.counted, self.counted_from_ns = 0, now_ns
        self.counted += 1

    def admit(self, now_ns: int) -> bool:
        """Whether a frame is within the rate that was planned for; it is used up then."""
        rules, rate = self.rules, self.planned_fps
        most = max(rules.burst_least, rate * rules.burst_ns / SECOND)
        refill = (now_ns - self.refilled_at_ns) * rate / SECOND
        self.allowance = min(most, self.allowance + refill)
        self.refilled_at_ns = now_ns
        if self.allowance < 1.0:
            return False
        self.allowance -= 1.0
        return True

    def wish(self) -> ClientNeeds:
        last = self.last
        return ClientNeeds(
            last.client,
            last.slo_ns,
            self.fps,
            last.bandwidth_bps,
            last.round_trip_ns,
            last.accuracy_floor,
            last.pinned,
            dict(self.bits.by_side),
            last.source_size,
        )
