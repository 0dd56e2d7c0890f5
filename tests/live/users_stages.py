"""Models and functions of a user's own, for pipelines: coloured blocks on a black ground."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.pipelines_kills import MARKS, RUN_S, mark

WIDTH, HEIGHT = 64, 48
COLOURS = {"red": 0, "green": 1, "blue": 2}


def picture(*blocks: tuple[str, int, int]) -> Any:
    """Blocks of a colour from column to column, over the rows 8 to 40."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for colour, left, right in blocks:
        pixels[8:40, left:right, COLOURS[colour]] = 255
    return pixels


def run_marked(stage: str) -> None:
    """Take a while where somebody waits for a batch of a stage."""
    if MARKS in os.environ:
        mark(stage)
        time.sleep(RUN_S)


def load_detector() -> Callable[[Any], dict[str, list[Any]]]:
    """Finds blocks: x1, y1, x2, y2, the share of the width as a score, the colour as a class."""

    def detect(batch: Any) -> dict[str, list[Any]]:
        run_marked("detect")
        return {"boxes": [_boxes(each) for each in batch]}

    return detect


def _boxes(pixels: Any) -> Any:
    found: list[list[float]] = []
    for colour in range(3):
        columns = np.flatnonzero(pixels[colour].max(axis=0) > 127)
        for run in np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1):
            if len(run):
                left, right = float(run[0]), float(run[-1] + 1)
                found.append([left, 8.0, right, 40.0, (right - left) / WIDTH, colour])
    return np.array(found, np.float32).reshape(-1, 6)


def load_classifier() -> Callable[[Any], Any]:
    """The mean of each colour. One that is all black makes it fail."""

    def classify(batch: Any) -> Any:
        run_marked("classify")
        if (abs(batch).max(axis=(1, 2, 3)) == 0.0).any():
            raise ValueError("all is black")
        return batch.mean(axis=(2, 3))

    return classify


def load_calm_classifier() -> Callable[[Any], Any]:
    """The same for all pictures, black ones among them: a backend warms up with those."""

    def classify(batch: Any) -> Any:
        run_marked("classify")
        return batch.mean(axis=(2, 3))

    return classify


def load_counter() -> Callable[[Any], Any]:
    """Twice what it is given."""
    return lambda batch: 2.0 * batch


def count_red(results: Mapping[str, Sequence[Any]]) -> Any:
    """The input of a join: how many crops are red."""
    found = [each.outputs["output"] for each in results["classify"]]
    return np.array([sum(float(each.argmax() == 0) for each in found)], np.float32)


def halves(result: Any) -> list[Any]:
    """Both halves of the picture, or none of one that is blue."""
    pixels = result.picture
    if pixels[..., 2].any():
        return []
    return [pixels[:, : WIDTH // 2], pixels[:, WIDTH // 2 :]]


def broken(result: Any) -> list[Any]:
    """A transform with a mistake."""
    raise RuntimeError("no such thing")
