"""Conversion of frames to network inputs, as frontends and clients do it."""

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.pictures.resizing.resize import resize_into

Pixels = NDArray[np.uint8]
# EfficientNet's evaluation crop keeps size / (size + 32) of the shorter side.
CROP_MARGIN = 32


def centre_square(frame: Pixels, size: int) -> Pixels:
    """The middle of a frame [h, w, 3] as [3, size, size], as ImageNet models are tested."""
    left, top, side = centre_part(frame.shape[0], frame.shape[1], size)
    square = np.empty((3, size, size), np.uint8)
    box = (left, top, left + side, top + side)
    resize_into(frame, square.transpose(1, 2, 0), box, cubic=True)
    return square


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
    columns, rows = max(1, round(width * ratio)), max(1, round(height * ratio))
    square = np.zeros((3, size, size), np.uint8)
    resize_into(frame, square[:, :rows, :columns].transpose(1, 2, 0))
    return square


def reduction(height: int, width: int, size: int) -> float:
    """Factor by which `whole_frame` scales a frame; below 1 it shrinks."""
    return size / max(height, width)


FITS = {"whole": whole_frame, "centre": centre_square}
"""Fits that make squares of frames of any size."""
