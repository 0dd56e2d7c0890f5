"""A client's bandwidth, from its own traffic alone."""

from collections import deque

SECOND_NS = 1_000_000_000
WINDOW_NS = SECOND_NS
"""Frames acknowledged within it count (Jellyfish section V: the past second)."""
RECENT = 2
"""Frames that tell of a fall before the window does."""
SHORTEST_NS = 50_000
"""A transfer timed shorter than this says nothing but that it was fast."""


class BandwidthEstimator:
    """Harmonic mean of size over acknowledged round trip. Frames share one uplink and follow one
    another, so a frame's own transfer starts when the one before it has arrived."""

    def __init__(self) -> None:
        self.in_flight: dict[int, tuple[int, int]] = {}
        """(when it was sent, bits) by frame."""
        self.samples: deque[tuple[int, int, int]] = deque()
        """(when it was acknowledged, bits, time of its transfer)."""
        self.acknowledged_at_ns = 0
        self.round_trip_ns = 0
        """Of an empty message: see `on_probe`."""
        self.probed = False

    def on_probe(self, round_trip_ns: int) -> None:
        """A message without a payload has come back: the quickest says what distance costs."""
        if not self.probed or round_trip_ns < self.round_trip_ns:
            self.round_trip_ns = round_trip_ns
            self.probed = True

    def on_sent(self, now_ns: int, frame: int, bits: int) -> None:
        self.in_flight[frame] = (now_ns, bits)

    def on_acknowledged(self, now_ns: int, frame: int) -> None:
        """The server had the frame by then; time that it spent on it must be taken off already."""
        sent = self.in_flight.pop(frame, None)
        if sent is None:
            return
        sent_at_ns, bits = sent
        transfer_ns = now_ns - max(sent_at_ns + self.round_trip_ns, self.acknowledged_at_ns)
        self.acknowledged_at_ns = max(self.acknowledged_at_ns, now_ns)
        self.samples.append((now_ns, bits, max(SHORTEST_NS, transfer_ns)))
        while len(self.samples) > RECENT and self.samples[0][0] < now_ns - WINDOW_NS:
            self.samples.popleft()

    def on_lost(self, frame: int) -> None:
        """Nobody will acknowledge this frame."""
        self.in_flight.pop(frame, None)

    def bandwidth_bps(self, now_ns: int) -> float:
        """Of the past second, or of the last frames where these were slower; 0 where unknown.

        The paper takes the harmonic mean of the second. A fall then shows late, and each frame
        sent at the old size until then misses its deadline, so the last frames may overrule it.
        """
        samples = [each for each in self.samples if each[0] >= now_ns - WINDOW_NS]
        samples = samples or list(self.samples)[-RECENT:]
        if not samples:
            return 0.0
        known_bps = min(harmonic_bps(samples), harmonic_bps(samples[-RECENT:]))
        return self._unless_overdue(now_ns, known_bps)

    def _unless_overdue(self, now_ns: int, known_bps: float) -> float:
        """A frame that is still on its way bounds the bandwidth from above."""
        for sent_at_ns, bits in self.in_flight.values():
            start_ns = max(sent_at_ns + self.round_trip_ns, self.acknowledged_at_ns)
            if now_ns > start_ns:
                known_bps = min(known_bps, bits * SECOND_NS / (now_ns - start_ns))
            break
        return known_bps

    def backlog_bits(self, now_ns: int, bandwidth_bps: float) -> float:
        """Of the frames sent, what a network of this bandwidth has not carried yet."""
        if not self.in_flight:
            return 0.0
        total = sum(bits for _, bits in self.in_flight.values())
        sent_at_ns = next(iter(self.in_flight.values()))[0]
        start_ns = max(sent_at_ns, self.acknowledged_at_ns - self.round_trip_ns)
        return max(0.0, total - bandwidth_bps * (now_ns - start_ns) / SECOND_NS)


def harmonic_bps(samples: list[tuple[int, int, int]]) -> float:
    """Harmonic mean of bits over time, each frame weighing alike."""
    return len(samples) * SECOND_NS / sum(took_ns / bits for _, bits, took_ns in samples)
