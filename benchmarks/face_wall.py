"""A film with faces of several sizes: a wall of time-shifted copies of a bundled one."""

from functools import cache

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from fermata.deployments.models.video import bundled_video

Pixels = npt.NDArray[np.uint8]
SIDE = 960
TILE = 320
SHIFT = 11
"""Frames between one tile and the next, so that no two show the same picture."""


DISTINCT = 24
"""Frames after which the film starts again."""


@cache
def _film() -> list[Image.Image]:
    with av.open(str(bundled_video("carphone_pristine"))) as container:
        frames = [
            Image.fromarray(each.to_ndarray(format="rgb24")) for each in container.decode(video=0)
        ]
    # The middle square: the speaker's head.
    return [frame.crop((16, 0, 160, 144)) for frame in frames]


def frame(index: int) -> Pixels:
    """Nine tiles: some hold one face, some four smaller ones."""
    film = _film()
    wall = Image.new("RGB", (SIDE, SIDE))
    for tile in range(9):
        parts = 1 if tile % 2 else 2
        side = TILE // parts
        left, top = tile % 3 * TILE, tile // 3 * TILE
        for part in range(parts * parts):
            picture = film[(index + SHIFT * (tile + part)) % len(film)]
            at = (left + part % parts * side, top + part // parts * side)
            wall.paste(picture.resize((side, side), Image.Resampling.BICUBIC), at)
    return np.asarray(wall)
