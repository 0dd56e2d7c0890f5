"""Places of a part of a picture in the whole, whichever way it was cut out or turned."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SAME = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class PixelMap:
    """Takes points of one picture to those of another."""

    numbers: tuple[float, ...] = SAME
    """The matrix [3, 3] of a perspective, row by row."""

    @staticmethod
    def of(matrix: Array) -> "PixelMap":
        return PixelMap(tuple(matrix.reshape(-1).tolist()))

    @staticmethod
    def moved(across: float, down: float) -> "PixelMap":
        """The map of a part whose upper left corner lies there."""
        return PixelMap((1.0, 0.0, float(across), 0.0, 1.0, float(down), 0.0, 0.0, 1.0))

    @staticmethod
    def turned(quarters: int, height: int, width: int) -> "PixelMap":
        """The map of a picture of that size that was turned by quarters, counterclockwise."""
        across, down = float(width), float(height)
        ways = (
            SAME,
            (0.0, -1.0, across, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0),
            (-1.0, 0.0, across, 0.0, -1.0, down, 0.0, 0.0, 1.0),
            (0.0, 1.0, 0.0, -1.0, 0.0, down, 0.0, 0.0, 1.0),
        )
        return PixelMap(ways[quarters % 4])

    @property
    def matrix(self) -> Array:
        return np.array(self.numbers).reshape(3, 3)

    @property
    def keeps_boxes(self) -> bool:
        """Upright boxes are upright boxes again."""
        a, b, _, c, d, _, *rest = self.numbers
        return rest == [0.0, 0.0, 1.0] and ((b == 0.0 and c == 0.0) or (a == 0.0 and d == 0.0))

    def after(self, first: "PixelMap") -> "PixelMap":
        """The map of what `first` takes to this one's picture."""
        if first.numbers == SAME:
            return self
        return first if self.numbers == SAME else PixelMap.of(self.matrix @ first.matrix)

    def points(self, given: Array) -> Array:
        """Points [..., 2], x first, in the other picture."""
        x, y = given[..., 0], given[..., 1]
        a, b, c, d, e, f, g, h, i = self.numbers
        far = g * x + h * y + i
        return np.stack(((a * x + b * y + c) / far, (d * x + e * y + f) / far), axis=-1)

    def corners(self, given: Array) -> Array:
        """Boxes [..., 4] of two corners, x first, as four corners [..., 4, 2] each."""
        return self.points(given[..., [0, 1, 2, 1, 2, 3, 0, 3]].reshape(*given.shape[:-1], 4, 2))

    def boxes(self, given: Array) -> Array:
        """Boxes [..., 4] of two corners, x first, as the upright ones around them there."""
        corners = self.corners(given)
        return np.concatenate((corners.min(axis=-2), corners.max(axis=-2)), axis=-1)


WHOLE = PixelMap()
"""The map of a picture that is the whole one."""
