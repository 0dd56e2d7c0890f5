"""The server's knowledge of its clients, from their reports."""

from typing import NamedTuple

from fermata.clients.frame_bits import FrameBits
from fermata.router.core.events import ClientReport


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

    __slots__ = ("bits", "heard_at_ns", "last")

    def __init__(self, now_ns: int, report: ClientReport) -> None:
        self.bits = FrameBits()
        self.last = report
        self.hear(now_ns, report)

    def hear(self, now_ns: int, report: ClientReport) -> None:
        self.heard_at_ns = now_ns
        self.last = report
        if report.input_size > 0 and report.frame_bits > 0:
            self.bits.add(report.input_size, report.frame_bits)

    def wish(self) -> ClientNeeds:
        last = self.last
        return ClientNeeds(
            last.client,
            last.slo_ns,
            last.fps,
            last.bandwidth_bps,
            last.round_trip_ns,
            last.accuracy_floor,
            last.pinned,
            dict(self.bits.by_side),
            last.source_size,
        )
