"""How many bits a camera's frames have at each size, learnt from those it has made."""

import math

GROWTH = 1.66
"""Bits of a JPEG grow with this power of its side: larger pictures compress better."""
BITS_PER_PIXEL = 4.0
"""Bits a pixel of a small JPEG, until one has been made."""
SETTLING = 0.25
"""Weight of a frame in the moving average for its side."""
SIDES_MAX = 64
"""Sides that are remembered; a server takes a client's word for the side of its frames, and there
are as many words as integers."""


class FrameBits:
    """Both ends of a network use it: the client for what it encodes, the server for what comes."""

    __slots__ = ("by_side",)

    def __init__(self) -> None:
        self.by_side: dict[int, float] = {}
        """In the order of their last frames."""

    def add(self, side: int, bits: float) -> None:
        """A frame of that side had so many bits."""
        known = self.by_side.pop(side, bits)
        self.by_side[side] = known + SETTLING * (bits - known)
        if len(self.by_side) > SIDES_MAX:
            del self.by_side[next(iter(self.by_side))]

    def of(self, side: int) -> float:
        """Bits of a frame of that side, judged by the nearest side that is known."""
        known = self.by_side.get(side)
        if known is not None:
            return known
        if not self.by_side:
            return BITS_PER_PIXEL * side * side
        nearest = min(self.by_side, key=lambda each: (abs(each - side), each))
        return self.by_side[nearest] * math.pow(side / nearest, GROWTH)
