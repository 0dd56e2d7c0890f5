"""A part of a picture at another size, natively where that is built; Pillow's pixels either way."""

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from fermata.deployments.extensions import ExtensionError
from fermata.deployments.models.pictures.resizing.build import RESIZING

Pixels = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels and parts of them."""
SIDE_MAX = 65_535
"""The native code's limit."""


def resize_into(pixels: Pixels, out: Pixels, box: Box | None = None, cubic: bool = False) -> None:
    """Fill `out` [rows, columns, 3], in any layout, with this part of a picture; all unless given.

    It is antialiased, across and then down or the other way round, whichever Pillow takes.
    """
    height, width = pixels.shape[:2]
    box = (0, 0, width, height) if box is None else box
    native = _native()
    if native is not None and _is_for_native(pixels) and _is_for_native(out, any_layout=True):
        native(pixels, out, box, cubic)
        return
    how = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    out[...] = np.asarray(Image.fromarray(pixels).resize((out.shape[1], out.shape[0]), how, box))


def _is_for_native(pixels: Pixels, any_layout: bool = False) -> bool:
    height, width = pixels.shape[:2]
    return (
        0 < height <= SIDE_MAX
        and 0 < width <= SIDE_MAX
        and (any_layout or pixels.strides[1:] == (3, 1))
    )


@cache
def _native() -> Callable[[Pixels, Pixels, Box, bool], None] | None:
    try:
        found: Callable[[Pixels, Pixels, Box, bool], None] = RESIZING.load().resize
    except ExtensionError:
        return None
    return found
