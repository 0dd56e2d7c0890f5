"""Boxes of detectors: from the pixels of a model's input to those of the client's frame."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.applications.server_options import BoxOptions
from fermata.deployments.models.pictures.pages import page_size
from fermata.deployments.models.pictures.picture import centre_part, reduction
from fermata.deployments.specs.served_model import ImageSpec

Array = NDArray[Any]
Pair = tuple[float, float]
"""Across and down."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Position of a model's input in the frame that it shows: frame = input * scale + offset."""

    frame: tuple[int, int]
    """Height and width of the frame."""
    input: tuple[int, int]
    """Height and width of the input."""
    scale: Pair
    offset: Pair = (0.0, 0.0)

    @staticmethod
    def of(spec: ImageSpec, frame: tuple[int, int]) -> "Placement":
        """The placement of a frame that `decoding.fit` has fitted."""
        height, width = frame
        size = spec.height, spec.width
        if spec.fit == "whole":
            ratio = 1 / reduction(height, width, spec.height)
            return Placement(frame, size, (ratio, ratio))
        if spec.fit == "centre":
            left, top, side = centre_part(height, width, spec.height)
            ratio = side / spec.height
            return Placement(frame, size, (ratio, ratio), (left, top))
        if spec.fit == "page":
            rows, columns = page_size(height, width, spec.height)
            return Placement(frame, size, (width / columns, height / rows))
        if spec.fit == "line":
            ratio = height / spec.height
            return Placement(frame, size, (max(width / spec.width, ratio), ratio))
        if spec.fit == "stretch":
            return Placement(frame, size, (width / spec.width, height / spec.height))
        short = max(spec.resize, spec.height, spec.width)
        scaled = [int(short * side / min(height, width)) for side in (height, width)]
        down, across = height / scaled[0], width / scaled[1]
        top, left = (round((a - b) / 2) for a, b in zip(scaled, size, strict=True))
        return Placement(frame, size, (across, down), (left * across, top * down))


def in_frame(array: Array, boxes: BoxOptions, placement: Placement) -> Array:
    """The same boxes in pixels of the frame, cut at its edges; ValueError where there are none."""
    if array.dtype.kind not in "fiu":
        raise ValueError(f"it is {array.dtype.name}, not numbers")
    if not array.size:
        return array.copy()
    axis = 0 if boxes.axis == "first" else -1
    count = numbers_of(boxes)
    if array.ndim < 2 or array.shape[axis] < count:
        wanted = f"[{count} or more, boxes]" if axis == 0 else f"[boxes, {count} or more]"
        raise ValueError(f"its shape is {list(array.shape)}, not {wanted}")
    rows = np.moveaxis(np.array(array), axis, -1)
    given: Array = rows[..., :count].astype(np.float64 if array.dtype.itemsize > 4 else np.float32)
    if boxes.unit == "shares":
        down, across = placement.input
        given = given * _each((down, across) if boxes.format == "yxyx" else (across, down), count)
    corners = given if boxes.format == "quad" else as_corners(given, boxes)
    moved = corners * _each(placement.scale, count) + _each(placement.offset, count)
    height, width = placement.frame
    found = as_given(np.clip(moved, 0, _each((width, height), count)), boxes)
    rows[..., :count] = found if array.dtype.kind == "f" else np.rint(found)
    # In the order of the dimensions that it came with.
    return np.ascontiguousarray(np.moveaxis(rows, -1, axis))


def numbers_of(boxes: BoxOptions) -> int:
    """How many numbers place a box."""
    return 8 if boxes.format == "quad" else 4


def _each(pair: Pair, count: int) -> Array:
    """One number for each of a box."""
    return np.array(pair * (count // 2), np.float32)


def as_corners(given: Array, boxes: BoxOptions) -> Array:
    """Two corners, x first; of a shape at an angle, those of the upright box around it."""
    if boxes.format == "quad":
        x, y = given[..., 0:8:2], given[..., 1:8:2]
        return np.stack((x.min(-1), y.min(-1), x.max(-1), y.max(-1)), axis=-1)
    first, last = given[..., :2], given[..., 2:]
    if boxes.format == "yxyx":
        return given[..., [1, 0, 3, 2]]
    if boxes.format == "xywh":
        return np.concatenate((first, first + last), axis=-1)
    if boxes.format == "cxcywh":
        return np.concatenate((first - last / 2, first + last / 2), axis=-1)
    return given


def as_given(corners: Array, boxes: BoxOptions) -> Array:
    """The format that the boxes came in."""
    first, last = corners[..., :2], corners[..., 2:]
    if boxes.format == "yxyx":
        return corners[..., [1, 0, 3, 2]]
    if boxes.format == "xywh":
        return np.concatenate((first, last - first), axis=-1)
    if boxes.format == "cxcywh":
        return np.concatenate(((first + last) / 2, last - first), axis=-1)
    return corners
