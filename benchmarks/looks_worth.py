"""Looks by chosen dimensions: their worth over being blind, and beside knowing the class.

`python -m benchmarks.looks_worth [--only PART] [--seeds N] [--data FOLDER]` plays a sweep of
deadlines and rates, with real variants and real answers. FOLDER holds Fashion-MNIST, as Debian's
package `dataset-fashion-mnist` installs it.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.characters import CHARACTERS, characters
from benchmarks.clothes import FOLDER, check, clothes
from benchmarks.figures import Figure, parts_parser, run
from benchmarks.sneakpeek_setting import Floats, Labels, Pictures, Prepared, prepare
from benchmarks.sneakpeek_windows import Load, Shape, draw_load, play
from fermata.deployments.sneakpeek.building import build_model
from fermata.deployments.sneakpeek.index import NeighbourIndex
from fermata.router.policies.sneakpeek.classes import Peek

HELD_OUT = 10**6
"""The first seed. Nothing was tuned on seeds from there on."""
SEEDS = 3
DEADLINES_MS = (100.0, 150.0, 200.0)
RATES = (3, 4, 6)
"""Requests of each application in a window."""
PLAIN = {"short_circuit": False}

PARTS = {
    "characters": f"{len(CHARACTERS)} classes of characters, no font in both index and test",
    "fashion": "Fashion-MNIST, all ten classes",
}


def _chosen(samples: Floats, labels: Labels, count: int) -> NeighbourIndex:
    return build_model(samples, labels).index


def prepare_alike(pictures: Pictures) -> list[Prepared]:
    """Applications of one task that differ in frequencies alone: prepared once."""
    first = prepare(pictures, pictures.tasks[0], index_of=_chosen)
    return [replace(first, task=task) for task in pictures.tasks]


def knowing(prepared: Sequence[Prepared], load: Load) -> tuple[list[Prepared], Load]:
    """The same with looks that are always right."""
    known: list[Prepared] = []
    votes: list[tuple[float, ...]] = [()] * len(load.contents.label)
    for number, each in enumerate(prepared):
        eye = np.eye(len(each.task.classes))
        sure = tuple(map(tuple, eye.tolist()))
        peek = Peek(sure, (1.0,) * len(eye), named=sure)
        known.append(replace(each, classes=replace(each.classes, peek=peek)))
        for row in np.flatnonzero(load.arrivals.application == number).tolist():
            votes[row] = tuple((5 * eye[load.contents.label[row]]).tolist())
    return known, replace(load, contents=replace(load.contents, votes=list(votes)))


def _played(prepared: Sequence[Prepared], load: Load, penalty: str) -> NDArray[np.float64]:
    """Utility of looks, of none, of looks that only choose, and of knowing the class to choose."""
    known, told = knowing(prepared, load)
    return np.array(
        [
            play(prepared, load, "sneakpeek", penalty).mean,
            play(prepared, load, "grouped", penalty).mean,
            play(prepared, load, "sneakpeek", penalty, PLAIN).mean,
            play(known, told, "sneakpeek", penalty, PLAIN).mean,
        ]
    )


def worth(
    name: str, prepared: Sequence[Prepared], goal: float, seeds: Sequence[int], quick: bool
) -> Iterator[Figure]:
    """Means over a sweep of deadlines and rates, and the points where looks gain least."""
    windows = 20 if quick else 60
    shapes = [
        Shape(each, (deadline_ms, deadline_ms / 6))
        for deadline_ms, each in product(DEADLINES_MS, RATES)
    ]
    shapes = shapes[4:5] if quick else shapes
    for penalty in ("step", "sigmoid"):
        found = np.array(
            [
                [
                    _played(
                        prepared, draw_load(prepared, windows, False, seed, shape=shape), penalty
                    )
                    for seed in seeds
                ]
                for shape in shapes
            ]
        )
        ours, blind, chosen, best = found.mean(axis=(0, 1))
        by_shape = found.mean(axis=1)
        least = float((by_shape[:, 0] / by_shape[:, 1]).min())
        told = f"utility {ours:.3f} over the blind {blind:.3f}"
        unit = f"x (least of {len(shapes)} points {least:.3f})"
        yield Figure(f"{name}, {penalty}: {told}", float(ours / blind), unit, goal)
        by_seed = found.mean(axis=0)
        shares = (by_seed[:, 2] - by_seed[:, 1]) / (by_seed[:, 3] - by_seed[:, 1])
        told = f"of the gain of knowing the class ({best:.3f}) for the choice ({chosen:.3f})"
        unit = f"({len(seeds)} seeds: {shares.min():.2f} to {shares.max():.2f})"
        share = float((chosen - blind) / (best - blind))
        yield Figure(f"{name}, {penalty}: {told}", share, unit, 0.8)


def described(prepared: Prepared) -> str:
    """How often looks and variants are right."""
    rng = np.random.default_rng(3)
    stream = prepared.stream(1000, prepared.task.frequencies, rng)
    looks = (stream.answers == stream.labels).mean()
    variants = ", ".join(f"{share:.1%}" for share in stream.right.mean(axis=0))
    return f"looks right {looks:.1%}, variants {variants}"


def measure(
    only: Sequence[str], folder: Path, seeds: Sequence[int], quick: bool
) -> Iterator[Figure]:
    if "characters" in only:
        prepared = prepare_alike(characters())
        name = f"{len(CHARACTERS)} classes ({described(prepared[0])})"
        yield from worth(name, prepared, 1.03, seeds, quick)
    if "fashion" in only:
        prepared = prepare_alike(clothes(folder))
        name = f"Fashion-MNIST ({described(prepared[0])})"
        yield from worth(name, prepared, 1.04, seeds, quick)


def main() -> None:
    parser: argparse.ArgumentParser = parts_parser(PARTS)
    told = f"folder of Fashion-MNIST, {FOLDER} unless given"
    parser.add_argument("--data", type=Path, default=FOLDER, help=told)
    told = f"seeds that figures are taken over, {SEEDS} unless given, 1 with --quick"
    parser.add_argument("--seeds", type=int, default=0, help=told)
    given = parser.parse_known_args()[0]

    def figures(quick: bool) -> Iterator[Figure]:
        seeds = range(HELD_OUT, HELD_OUT + (given.seeds or (1 if quick else SEEDS)))
        only = given.only or list(PARTS)
        if "fashion" in only:
            # Here, not when its turn comes: the other set takes minutes.
            check(given.data)
        yield from measure(only, given.data, seeds, quick)

    run("Worth of looks", figures, parser)


if __name__ == "__main__":
    main()
