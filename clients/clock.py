"""Clocks are never assumed synchronised: a frame says what it has left, not when it was made."""

SECOND_NS = 1_000_000_000


def time_left_ns(left_ns: int, waiting_bits: float, bandwidth_bps: float, way_ns: int = 0) -> int:
    """The paper's O - s / W: what will be left of an SLO once the frame is at the server.

    `left_ns` is left now; `waiting_bits` go before it or are its own; `way_ns` is the distance.
    """
    if bandwidth_bps <= 0:
        return left_ns - way_ns
    return left_ns - way_ns - int(waiting_bits / bandwidth_bps * SECOND_NS)
