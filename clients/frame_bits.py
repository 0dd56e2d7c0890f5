"""How many bits a camera's frames have at each size, learnt from those it has made."""

import math

GROWTH = 1.66
"""Bits of a JPEG grow with this power of its side: larger pictures compress better."""
BITS_PER_PIXEL = 4.0
"""Of a small JPEG, until one has been made."""
SETTLING = 0.25
"""Weight of a frame in the moving average for its side."""


class FrameBits:
    """Both ends of a network use it: the client for what it encodes, the server for what comes."""

    __slots__ = ("by_side",)

    def __init__(self) -> None:
        self.by_side: dict[int, float] = {}

    def add(self, side: int, bits: float) -> None:
        """A frame of that side had so many bits."""
        known = self.by_side.get(side, bits)
        self.by_side[side] = known + SETTLING * (bits - known)

    def of(self, side: int) -> float:
        """Bits of a frame of that side, judged by the nearest side that is known."""
        known = self.by_side.get(side)
        if known is not None:
            return known
        if not self.by_side:
            return BITS_PER_PIXEL * side * side
        nearest = min(self.by_side, key=lambda each: (abs(each - side), each))
        return self.by_side[nearest] * math.pow(side / nearest, GROWTH)
