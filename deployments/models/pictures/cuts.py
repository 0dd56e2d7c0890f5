"""Parts of pictures: which pixels a box takes, wherever it is cut out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.pictures.decoding import Pixels

Bounds = tuple[int, int, int, int]
"""Left, top, right and bottom, in whole pixels."""
CUT_FITS = ("stretch", "crop", "centre", "whole")
"""Fits of pictures that backends cut out themselves."""


def all_bounds(boxes: NDArray[Any], frame: tuple[int, int]) -> list[Bounds | None]:
    """Every pixel that each of these boxes [count, 4] touches, their two corners given with x
    first; None where one lies outside. `frame` is the picture's height and width."""
    height, width = frame
    known = np.isfinite(boxes).all(axis=-1)
    given = boxes if known.all() else np.where(known[:, None], boxes, 0.0)
    whole = np.concatenate((np.floor(given[:, :2]), np.ceil(given[:, 2:])), axis=-1)
    # Cut at the edges before they become whole numbers: boxes may lie any far away.
    edges = np.clip(whole, 0, (width, height, width, height)).astype(np.int64).tolist()
    return [
        (left, top, right, bottom) if there and left < right and top < bottom else None
        for there, (left, top, right, bottom) in zip(known.tolist(), edges, strict=True)
    ]


def cut_out(picture: Pixels, bounds: Bounds) -> Pixels:
    """These pixels of a picture [rows, columns, 3]."""
    left, top, right, bottom = bounds
    return np.ascontiguousarray(picture[top:bottom, left:right])
