"""Pages and lines of text at the sizes that PP-OCR's networks take.

Both have the pixels that OpenCV gives the package's own pipeline, but for rounding.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.pictures.picture import Pixels, reduction

Array = NDArray[Any]
STEP = 32
"""Sides of a page are multiples of it: the network halves them five times."""
LENGTH_MIN = 320
"""Columns that readers take at least: shorter lines were trained with grey beside them."""
GREY = 127
"""Readers take it for nothing: their pixels go from -1 to 1."""


def page_size(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width of a page whose longer side is `size`, a multiple of 32."""
    ratio = reduction(height, width, size)
    down, across = (max(STEP, round(int(each * ratio) / STEP) * STEP) for each in (height, width))
    return down, across


def fit_page(page: Pixels, size: int) -> Pixels:
    """All of a picture in the top left of a square, the rest black."""
    height, width = page_size(page.shape[0], page.shape[1], size)
    fitted = np.zeros((size, size, 3), np.uint8)
    fitted[:height, :width] = _scale(page, height, width)
    return fitted


def fit_line(line: Pixels, height: int, width: int) -> Pixels:
    """A line of text at this height, at the left of a picture of this width.

    It keeps its proportions unless it is too long; the rest is grey.
    """
    exact = height * line.shape[1] / line.shape[0]
    # The package rounds up, but not beyond the longest line of a picture, which it rounds down.
    long = min(width, math.ceil(exact) if exact <= LENGTH_MIN else math.floor(exact))
    fitted = np.full((height, width, 3), GREY, np.uint8)
    fitted[:, :long] = _scale(line, height, long)
    return fitted


def _scale(picture: Pixels, height: int, width: int) -> Array:
    """Bilinear between the nearest two pixels of each axis, however much it shrinks.

    Shares are whole 2048ths and sums are cut off, as OpenCV does it: networks see the difference.
    """
    if picture.shape[:2] == (height, width):
        return picture
    left, right, across = (np.repeat(each, 3) for each in _neighbours(picture.shape[1], width))
    top, bottom, down = _neighbours(picture.shape[0], height)
    # Numbers of a row, not pixels: numpy gathers those three times as fast.
    flat, channel = picture.reshape(len(picture), -1), np.tile(np.arange(3), width)
    rows: Array = np.multiply(flat.take(left * 3 + channel, axis=1), 2048 - across, dtype=np.int32)
    rows += np.multiply(flat.take(right * 3 + channel, axis=1), across, dtype=np.int32)
    rows >>= 4
    upper: Array = rows.take(top, axis=0)
    lower: Array = rows.take(bottom, axis=0)
    upper *= (2048 - down)[:, None]
    lower *= down[:, None]
    upper >>= 16
    upper += lower >> 16
    upper += 2
    upper >>= 2
    return upper.reshape(height, width, 3)


def _neighbours(length: int, wanted: int) -> tuple[Array, Array, Array]:
    """Pixels before and after the middle of each scaled one, and the share of the second."""
    place = ((np.arange(wanted) + 0.5) * (length / wanted) - 0.5).astype(np.float32)
    before = np.floor(place)
    share = np.rint((place - before) * np.float32(2048)).astype(np.int32)
    first = before.astype(np.intp)
    return first.clip(0), (first + 1).clip(0, length - 1), share
