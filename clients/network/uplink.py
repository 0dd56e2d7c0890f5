"""A client's decisions on a network that changes: which size to send, whether to send at all,
and what will be left of its SLO at the server.

Pure: time is passed in, of the client's own clock, which nobody else's need agree with. The
streaming client and the simulator's cameras drive the same object.
"""

from collections.abc import Sequence
from math import inf

from fermata.clients.clock import time_left_ns
from fermata.clients.network.bandwidth import BandwidthEstimator
from fermata.clients.network.frame_size import USUAL, FrameSizer

UNADVISED = 8
"""Answers without a word on sizes, after which the client goes by its network alone."""
THINNED_SHARE = 0.9
"""Share of the smallest frames that the network carries, which a client sends that has more: with
all of them, each would wait for longer than the one before as soon as the network falls a bit."""


class Uplink:
    """Frames of one camera on their way to a server."""

    def __init__(
        self,
        fps: float,
        slo_ns: int,
        sides: Sequence[int],
        exact: bool = False,
        qualities: Sequence[int] = USUAL,
        thins: bool = True,
    ) -> None:
        """`thins`: leave frames out, evenly, where the network does not carry all of them at any
        size."""
        self.fps = fps
        self.thins = thins
        self.credit = 1.0
        """Frames that may leave by now, where not all may."""
        self.thinned = False
        """The last frame was left out, so that others come in time."""
        self.slo_ns = slo_ns
        self.estimator = BandwidthEstimator()
        self.sizer = FrameSizer(sides, exact, qualities)
        self.unadvised = 0
        """Answers that came before any advice."""
        self.served = True
        """False while the server has no room for this client."""

    def choose_side(self, now_ns: int) -> int:
        """Side of the next frame: as the server asked, or as the network can carry."""
        estimator = self.estimator
        bandwidth_bps = estimator.bandwidth_bps(now_ns)
        backlog_bits = estimator.backlog_bits(now_ns, bandwidth_bps)
        careful_bps = estimator.careful_bps(now_ns)
        # A frame that is longer on its way than the next takes to come would hold that up.
        most_bits = careful_bps / self.fps if self.fps > 0 else inf
        return self.sizer.choose(careful_bps, backlog_bits, estimator.round_trip_ns, most_bits)

    def choose_quality(self, side: int) -> int:
        """Quality of a frame of the side just chosen."""
        return self.sizer.quality_of(side)

    def on_encoded(self, side: int, bits: int, quality: int | None = None) -> None:
        """A frame has been made, at the lowest quality unless given."""
        lowest = self.sizer.qualities[0]
        self.sizer.on_encoded(side, lowest if quality is None else quality, bits)

    def send(self, now_ns: int, frame: int, bits: int, left_ns: int) -> int:
        """A frame that has so much left of its SLO wants to leave; returns what the server has
        of that to answer it, or 0 where it would come too late and is not to be sent."""
        if left_ns <= 0:
            return 0
        estimator = self.estimator
        if not self._is_due(now_ns):
            return 0
        bandwidth_bps = estimator.bandwidth_bps(now_ns)
        waiting_bits = estimator.backlog_bits(now_ns, bandwidth_bps) + bits
        # The answer's way back counts too: nobody at the server knows it.
        way_ns = estimator.round_trip_ns
        at_server_ns = time_left_ns(left_ns, waiting_bits, bandwidth_bps, way_ns)
        if at_server_ns <= 0:
            if estimator.in_flight:
                return 0
            # Nothing is under way that could tell of a better network, so this frame must:
            # a client that sends nothing would believe for ever in what it measured last.
            at_server_ns = max(1, left_ns - way_ns)
        estimator.on_sent(now_ns, frame, bits)
        return at_server_ns

    def rate(self, now_ns: int) -> float:
        """Frames a second that it sends: all of them, or as many of the smallest as its network
        carries."""
        bandwidth_bps = self.estimator.bandwidth_bps(now_ns)
        if bandwidth_bps <= 0 or not self.thins:
            return self.fps
        carried = bandwidth_bps / self.sizer.smallest_bits()
        return self.fps if carried >= self.fps else THINNED_SHARE * carried

    def _is_due(self, now_ns: int) -> bool:
        """Whether the frame that comes now is one of those that the network carries."""
        rate = self.rate(now_ns)
        self.credit = 1.0 if rate >= self.fps else min(2.0, self.credit + rate / self.fps)
        # A network that carries nothing now takes a frame at once.
        self.thinned = self.credit < 1.0 and bool(self.estimator.in_flight)
        if not self.thinned:
            self.credit = max(0.0, self.credit - 1.0)
        return not self.thinned

    def bandwidth_bps(self, now_ns: int) -> float:
        return self.estimator.bandwidth_bps(now_ns)

    @property
    def round_trip_ns(self) -> int:
        """Round trip of an empty message."""
        return self.estimator.round_trip_ns

    def on_received(self, now_ns: int, frame: int) -> None:
        """The server says that it has the frame; the answer is yet to come."""
        self.estimator.on_acknowledged(now_ns, frame)

    def on_answer(self, now_ns: int, frame: int, server_ns: int | None) -> None:
        """An answer, or a refusal; `server_ns` is how long the server says it had the frame."""
        if server_ns is None:
            self.estimator.on_lost(frame)
        else:
            self.estimator.on_acknowledged(now_ns, frame, server_ns)
        self.unadvised += 1
        if self.unadvised == UNADVISED:
            # This server maps no clients: the largest size that leaves it half of the SLO.
            self.sizer.on_advice(self.sizer.sides[-1], self.slo_ns // 2)

    def on_advice(self, input_size: int, network_ns: int, served: bool) -> None:
        self.unadvised = UNADVISED
        self.sizer.on_advice(input_size, network_ns)
        self.served = served

    def on_disconnect(self) -> None:
        """Nobody will answer what was under way."""
        self.estimator.in_flight.clear()
