"""SneakPeek models from labelled data: embedded in parts, indexed, tried on held-out samples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.calibration import calibrate
from fermata.deployments.sneakpeek.embedding import RAW, Embedding, open_embedding
from fermata.deployments.sneakpeek.index import index_points
from fermata.deployments.sneakpeek.labelled_data import ArrayData, LabelledData
from fermata.deployments.sneakpeek.projection import (
    Floats,
    Labels,
    Projection,
    discriminant,
    fit_projection,
)
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.foundation.refusals import refuse

HELD_OUT = 0.25
"""Share of each class's samples that calibrate and never enter the index."""
TRIED = 0.2
"""Share of the others that dimensions are chosen by; they enter the index afterwards."""
DIMENSIONS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Principal components that are tried, and the most that are kept."""
FITTED_BYTES = 256 << 20
FITTED_MAX = 4096
"""Samples that principal components are found by."""
TRIED_MAX = 2000
INDEXED_MAX = 20_000
"""Samples that dimensions are tried on, and by."""
POINTS_BYTES_MAX = 1 << 30

Bits = NDArray[np.bool_]
OnProgress = Callable[[str, int, int], None]
"""Hears of a stage, how many samples are done, and of how many."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How a SneakPeek model is made."""

    dimensions: int | None = None
    """Principal components to compare; 0: every feature; None: what held-out samples choose."""
    k: int = 5
    kind: str = "auto"
    seed: int = 0
    embedding: str = RAW
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A SneakPeek model, and its votes on samples that it was not made from."""

    model: SneakPeekModel
    votes: Floats
    labels: Labels
    samples: int
    """Samples that could be read."""


def build_model(
    samples: Floats,
    labels: Labels,
    dimensions: int | None = None,
    k: int = 5,
    kind: str = "auto",
    seed: int = 0,
) -> SneakPeekModel:
    """Index most of the samples as they are and calibrate on the others."""
    options = BuildOptions(dimensions, k, kind, seed)
    return build(ArrayData(samples, labels), options).model


def build(
    data: LabelledData, options: BuildOptions, on_progress: OnProgress | None = None
) -> BuiltModel:
    """Embed the samples part by part, index most of them and calibrate on the others."""
    embedding = open_embedding(options.embedding, options.device)
    rng = np.random.default_rng(options.seed)
    held = _held_out(data.labels, HELD_OUT, rng)
    base, points, read = _embedded(data, embedding, held, options, rng, on_progress)
    labels, held = data.labels[read], held[read]
    classes = int(data.labels.max()) + 1
    _check_counts(labels, held, classes, data.names)
    projection = base
    if options.dimensions is None:
        axes = _chosen_axes(points[~held], labels[~held], options.k, rng)
        projection, points = base.then(axes), np.ascontiguousarray(points @ axes.T)
    indexed = points[~held], labels[~held]
    index = index_points(*indexed, projection, classes, options.k, options.kind)
    votes = index.votes_at(points[held])
    model = SneakPeekModel(
        index,
        calibrate(votes, labels[held]),
        data.checksum(),
        tuple(data.input_shape),
        embedding=options.embedding,
        dtype=data.dtype,
        names=data.names,
    )
    return BuiltModel(model, votes, labels[held], len(labels))


def _held_out(labels: Labels, share: float, rng: np.random.Generator) -> Bits:
    """Marks a share of each class's samples, and at least one."""
    out = np.zeros(len(labels), np.bool_)
    for number in range(int(labels.max()) + 1):
        mine = rng.permutation(np.flatnonzero(labels == number))
        if len(mine) < 2:
            refuse(f"class {number}", len(mine), "must have at least 2 samples")
        out[mine[: max(1, round(share * len(mine)))]] = True
    return out


def _check_counts(labels: Labels, held: Bits, classes: int, names: tuple[str, ...]) -> None:
    """Refuse a class of which nothing readable is left to index or to calibrate by."""
    for part in (labels[held], labels[~held]):
        counts = np.bincount(part, minlength=classes)
        if not counts.min():
            least = int(counts.argmin())
            named = names[least] if names else str(least)
            refuse("class", named, "has too few samples that can be read; add some")


