"""Which size a frame is sent at: what the server asked for, or what the network can carry."""

from collections.abc import Sequence
from math import inf

from fermata.clients.frame_bits import FrameBits

SECOND_NS = 1_000_000_000


class FrameSizer:
    """Chooses the next frame's side."""

    def __init__(self, sides: Sequence[int], exact: bool = False) -> None:
        """`exact`: what is asked may be sent too, though it is none of the sides."""
        self.sides = sorted(sides)
        """That it may send, from the smallest."""
        self.exact = exact
        self.side_max = self.sides[-1]
        """The largest that its source can fill."""
        self.asked = self.sides[0]
        self.network_ns = SECOND_NS
        """How long a frame of the asked side may be on its way."""
        self.bits = FrameBits()

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
            return min(self.sides[0], self.side_max)
        room_bits = (self.network_ns - round_trip_ns) * bandwidth_bps / SECOND_NS - backlog_bits
        return self._largest(min(room_bits, most_bits))

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
