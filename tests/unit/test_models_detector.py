"""Detections decoded from maps, with numbers worked by hand."""

import numpy as np
import numpy.typing as npt
import pytest

from fermata.deployments.models.detector import PAIRED_MAX, decode, suppress, to_frame
from fermata.deployments.models.pictures.picture import centre_square, reduction, whole_frame


def maps() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Maps of a 32 x 32 input: one face of 8 x 16 pixels about cell (row 3, column 4)."""
    found = np.zeros((5, 8, 8), np.float32)
    found[0, 3, 4] = 0.9
    found[1, 3, 4] = np.log(16 / 4)
    found[2, 3, 4] = np.log(8 / 4)
    return found


def test_box_stands_about_its_cell() -> None:
    # Middle: x = 4.5 cells of 4 pixels = 18, y = 14; 8 wide and 16 high.
    np.testing.assert_allclose(decode(maps()), [[14, 6, 22, 22, 0.9, 0]], rtol=1e-6)


def test_no_face_gives_no_rows() -> None:
    assert decode(np.zeros((5, 8, 8), np.float32)).shape == (0, 6)


def test_boxes_are_cut_at_the_edge_and_come_best_first() -> None:
    found = maps()
    found[:, 0, 0] = (0.95, np.log(4), np.log(4), 0, 0)
    rows = decode(found)
    assert rows[:, 4].tolist() == [np.float32(0.95), np.float32(0.9)]
    # Middle 2, side 16: from -6, which is off the image, to 10.
    np.testing.assert_allclose(rows[0, :4], [0, 0, 10, 10], rtol=1e-6)


def test_the_better_of_two_boxes_on_one_face_stays() -> None:
    found = maps()
    found[:, 3, 5] = found[:, 3, 4] * np.array([0.8, 1, 1, 1, 1], np.float32)
    # Shifted by 4 of 8 pixels: they share 64 of 192, IoU 1/3, above 0.3.
    assert len(decode(found)) == 1
    boxes = np.array([[0, 0, 8, 16], [6, 0, 14, 16], [0, 0, 0, 0]], np.float32)
    assert suppress(boxes, 0.3) == [0, 1, 2]


def test_boxes_return_to_the_frame_that_was_sent() -> None:
    assert reduction(height=360, width=640, size=320) == 0.5
    rows = np.array([[10, 20, 110, 220, 0.9, 0]], np.float32)
    moved = to_frame(rows, height=360, width=640, size=320)
    # Doubled, and cut at the frame's last line, below which the square was black.
    np.testing.assert_allclose(moved, [[20, 40, 220, 360, 0.9, 0]], rtol=1e-6)
    assert rows[0, 0] == 10


def test_a_frame_is_fitted_top_left_and_the_rest_is_black() -> None:
    square = whole_frame(np.full((36, 64, 3), 200, np.uint8), 32)
    assert square.shape == (3, 32, 32)
    assert (square[:, :18] == 200).all()
    assert (square[:, 18:] == 0).all()


def test_the_middle_of_a_frame_fills_the_square() -> None:
    frame = np.zeros((64, 128, 3), np.uint8)
    frame[:, 32:96] = 200
    assert (centre_square(frame, 32) == 200).all()
    assert centre_square(np.zeros((1, 1, 3), np.uint8), 32).shape == (3, 32, 32)


@pytest.mark.parametrize("count", [0, 1, 40, PAIRED_MAX, 2 * PAIRED_MAX + 44])
def test_boxes_that_stay_are_those_that_no_better_one_that_stays_overlaps(count: int) -> None:
    rng = np.random.default_rng(count)
    corners = rng.random((count, 2)) * 200
    boxes = np.concatenate((corners, corners + rng.random((count, 2)) * 60), axis=1)
    kept = suppress(boxes, 0.3)
    stays: list[int] = []
    for place, box in enumerate(boxes):
        if all(intersection_over_union(box, boxes[each]) <= 0.3 for each in stays):
            stays.append(place)
    assert kept == stays


def intersection_over_union(some: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    low, high = np.maximum(some[:2], other[:2]), np.minimum(some[2:], other[2:])
    shared = float(np.prod(np.clip(high - low, 0, None)))
    areas = [float(np.prod(each[2:] - each[:2])) for each in (some, other)]
    return shared / (sum(areas) - shared)
