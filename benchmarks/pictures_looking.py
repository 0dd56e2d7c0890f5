"""Looks by an embedding: what they cost, how they are built, and answers by them alone.

`python -m benchmarks.pictures_looking [--only PART] [--json]`; `gpu_build` needs a GPU and no Ray.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.characters import CHARACTERS, drawn, fonts
from benchmarks.figures import Figure, run_parts
from benchmarks.looks_live import short_circuits
from benchmarks.looks_places import places
from benchmarks.sneakpeek_setting import Labels
from fermata.deployments.sneakpeek.building import BuildOptions, build, build_model
from fermata.deployments.sneakpeek.labelled_data import ArrayData

PICTURES = 50_000
SMALLEST = "imagenet:lite0@64/5"
LARGEST = "imagenet:lite0"
SIDE = 224


def one_look(quick: bool) -> Iterator[Figure]:
    """Time of a look on one core, with all of lite0 and with the smallest embedding."""
    classes = 10
    rng = np.random.default_rng(9)
    known = [path for number, path in enumerate(fonts()) if number % 3]
    images, labels = _pictures(known[: 4 if quick else 16], classes, rng)
    for embedding, most_ms in ((LARGEST, 100.0), (SMALLEST, 15.0)):
        built = build(ArrayData(images, labels), BuildOptions(embedding=embedding))
        model = built.model
        model.warm_up()
        others, true = _pictures(fonts()[::3], classes, rng)
        right = (model.look(list(others)).argmax(axis=1) == true).mean()
        spent = []
        for number in range(5 if quick else 20):
            began = time.process_time()
            model.look([others[number % len(others)]])
            spent.append(1e3 * (time.process_time() - began))
        name = f"a look with {embedding} on one core (digits of other fonts right {right:.1%})"
        yield Figure(name, float(np.median(spent)), "ms", most_ms, at_most=True)


def _pictures(
    paths: Sequence[Path], classes: int, rng: np.random.Generator
) -> tuple[np.ndarray, Labels]:
    """The first characters in these fonts, as pictures of 224 pixels."""
    images, labels = [], []
    for path in paths:
        for number, one in enumerate(drawn(path, rng, SIDE)):
            if number == classes:
                break
            images.append(np.repeat((255 * one).astype(np.uint8)[None], 3, axis=0))
            labels.append(number)
    return np.stack(images), np.array(labels, np.int64)


def digits(quick: bool) -> Iterator[Figure]:
    """Looks at digits with three dimensions, and with those that held-out data choose."""
    from fermata.deployments.models.digits import held_out, training_data

    images, labels = held_out()
    for name, dimensions in (("3 dimensions", 3), ("chosen dimensions", None)):
        index = build_model(*training_data(), dimensions=dimensions).index
        right = (index.votes(images).argmax(axis=1) == labels).mean()
        goal = 0.0 if dimensions else 0.97
        yield Figure(f"looks at digits that are right, {name}", float(right), "", goal)


def _write(job: tuple[str, int, int]) -> None:
    """Some pictures of 224 pixels, in a folder for each class; runs in a process."""
    folder, first, count = job
    rng = np.random.default_rng([53, first])
    paths = fonts()
    for number in range(first, first + count):
        label = number % len(CHARACTERS)
        place = Path(folder) / f"{label}"
        place.mkdir(exist_ok=True)
        small = next(
            one for at, one in enumerate(drawn(paths[number % len(paths)], rng, 56)) if at == label
        )
        noise = rng.integers(0, 60, (SIDE, SIDE, 3))
        large = np.asarray(Image.fromarray((195 * small).astype(np.uint8)).resize((SIDE, SIDE)))
        Image.fromarray((large[..., None] + noise).astype(np.uint8)).save(
            place / f"{number}.jpg", quality=85
        )


def gpu_build(quick: bool) -> Iterator[Figure]:
    """An index of 50,000 pictures of 224 pixels, built on the GPU by the command; no Ray."""
    count = 2000 if quick else PICTURES
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(folder) / "pictures"
        pictures.mkdir()
        jobs = [(str(pictures), first, min(500, count - first)) for first in range(0, count, 500)]
        with ProcessPoolExecutor() as pool:
            list(pool.map(_write, jobs))
        asked = [sys.executable, "-m", "fermata.commands.main", "sneakpeek", "build", str(pictures)]
        asked += ["-o", f"{folder}/look.npz", "--device", "cuda", "--json"]
        ran = subprocess.run(asked, check=True, capture_output=True, text=True)
        peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        about = json.loads(ran.stdout)
    told = f"{count} pictures of {SIDE} pixels (right {about['accuracy']:.1%}, {about['kind']})"
    yield Figure(f"index of {told}: build", about["took_s"] / 60, "min", 5.0, at_most=True)
    yield Figure("memory of the build, resident", peak_kb / 1e6, "GB", 2.0, at_most=True)
    yield Figure(
        "a look of 64 together, on the GPU", about["device_us"] / 1e3, "ms", 0.2, at_most=True
    )


PARTS = {
    "one_look": (one_look, "time and accuracy of a look on one core"),
    "places": (places, "looks on a frontend and on a backend: CPU and time"),
    "digits": (digits, "accuracy of looks at digits"),
    "short_circuits": (short_circuits, "share and accuracy of short circuits, live"),
    "gpu_build": (gpu_build, "index of 50,000 pictures on a GPU, only where named"),
}


def measure(only: Sequence[str], quick: bool) -> Iterator[Figure]:
    for name in only:
        yield from PARTS[name][0](quick)


if __name__ == "__main__":
    told_parts = {name: what for name, (_, what) in PARTS.items()}
    run_parts("Looks by an embedding", measure, told_parts, ("gpu_build",))
