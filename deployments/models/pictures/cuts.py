"""Parts of pictures: which pixels a box takes, wherever it is cut out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.pictures.decoding import Pixels

Bounds = tuple[int, int, int, int]
"""Left, top, right and bottom, in whole pixels."""
CUT_FITS = ("stretch", "crop", "centre", "whole")
"""Fits of pictures that backends cut out themselves."""


def bounds_of(box: NDArray[Any], frame: tuple[int, int]) -> Bounds | None:
    """Every pixel that a box touches, its two corners given with x first; None where it lies
    outside. `frame` is the picture's height and width."""
    height, width = frame
    if not np.isfinite(box).all():
        return None
    left, top = (max(0, int(np.floor(each))) for each in box[:2])
    right, bottom = min(width, int(np.ceil(box[2]))), min(height, int(np.ceil(box[3])))
    return None if left >= right or top >= bottom else (left, top, right, bottom)


def cut_out(picture: Pixels, bounds: Bounds) -> Pixels:
    """These pixels of a picture [rows, columns, 3]."""
    left, top, right, bottom = bounds
    return np.ascontiguousarray(picture[top:bottom, left:right])
