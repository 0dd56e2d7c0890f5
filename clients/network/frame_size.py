"""Size and JPEG quality of a frame: what the server asked for, or what the network can carry.

Quality gives way before size: at as many bits, detectors find more in a larger frame of lower
quality (`benchmarks/camera_quality.py`).
"""

from collections.abc import Sequence
from math import inf

from fermata.clients.network.frame_bits import FrameBits
from fermata.clients.network.jpeg_quality import cost

SECOND_NS = 1_000_000_000
USUAL = (80,)
FINER_SHARE = 0.8
"""Part of the bits that the network carries in time which a frame of more than the lowest quality
may have: what a quality costs is known within 15 %."""


class FrameSizer:
    """Chooses the next frame's side and quality."""

    def __init__(
        self, sides: Sequence[int], exact: bool = False, qualities: Sequence[int] = USUAL
    ) -> None:
        """`exact`: what is asked may be sent too, though it is none of the sides; `qualities` from
        the lowest."""
        self.sides = sorted(sides)
        """That it may send, from the smallest."""
        self.exact = exact
        self.side_max = self.sides[-1]
        """The largest that its source can fill."""
        self.asked = self.sides[0]
        self.network_ns = SECOND_NS
        """How long a frame of the asked side may be on its way."""
        self.bits = FrameBits()
        """Bits of frames at the lowest quality."""
        self.qualities = qualities
        self.room_bits = inf
        """Bits that the network carries in time, when a side was last chosen."""

    def on_encoded(self, side: int, quality: int, bits: float) -> None:
        """A frame has been made."""
        self.bits.add(side, self.least_bits(quality, bits))

    def least_bits(self, quality: int, bits: float) -> float:
        """Bits of a frame at the lowest quality, by those that it has at this one."""
        return bits * cost(self.qualities[0]) / cost(quality)

    def smallest_bits(self) -> float:
        """Bits of the smallest frame that it may send, at the lowest quality."""
        return self.bits.of(min(self.sides[0], self.side_max))

    def quality_of(self, side: int) -> int:
        """The best quality that a frame of the side last chosen has room for; the best of all
        while nothing is known of the network."""
        lowest, *finer = self.qualities
        least = self.bits.of(side) / cost(lowest)
        fitting = [each for each in finer if least * cost(each) <= FINER_SHARE * self.room_bits]
        return max(fitting, default=lowest)

    def on_advice(self, input_size: int, network_ns: int) -> None:
        """The server asks for this side from now on."""
        self.asked = input_size
        self.network_ns = network_ns

    def choose(
        self,
        bandwidth_bps: float,
        backlog_bits: float,
        round_trip_ns: int,
        most_bits: float = inf,
    ) -> int:
        """The asked side, or the largest below it that the network carries in time and that has no
        more bits than these."""
        if bandwidth_bps <= 0:
            self.room_bits = inf
            return min(self.sides[0], self.side_max)
        room_bits = (self.network_ns - round_trip_ns) * bandwidth_bps / SECOND_NS - backlog_bits
        self.room_bits = min(room_bits, most_bits)
        return self._largest(self.room_bits)

    def choose_for_throughput(self, bandwidth_bps: float, fps: float) -> int:
        """The largest side whose frames the network carries as fast as they come, whatever each
        of them takes: data adaptation without a word from the server (section VI-C)."""
        return self._largest(bandwidth_bps / fps) if bandwidth_bps > 0 else self.sides[0]

    def _largest(self, room_bits: float) -> int:
        most = min(self.asked, self.side_max)
        chosen = min(self.sides[0], self.side_max)
        for side in (*self.sides, most) if self.exact else self.sides:
            # A frame's bits differ from the last one's by a little: that is no reason to shrink.
            if chosen < side <= most and self.bits.of(side) <= room_bits * 1.001 + 1:
                chosen = side
        return chosen
