"""Cost of resizing a frame by Pillow, and by native code that makes the same pixels.

Times are CPU time of one thread, the best of several rounds. Without `make edge` Pillow serves.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.figures import Figure, run
from fermata.deployments.extensions import ExtensionError
from fermata.deployments.models.pictures.resizing.build import RESIZING

FRAME, SIDE = (360, 640), 224
ROUNDS, TIMES = 12, 25
FASTER = 3.0


def best_us(action: Callable[[], Any], rounds: int) -> float:
    """CPU time of one call, the best round's."""
    found = []
    for _ in range(rounds):
        began_ns = time.process_time_ns()
        for _ in range(TIMES):
            action()
        found.append((time.process_time_ns() - began_ns) / TIMES / 1000)
    return min(found)


def measure(quick: bool) -> Iterator[Figure]:
    height, width = FRAME
    frame = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    out = np.empty((3, SIDE, SIDE), np.uint8)
    box, rounds = (0, 0, width, height), ROUNDS // 4 if quick else ROUNDS
    native = RESIZING.load().resize
    for name, how in (("bilinear", Image.Resampling.BILINEAR), ("cubic", Image.Resampling.BICUBIC)):

        def by_pillow(how: Any = how) -> None:
            out[...] = np.asarray(Image.fromarray(frame).resize((SIDE, SIDE), how, box)).transpose(
                2, 0, 1
            )

        def natively(cubic: bool = name == "cubic") -> None:
            native(frame, out.transpose(1, 2, 0), box, cubic)

        by_pillow()
        wanted = out.astype(int)
        natively()
        gap = int(np.abs(out - wanted).max())
        what = f"{width}x{height} to {SIDE}x{SIDE}, {name}"
        pillow_us, native_us = best_us(by_pillow, rounds), best_us(natively, rounds)
        yield Figure(f"{what}: Pillow", pillow_us, "us", 0)
        yield Figure("  native", native_us, "us", pillow_us / FASTER, at_most=True)
        yield Figure("  largest difference of pixels", gap, "levels", 0, at_most=True)


def main() -> None:
    try:
        RESIZING.load()
    except ExtensionError as error:
        raise SystemExit(f"native resizing cannot be measured: {error} (make edge)") from None
    run("Resizing of frames", measure)


if __name__ == "__main__":
    main()
