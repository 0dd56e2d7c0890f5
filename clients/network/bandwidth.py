"""A client's bandwidth, from its own traffic alone."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import inf

SECOND_NS = 1_000_000_000
WINDOW_NS = SECOND_NS
"""Frames acknowledged within it count (Jellyfish section V: the past second)."""
RECENT = 2
"""Frames that tell of a fall, or of a rise, before the window does."""
OVERDUE_SHARE = 0.5
"""Of the most that a network can carry by a frame that is overdue, what the next one counts on."""
SHORTEST_NS = 50_000
"""A transfer timed shorter than this says nothing but that it was fast."""

LONG_AGO_NS = -1 << 62


@dataclass(frozen=True, slots=True)
class Sample:
    """One frame that the server has acknowledged."""

    at_ns: int
    """When its acknowledgement would have come, had the server sent it at once."""
    bits: int
    transfer_ns: int
    server_ns: int
    """How long the server had the frame before it acknowledged it."""


class BandwidthEstimator:
    """Harmonic mean of size over acknowledged round trip, the server's own time taken out. Frames
    share one uplink and follow one another, so a frame's own transfer starts when the one before
    it has arrived."""

    def __init__(self) -> None:
        self.in_flight: dict[int, tuple[int, int]] = {}
        """(when it was sent, bits) by frame."""
        self.samples: deque[Sample] = deque()
        self.acknowledged_at_ns = LONG_AGO_NS
        self.round_trip_ns = 0
        """Round trip of an empty message: see `on_probe`."""
        self.probed = False

    def on_probe(self, round_trip_ns: int) -> None:
        """A message without a payload has come back: the quickest says what distance costs."""
        if not self.probed or round_trip_ns < self.round_trip_ns:
            self.round_trip_ns = round_trip_ns
            self.probed = True

    def on_sent(self, now_ns: int, frame: int, bits: int) -> None:
        self.in_flight[frame] = (now_ns, bits)

    def on_acknowledged(self, now_ns: int, frame: int, server_ns: int = 0) -> None:
        """Word has come that the server has the frame; it kept that word for `server_ns`."""
        sent = self.in_flight.pop(frame, None)
        if sent is None:
            return
        sent_at_ns, bits = sent
        at_ns = now_ns - server_ns
        transfer_ns = max(SHORTEST_NS, at_ns - self._start_ns(sent_at_ns))
        self.acknowledged_at_ns = max(self.acknowledged_at_ns, at_ns)
        self.samples.append(Sample(at_ns, bits, transfer_ns, server_ns))
        while len(self.samples) > RECENT and self.samples[0].at_ns < now_ns - WINDOW_NS:
            self.samples.popleft()

    def _start_ns(self, sent_at_ns: int) -> int:
        """When a frame's transfer started, as its acknowledgement will show it."""
        return max(sent_at_ns + self.round_trip_ns, self.acknowledged_at_ns)

    def on_lost(self, frame: int) -> None:
        """Nobody will acknowledge this frame."""
        self.in_flight.pop(frame, None)

    def bandwidth_bps(self, now_ns: int) -> float:
        """Bandwidth of the past second, or of its last frames if the network has changed since; 0
        where unknown.

        The paper takes the harmonic mean of the second. A fall then shows late, and each frame
        sent at the old size until then misses its deadline, so the last frames may overrule it.
        A rise shows late too, and frames are smaller than they could be until then.
        """
        return min(self._known_bps(now_ns), self._most_bps(now_ns))

    def careful_bps(self, now_ns: int) -> float:
        """The bandwidth to size a frame by. One that is overdue only bounds it from above: a frame
        as large as the bound allows would mostly be late as well, and hold up those behind it."""
        known_bps, most_bps = self._known_bps(now_ns), self._most_bps(now_ns)
        return known_bps if most_bps >= known_bps else OVERDUE_SHARE * most_bps

    def _known_bps(self, now_ns: int) -> float:
        """By the frames that the server has acknowledged."""
        if not self.samples:
            return 0.0
        window = [each for each in self.samples if each.at_ns >= now_ns - WINDOW_NS]
        window = _since_rise(window or list(self.samples)[-RECENT:])
        return min(harmonic_bps(window), harmonic_bps(window[-RECENT:]))

    def _most_bps(self, now_ns: int) -> float:
        """By the frame that has been on its way longest, once the server has had its usual time to
        say that it has it."""
        if not self.in_flight or not self.samples:
            return inf
        sent_at_ns, bits = next(iter(self.in_flight.values()))
        server_ns = max(each.server_ns for each in self.samples)
        waited_ns = now_ns - self._start_ns(sent_at_ns) - server_ns
        return bits * SECOND_NS / waited_ns if waited_ns > 0 < bits else inf

    def backlog_bits(self, now_ns: int, bandwidth_bps: float) -> float:
        """Bits of the frames sent that a network of this bandwidth has not carried yet."""
        if not self.in_flight:
            return 0.0
        total = sum(bits for _, bits in self.in_flight.values())
        sent_at_ns = next(iter(self.in_flight.values()))[0]
        start_ns = max(sent_at_ns, self.acknowledged_at_ns - self.round_trip_ns)
        return max(0.0, total - bandwidth_bps * (now_ns - start_ns) / SECOND_NS)


def _since_rise(window: list[Sample]) -> list[Sample]:
    """The last frames, if each was faster than every one before. Noise alone would order them so
    in one of 38 windows of 15 frames."""
    bps = [each.bits / each.transfer_ns for each in window]
    fastest_until = list(accumulate(bps, max))
    slowest_since = bps[-1]
    for start in range(len(bps) - RECENT, RECENT - 1, -1):
        slowest_since = min(slowest_since, bps[start])
        if slowest_since > fastest_until[start - 1]:
            return window[start:]
    return window


def harmonic_bps(samples: Iterable[Sample]) -> float:
    """Harmonic mean of bits over time, each frame weighing alike."""
    inverses = [each.transfer_ns / each.bits for each in samples]
    return len(inverses) * SECOND_NS / sum(inverses)