def _embedded(
    data: LabelledData,
    embedding: Embedding,
    held: Bits,
    options: BuildOptions,
    rng: np.random.Generator,
    on_progress: OnProgress | None,
) -> tuple[Projection, Floats, Labels]:
    """Principal components, all samples in these, and the numbers of those that could be read."""
    total = len(held)
    indexed = rng.permutation(np.flatnonzero(~held))
    probe = _features(data, embedding, np.sort(indexed[:1]), None)[1].shape[1]
    room = max(64, min(FITTED_MAX, FITTED_BYTES // (4 * probe)))
    known, rows = _features(data, embedding, np.sort(indexed[:room]), on_progress)
    most = min(probe, len(rows) - 1, DIMENSIONS[-1])
    wanted = most if options.dimensions is None else options.dimensions
    width = wanted or probe
    if 4 * total * width > POINTS_BYTES_MAX:
        rule = f"{total} samples of {width} numbers take {4 * total * width >> 20} MB"
        allowed = POINTS_BYTES_MAX // (4 * total)
        refuse("dimensions", wanted, f"{rule}; give 1 to {allowed}, or none to have them chosen")
    base = fit_projection(rows, wanted)
    rest = np.setdiff1d(np.arange(total), known)
    numbers, others = [known], [base(rows)]
    done = len(known)
    del rows
    for mine, samples in data.parts(rest):
        numbers.append(mine)
        others.append(base(embedding(samples)))
        done += len(mine)
        if on_progress is not None:
            on_progress("embedding", done, total)
    read = np.concatenate(numbers)
    order = np.argsort(read)
    return base, np.concatenate(others)[order], read[order]


def _features(
    data: LabelledData, embedding: Embedding, wanted: Labels, on_progress: OnProgress | None
) -> tuple[Labels, Floats]:
    """Numbers and features of the samples with these numbers."""
    numbers: list[Labels] = []
    rows: list[Floats] = []
    for mine, samples in data.parts(wanted):
        numbers.append(mine)
        rows.append(embedding(samples))
        if on_progress is not None:
            on_progress("finding directions", sum(map(len, numbers)), len(wanted))
    if not rows:
        refuse("data", len(wanted), "samples were tried, and none of them can be read")
    return np.concatenate(numbers), np.concatenate(rows)


def _chosen_axes(points: Floats, labels: Labels, k: int, rng: np.random.Generator) -> Floats:
    """Axes [dimensions, own dimensions] by which neighbours name the right class most often.

    Of those that do about as well as the best, the fewest: they make looks fast.
    """
    tried = _held_out(labels, TRIED, rng)
    asked = rng.permutation(np.flatnonzero(tried))[:TRIED_MAX]
    known = rng.permutation(np.flatnonzero(~tried))[:INDEXED_MAX]
    width = points.shape[1]
    eye = np.eye(width, dtype=np.float32)
    candidates = [eye[:count] for count in DIMENSIONS if count < width] + [eye]
    apart = min(width, int(labels.max()), len(known) - 1)
    if apart >= 1:
        whole = discriminant(points[known], labels[known], apart)
        candidates += [whole[:count] for count in DIMENSIONS if count < apart] + [whole]
    classes, votes = int(labels.max()) + 1, min(k, len(known))
    found: list[tuple[float, Floats]] = []
    for axes in candidates:
        identity = Projection(np.zeros(len(axes), np.float32), np.zeros((0, len(axes)), np.float32))
        placed = np.ascontiguousarray(points @ axes.T)
        index = index_points(placed[known], labels[known], identity, classes, votes, "exact")
        right = index.votes_at(placed[asked]).argmax(axis=1) == labels[asked]
        found.append((float(right.mean()), axes))
    best = max(share for share, _ in found)
    enough = best - ((best * (1 - best) / len(asked)) ** 0.5) / 2
    good = [each for each in found if each[0] >= enough]
    return min(good, key=lambda each: (len(each[1]), -each[0]))[1]
