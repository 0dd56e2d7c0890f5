"""Boxes of lines of text from a map of how likely each pixel is text.

The steps are those of PP-OCR's `DBPostProcess`: regions above a threshold, the smallest rectangle
around each at any angle, its mean as the score, and the rectangle grown by a share of its area.
OpenCV and Clipper do this for the package; here numpy and scipy do.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SIDE_MIN = 3.0
"""The shorter side of a rectangle before it grows, in pixels of the map."""
GROWN_MIN = SIDE_MIN + 2
ARC_TOLERANCE = 0.25
"""How far an arc may lie from its chords, in pixels and as a share of its radius."""
AROUND: Array = np.ones((3, 3), np.uint8)
"""Pixels that touch at a corner are of one region; those of a hole touch at a side."""


@dataclass(frozen=True, slots=True)
class BoxRule:
    """How boxes are made of a map."""

    likely_min: float = 0.2
    """Pixels above it are text."""
    score_min: float = 0.45
    """Mean of the map inside a rectangle."""
    growth: float = 1.4
    """A rectangle grows on each side by this share of its area divided by its outline."""
    regions_max: int = 3000


def find_boxes(likely: Array, rule: BoxRule) -> tuple[Array, Array]:
    """Corners FP32 [n, 8] and scores FP32 [n] of the lines of text in a map [height, width].

    Corners go clockwise from the upper left one: x1, y1 to x4, y4. Lines come from top to bottom.
    """
    boxes: list[Array] = []
    scores: list[float] = []
    for hull in _regions(likely > rule.likely_min, rule.regions_max):
        corners, side = smallest_rectangle(hull)
        if side < SIDE_MIN:
            continue
        score = _mean_inside(likely, corners)
        if score < rule.score_min:
            continue
        grown, side = smallest_rectangle(_grow(corners, rule.growth))
        if side < GROWN_MIN:
            continue
        boxes.append(clockwise(grown).reshape(-1))
        scores.append(score)
    order = sorted(range(len(boxes)), key=lambda each: (boxes[each][1], boxes[each][0]))
    found = np.array([boxes[each] for each in order], np.float32).reshape(-1, 8)
    return found, np.array([scores[each] for each in order], np.float32)


def clockwise(corners: Array) -> Array:
    """Four corners [4, 2] from the upper left one on."""
    sums = corners.sum(axis=1)
    first, third = int(np.argmin(sums)), int(np.argmax(sums))
    others = [each for each in range(4) if each not in (first, third)]
    second, fourth = sorted(others, key=lambda each: corners[each, 1] - corners[each, 0])[:2]
    return corners[[first, second, third, fourth]]


def _regions(text: Array, regions_max: int) -> Iterator[Array]:
    """Points [n, 2] around each region, and around each hole of one as OpenCV lists these too."""
    # Every process knows the models by name, and few of them need scipy.
    from scipy import ndimage

    labels, count = ndimage.label(text, AROUND)
    for number, place in enumerate(ndimage.find_objects(labels)[:regions_max], 1):
        yield _outline(labels[place] == number, place)
    height, width = text.shape
    left = max(0, regions_max - count)
    gaps, _ = ndimage.label(~text)
    for number, (rows, columns) in enumerate(ndimage.find_objects(gaps), 1):
        # What reaches the map's edge is the space between regions.
        if not (rows.start and columns.start and rows.stop < height and columns.stop < width):
            continue
        if left == 0:
            break
        left -= 1
        place = slice(rows.start - 1, rows.stop + 1), slice(columns.start - 1, columns.stop + 1)
        yield _outline(ndimage.binary_dilation(gaps[place] == number), place)


def _outline(inside: Array, place: tuple[slice, slice]) -> Array:
    """The first and the last pixel of each row: their hull is the region's."""
    rows = np.flatnonzero(inside.any(axis=1))
    first = inside[rows].argmax(axis=1)
    last = inside.shape[1] - 1 - inside[rows, ::-1].argmax(axis=1)
    x, y = np.concatenate((first, last)), np.concatenate((rows, rows))
    return np.stack((x + place[1].start, y + place[0].start), axis=1)


