"""Conversion of frames to network inputs, as frontends and clients do it."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
# EfficientNet's evaluation crop keeps size / (size + 32) of the shorter side.
CROP_MARGIN = 32


def centre_square(frame: Pixels, size: int) -> Pixels:
    """The middle of a frame [h, w, 3] as [3, size, size], as ImageNet models are tested."""
    left, top, side = centre_part(frame.shape[0], frame.shape[1], size)
    box = (left, top, left + side, top + side)
    picture = Image.fromarray(frame).resize((size, size), Image.Resampling.BICUBIC, box=box)
    return _channels_first(picture)


def centre_part(height: int, width: int, size: int) -> tuple[int, int, int]:
    """(left, top, side) of the square that `centre_square` shows of a frame."""
    side = max(1, min(height, width) * size // (size + CROP_MARGIN))
    return (width - side) // 2, (height - side) // 2, side


def whole_frame(frame: Pixels, size: int) -> Pixels:
    """All of a frame [h, w, 3] in the top left of [3, size, size], its shape kept, the rest black.

    A point (x, y) of the result is point (x / r, y / r) of the frame with r = `reduction(...)`.
    """
    height, width = frame.shape[:2]
    ratio = reduction(height, width, size)
    fitted = (max(1, round(width * ratio)), max(1, round(height * ratio)))
    square = Image.new("RGB", (size, size))
    square.paste(Image.fromarray(frame).resize(fitted, Image.Resampling.BILINEAR))
    return _channels_first(square)


def reduction(height: int, width: int, size: int) -> float:
    """Factor by which `whole_frame` scales a frame; below 1 it shrinks."""
    return size / max(height, width)


def _channels_first(picture: Image.Image) -> Pixels:
    return np.ascontiguousarray(np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1))


FITS = {"whole": whole_frame, "centre": centre_square}
"""Fits that make squares of frames of any size."""
