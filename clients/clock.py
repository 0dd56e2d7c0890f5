"""Clocks are never assumed synchronised: what a frame has spent is told as a duration."""


class ClockOffset:
    """The server's clock less ours, from small probes. The quickest one is the best: whatever
    delayed the others, delayed one way more than the other."""

    def __init__(self) -> None:
        self.round_trip_ns = -1
        """Of the quickest probe; -1 before the first."""
        self.offset_ns = 0

    def on_probe(self, sent_at_ns: int, server_at_ns: int, back_at_ns: int) -> None:
        """A probe left us, was at the server and came back; the server's time is on its clock."""
        round_trip_ns = back_at_ns - sent_at_ns
        if self.round_trip_ns < 0 or round_trip_ns <= self.round_trip_ns:
            self.round_trip_ns = round_trip_ns
            self.offset_ns = server_at_ns - (sent_at_ns + back_at_ns) // 2

    def on_server(self, local_ns: int) -> int:
        """Our point in time on the server's clock; off by half the quickest round trip at most."""
        return local_ns + self.offset_ns


def time_left_ns(slo_ns: int, frame_bits: float, bandwidth_bps: float, spent_ns: int = 0) -> int:
    """The paper's O - s / W: what is left of an SLO once the frame has come over the network,
    where no clock says it better; `spent_ns` went by before it was sent."""
    if bandwidth_bps <= 0:
        return slo_ns - spent_ns
    return slo_ns - spent_ns - int(frame_bits / bandwidth_bps * 1_000_000_000)
