"""Frames of the bundled clips as JPEGs in one file, for a GPU box that has no reader of films.

`python -m benchmarks.gpu_frames FILE` writes 1,000 of them: both halves of each frame.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fermata.clients.frames import encode_jpeg
from fermata.deployments.models.video import NAMES, bundled_video

COUNT = 1_000
HEIGHT_MAX = 400
"""Larger frames keep every other pixel: the file has to travel."""


def halves() -> Iterator[Any]:
    """Left and right of every frame of every clip."""
    av: Any = __import__("av")
    for name in NAMES:
        with av.open(str(bundled_video(name))) as film:
            for frame in film.decode(video=0):
                pixels = frame.to_ndarray(format="rgb24")
                if len(pixels) > HEIGHT_MAX:
                    pixels = pixels[::2, ::2]
                middle = pixels.shape[1] // 2
                yield np.ascontiguousarray(pixels[:, :middle])
                yield np.ascontiguousarray(pixels[:, middle:])


def write_frames(path: Path) -> int:
    """Write a thousand, evenly taken; returns how many there were."""
    found = [encode_jpeg(each) for each in halves()]
    chosen = [found[int(place)] for place in np.linspace(0, len(found) - 1, COUNT)]
    ends = np.cumsum([len(each) for each in chosen])
    np.savez(path, data=np.frombuffer(b"".join(chosen), np.uint8), ends=ends)
    return len(found)


def read_frames(path: Path) -> list[bytes]:
    with np.load(path) as file:
        data, ends = file["data"].tobytes(), file["ends"].tolist()
    return [data[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


if __name__ == "__main__":
    print(f"{COUNT} of {write_frames(Path(sys.argv[1]))} halves")
