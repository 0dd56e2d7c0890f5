"""Native resizing makes the very pixels that Pillow makes, and reads nothing beside a picture."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fermata.deployments.models.pictures.resizing.build import RESIZING
from fermata.deployments.models.pictures.resizing.resize import Box, Pixels, resize_into

pytestmark = pytest.mark.skipif(bool(RESIZING.reason_not()), reason="it is not built here")
SIDES = st.integers(1, 90)
PARTS = st.floats(0, 1, width=32)


@pytest.fixture(scope="module")
def native() -> Any:
    return RESIZING.load(RESIZING.build()).resize


def picture(height: int, width: int, seed: int, kind: str = "noise") -> Pixels:
    chance = np.random.default_rng(seed)
    noise = chance.integers(0, 256, (height, width, 3), np.uint8)
    # Sharp edges are where sums leave the range of a byte.
    return np.where(noise > 127, 255, 0).astype(np.uint8) if kind == "edges" else noise


def by_pillow(pixels: Pixels, height: int, width: int, box: Box, cubic: bool) -> Pixels:
    how = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(pixels).resize((width, height), how, box))


def part(first: float, second: float, length: int) -> tuple[float, float]:
    low, high = sorted((first * length, second * length))
    return (low, high) if np.float32(low) < np.float32(high) else (0.0, float(length))


@settings(deadline=None, max_examples=400)
@given(
    sizes=st.tuples(SIDES, SIDES, SIDES, SIDES),
    corners=st.none() | st.tuples(PARTS, PARTS, PARTS, PARTS),
    cubic=st.booleans(),
    planar=st.booleans(),
    kind=st.sampled_from(("noise", "edges")),
    seed=st.integers(0, 1 << 32),
)
def test_pixels_are_those_of_pillow(
    native: Callable[..., None],
    sizes: tuple[int, int, int, int],
    corners: tuple[float, float, float, float] | None,
    cubic: bool,
    planar: bool,
    kind: str,
    seed: int,
) -> None:
    height, width, rows, columns = sizes
    pixels = picture(height, width, seed, kind)
    box: Box = (0, 0, width, height)
    if corners is not None:
        (left, right), (top, bottom) = (
            part(corners[0], corners[2], width),
            part(corners[1], corners[3], height),
        )
        box = (left, top, right, bottom)
    shape = (3, rows, columns) if planar else (rows, columns, 3)
    made = np.full(shape, 77, np.uint8)
    out = made.transpose(1, 2, 0) if planar else made
    native(pixels, out, box, cubic)
    assert np.array_equal(out, by_pillow(pixels, rows, columns, box, cubic))


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [(360, 640, 224, 224), (1080, 1920, 416, 234), (3, 5000, 2, 7), (5000, 3, 7, 2), (1, 1, 9, 9)],
)
def test_sizes_of_cameras_and_odd_ones(
    native: Callable[..., None], height: int, width: int, rows: int, columns: int, cubic: bool
) -> None:
    pixels = picture(height, width, 1)
    out = np.empty((rows, columns, 3), np.uint8)
    box: Box = (0, 0, width, height)
    native(pixels, out, box, cubic)
    assert np.array_equal(out, by_pillow(pixels, rows, columns, box, cubic))


def test_parts_of_arrays_are_read_and_written_in_place(native: Callable[..., None]) -> None:
    whole = picture(40, 50, 2)
    frame = np.full((3, 30, 31), 9, np.uint8)
    out = frame[:, 5:25, 6:30].transpose(1, 2, 0)
    native(whole[3:33, 4:44], out, (0, 0, 40, 30), True)
    assert np.array_equal(out, by_pillow(whole[3:33, 4:44], 20, 24, (0, 0, 40, 30), True))
    out[...] = 9
    assert (frame == 9).all()
    # Rows from the bottom up, and every other pixel of the result.
    wide = np.full((20, 48, 3), 9, np.uint8)
    native(whole[::-1], wide[::-1, ::2], (0, 0, 50, 40), False)
    assert np.array_equal(wide[::-1, ::2], by_pillow(whole[::-1], 20, 24, (0, 0, 50, 40), False))
    assert (wide[:, 1::2] == 9).all()


NAN = float("nan")
GOOD = np.zeros((4, 5, 3), np.uint8)
READ_ONLY = GOOD.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("source", "out", "box"),
    [
        (GOOD, GOOD.copy(), (0, 0, 5, 4.1)),
        (GOOD, GOOD.copy(), (0, 0, 5.1, 4)),
        (GOOD, GOOD.copy(), (-0.1, 0, 5, 4)),
        (GOOD, GOOD.copy(), (0, -0.1, 5, 4)),
        (GOOD, GOOD.copy(), (2, 0, 2, 4)),
        (GOOD, GOOD.copy(), (0, 3, 5, 2)),
        (GOOD, GOOD.copy(), (NAN, 0, 5, 4)),
        (GOOD, GOOD.copy(), (0, 0, NAN, 4)),
        (GOOD, GOOD.copy(), (0, 0, float("inf"), 4)),
        (GOOD, READ_ONLY, (0, 0, 5, 4)),
        (GOOD[:, ::2], GOOD.copy(), (0, 0, 2, 4)),
        (GOOD[..., ::-1], GOOD.copy(), (0, 0, 5, 4)),
        (GOOD[..., 0], GOOD.copy(), (0, 0, 5, 4)),
        (GOOD[..., :2], GOOD.copy(), (0, 0, 5, 4)),
        (GOOD.astype(np.int8), GOOD.copy(), (0, 0, 5, 4)),
        (GOOD.astype(np.float32), GOOD.copy(), (0, 0, 5, 4)),
        (GOOD[:0], GOOD.copy(), (0, 0, 5, 4)),
        (GOOD, GOOD[:0].copy(), (0, 0, 5, 4)),
        (GOOD, GOOD.astype(np.int16), (0, 0, 5, 4)),
        (np.zeros((1, 65_536, 3), np.uint8), GOOD.copy(), (0, 0, 5, 1)),
    ],
)
def test_what_is_no_picture_and_no_part_of_one_is_refused(
    native: Callable[..., None], source: Any, out: Any, box: Box
) -> None:
    with pytest.raises((ValueError, BufferError)):
        native(source, out, box, False)
    assert not np.asarray(out).any()


def test_the_function_that_is_called_takes_any_array() -> None:
    whole = picture(40, 50, 3)
    for pixels in (whole, whole[:, ::2], whole[::-1, 3:], np.rot90(whole)):
        out = np.empty((20, 24, 3), np.uint8)
        resize_into(pixels, out)
        box = (0, 0, pixels.shape[1], pixels.shape[0])
        assert np.array_equal(out, by_pillow(np.ascontiguousarray(pixels), 20, 24, box, False))
