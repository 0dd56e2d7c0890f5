"""Lines of text, cut out of pictures at any angle.

Cuts have the pixels that OpenCV gives PP-OCR's own pipeline, but for rounding.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.pictures.picture import Pixels
from fermata.deployments.models.pictures.pixel_map import PixelMap

Array = NDArray[Any]
CUBIC = -0.75
"""OpenCV's parameter of bicubic interpolation."""
SIDE_MIN = 3
"""A line whose rectangle is no longer or no higher is noise."""
STRIP_PIXELS = 1 << 16
"""Pixels of a cut that are made at a time: each takes a hundred times its own memory meanwhile."""
UPRIGHT = 1.5
"""A cut that is so many times higher than wide is taken for a line that runs up or down."""


def whole_corners(quad: Array, height: int, width: int) -> Array:
    """Four corners [4, 2] on pixels of a picture."""
    return np.clip(np.rint(quad.reshape(4, 2)), 0, (width - 1, height - 1))


def cut_quad(picture: Pixels, quad: Array) -> tuple[Pixels, PixelMap] | None:
    """A line of text, clockwise from its upper left corner, as an upright picture, and its place
    in the other; None where it is too small to hold text."""
    if not np.isfinite(quad).all():
        return None
    corners = whole_corners(quad, *picture.shape[:2])
    sides = np.hypot(*(np.roll(corners, -1, axis=0) - corners).T).tolist()
    if int(sides[0]) <= SIDE_MIN or int(sides[3]) <= SIDE_MIN:
        return None
    width, height = int(max(sides[0], sides[2])), int(max(sides[1], sides[3]))
    (left, top), (right, bottom) = corners[0].astype(int), corners[2].astype(int)
    if corners.tolist() == [[left, top], [right, top], [right, bottom], [left, bottom]]:
        cut, lies = picture[top:bottom, left:right], PixelMap.moved(left, top)
    else:
        matrix = _perspective(corners, width, height)
        if matrix is None:
            return None
        cut, lies = _warp(picture, matrix, width, height), PixelMap.of(matrix)
    if height >= UPRIGHT * width:
        cut, lies = np.rot90(cut), lies.after(PixelMap.turned(1, *cut.shape[:2]))
    return np.ascontiguousarray(cut), lies


def _perspective(corners: Array, width: int, height: int) -> Array | None:
    """The matrix [3, 3] that takes pixels of the cut to those of the picture; None where the
    corners are no convex shape, as at the edge of a picture."""
    edges = np.roll(corners, -1, axis=0) - corners
    turns = edges[:, 0] * np.roll(edges[:, 1], -1) - edges[:, 1] * np.roll(edges[:, 0], -1)
    if turns.min() <= 0:
        return None
    rows: list[list[float]] = []
    ends = (0, 0), (width, 0), (width, height), (0, height)
    for (x, y), (u, v) in zip(ends, corners.tolist(), strict=True):
        rows.append([x, y, 1, 0, 0, 0, -x * u, -y * u])
        rows.append([0, 0, 0, x, y, 1, -x * v, -y * v])
    found = np.linalg.solve(np.array(rows, np.float64), corners.reshape(-1))
    return np.append(found, 1.0).reshape(3, 3)


def _warp(picture: Pixels, matrix: Array, width: int, height: int) -> Pixels:
    """The picture where the matrix leads, bicubic, its edge pixels repeated outside."""
    step = max(1, STRIP_PIXELS // width)
    strips = [
        _warp_rows(picture, matrix, width, np.arange(first, min(first + step, height)))
        for first in range(0, height, step)
    ]
    return np.concatenate(strips)


def _warp_rows(picture: Pixels, matrix: Array, width: int, lines: Array) -> Pixels:
    """These rows of it."""
    x, y = np.meshgrid(np.arange(width), lines)
    u, v, w = np.tensordot(matrix, np.stack((x, y, np.ones_like(x))).reshape(3, -1), 1)
    columns, rows = u / w, v / w
    left, top = np.floor(columns), np.floor(rows)
    across, down = _weights(columns - left), _weights(rows - top)
    left, top = left.astype(np.intp) - 1, top.astype(np.intp) - 1
    # A part of the picture that holds all that is read, so that nothing is looked up at its edges.
    reach_x = np.arange(left.min(), left.max() + 4).clip(0, picture.shape[1] - 1)
    reach_y = np.arange(top.min(), top.max() + 4).clip(0, picture.shape[0] - 1)
    part = picture[reach_y[:, None], reach_x].astype(np.float32).reshape(-1, 3)
    first = (top - top.min()) * len(reach_x) + left - left.min()
    found = np.zeros((x.size, 3), np.float32)
    for j in range(4):
        row = part.take(first, axis=0) * across[0]
        for i in range(1, 4):
            row += part.take(first + i, axis=0) * across[i]
        found += row * down[j]
        first += len(reach_x)
    return np.rint(found).clip(0, 255).astype(np.uint8).reshape(len(lines), width, 3)


def _weights(share: Array) -> list[Array]:
    """Weights of the four pixels around a point, which lies `share` after the second."""
    share = share.astype(np.float32)[:, None]

    def outer(away: Array) -> Array:
        return CUBIC * (((away - 5) * away + 8) * away - 4)

    def inner(away: Array) -> Array:
        return ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1

    return [outer(share + 1), inner(share), inner(1 - share), outer(2 - share)]
