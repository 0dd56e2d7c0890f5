"""Fashion-MNIST as it was published: 60,000 pictures to make things from, 10,000 to judge by.

Debian's package `dataset-fashion-mnist` holds the four files.
"""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sneakpeek_setting import Draws, Pictures, Task, Variant
from fermata.foundation.errors import ConfigError

FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
PROFILED = 10000
"""The last of the 60,000: they profile and calibrate, the others train and are indexed."""
DRAWS = Draws(train=30000, index=12000, profile=10000)
PARTS = ("train", "t10k")
SIDE = 28
HEADERS = {"images-idx3": 16, "labels-idx1": 8}
"""Bytes before the data of each kind of file."""


def check(folder: Path) -> None:
    """Refuse a folder that does not hold the set."""
    absent = [
        path
        for part in PARTS
        for kind in HEADERS
        if not (path := _path(folder, part, kind)).is_file()
    ]
    if absent:
        raise ConfigError(
            f"{absent[0]} is not there; give --data FOLDER with the four files of Fashion-MNIST "
            "(Debian's package dataset-fashion-mnist has them), or --only characters"
        )


def clothes(folder: Path) -> Pictures:
    """All ten classes, without noise; no picture is in two parts."""
    check(folder)
    images, labels = (
        [_read(folder, part, kind) for part in PARTS] for kind in ("images-idx3", "labels-idx1")
    )
    made = len(labels[0])
    rows = np.arange(made + len(labels[1]))
    pixels = np.concatenate(images).reshape(-1, SIDE, SIDE).astype(np.float32) / np.float32(255)
    return Pictures(
        "clothes",
        pixels,
        np.concatenate(labels).astype(np.int64),
        (rows[: made - PROFILED], rows[made - PROFILED : made], rows[made:]),
        0.0,
        tasks(),
        DRAWS,
    )


def _path(folder: Path, part: str, kind: str) -> Path:
    return folder / f"{part}-{kind}-ubyte.gz"


def _read(folder: Path, part: str, kind: str) -> NDArray[np.uint8]:
    with gzip.open(_path(folder, part, kind)) as file:
        return np.frombuffer(file.read(), np.uint8, offset=HEADERS[kind])


def tasks() -> tuple[Task, ...]:
    """One application with all classes as often, one in which few are most of what is sent."""
    classes = tuple((each,) for each in range(CLASSES))
    even = (1 / CLASSES,) * CLASSES
    ranks = 1 / np.arange(1, CLASSES + 1)
    rare = np.random.default_rng(43).permutation(ranks / ranks.sum())
    variants = (Variant(5, 6, 7, (16,)), Variant(18, 22, 1, (256, 128)))
    return (
        Task("even", classes, even, even, variants),
        Task("shop", classes, tuple(rare.tolist()), even, variants),
    )