def smallest_rectangle(points: Array) -> tuple[Array, float]:
    """Corners [4, 2] of the rectangle of least area around points, and its shorter side."""
    hull = _hull(points).astype(np.float64)
    edges = np.roll(hull, -1, axis=0) - hull
    lengths = np.hypot(edges[:, 0], edges[:, 1])
    if not lengths.max():
        return np.repeat(hull[:1], 4, axis=0), 0.0
    along = edges[lengths > 0] / lengths[lengths > 0, None]
    across = np.stack((-along[:, 1], along[:, 0]), axis=1)
    far, wide = along @ hull.T, across @ hull.T
    sizes = np.stack((np.ptp(far, axis=1), np.ptp(wide, axis=1)), axis=1)
    best = int(np.argmin(sizes.prod(axis=1)))
    ends = (far[best].min(), far[best].max()), (wide[best].min(), wide[best].max())
    corners = [
        along[best] * ends[0][a] + across[best] * ends[1][b]
        for a, b in ((0, 0), (1, 0), (1, 1), (0, 1))
    ]
    return np.array(corners), float(sizes[best].min())


def _hull(points: Array) -> Array:
    """The convex hull of points, without those on its edges (Andrew's monotone chain)."""
    rows = sorted({(int(x), int(y)) for x, y in points})
    if len(rows) < 3:
        return np.array(rows)
    return np.array(_half(rows)[:-1] + _half(rows[::-1])[:-1])


def _half(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for x, y in rows:
        while len(kept) > 1:
            (a, b), (c, d) = kept[-2:]
            if (c - a) * (y - b) > (d - b) * (x - a):
                break
            kept.pop()
        kept.append((x, y))
    return kept


def _mean_inside(likely: Array, corners: Array) -> float:
    """The mean of a map over a rectangle, whose corners are rounded down and whose edges count."""
    height, width = likely.shape
    left, top = np.clip(np.floor(corners.min(axis=0)), 0, (width - 1, height - 1)).astype(int)
    right, bottom = np.clip(np.ceil(corners.max(axis=0)), 0, (width - 1, height - 1)).astype(int)
    part = likely[top : bottom + 1, left : right + 1]
    whole = np.trunc(corners - (left, top))
    mask = np.ones(part.shape, bool)
    for (x, y), (across, down) in zip(whole, np.roll(whole, -1, axis=0) - whole, strict=True):
        rows = np.arange(len(part))[:, None] - y
        mask &= across * rows >= down * (np.arange(part.shape[1]) - x)
    for start, end in zip(whole, np.roll(whole, -1, axis=0), strict=True):
        steps = int(np.abs(end - start).max())
        points = start + (end - start) * (np.arange(steps + 1) / max(1, steps))[:, None]
        x, y = np.floor(points + 0.5).astype(int).T
        kept = (x >= 0) & (y >= 0) & (x < part.shape[1]) & (y < len(part))
        mask[y[kept], x[kept]] = True
    return float(part[mask].mean())


def _grow(corners: Array, growth: float) -> Array:
    """Whole points around a rectangle with round corners, as Clipper's `JT_ROUND` makes them."""
    edges = np.roll(corners, -1, axis=0) - corners
    sides = np.hypot(edges[:, 0], edges[:, 1])
    by = float(sides[0] * sides[1]) * growth / float(sides.sum())
    whole = np.trunc(corners)
    edges = np.roll(whole, -1, axis=0) - whole
    lengths = np.hypot(edges[:, 0], edges[:, 1])
    if not lengths.min():
        return whole
    # Rectangles come with their edges in the order that has its normals outside.
    normals = np.stack((edges[:, 1], -edges[:, 0]), axis=1) / lengths[:, None]
    step = max(2 * math.acos(1 - min(ARC_TOLERANCE / by, ARC_TOLERANCE)), 2 / by)
    points: list[Array] = []
    for corner, before, after in zip(whole, np.roll(normals, 1, axis=0), normals, strict=True):
        turn = math.atan2(before[0] * after[1] - before[1] * after[0], before @ after)
        steps = max(round(abs(turn) / step), 1)
        angles = np.arange(steps) * math.copysign(step, turn)
        arc = np.stack(
            (
                before[0] * np.cos(angles) - before[1] * np.sin(angles),
                before[0] * np.sin(angles) + before[1] * np.cos(angles),
            ),
            axis=1,
        )
        points += [corner + by * arc, (corner + by * after)[None]]
    found: Array = np.concatenate(points)
    found += np.copysign(0.5, found)
    return np.trunc(found, out=found)
