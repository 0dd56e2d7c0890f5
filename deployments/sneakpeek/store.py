"""SneakPeek models on disk: index, calibration, and the checksum of the data they were made of."""

import json
import math
import zipfile
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.calibration import calibrate
from fermata.deployments.sneakpeek.index import (
    Floats,
    Labels,
    NeighbourIndex,
    Projection,
    build_index,
    checksum,
    open_faiss,
)
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.router.policies.sneakpeek.classes import Peek

SCHEMA = 1
HELD_OUT = 0.25
"""Share of each class's samples that calibrate and never enter the index."""


@dataclass(frozen=True, slots=True)
class SneakPeekModel:
    """A SneakPeek model as a frontend needs it to peek at requests of one application."""

    index: NeighbourIndex
    peek: Peek
    data: str
    """Checksum of the labelled data it was built from."""
    input_shape: tuple[int, ...]
    fit: str = ""
    """Frames come in any size and are fitted to its own: `whole` or `centre`."""

    @property
    def accuracy(self) -> float:
        """On held-out samples, every class counting alike."""
        return sum(self.peek.recall) / len(self.peek.recall)

    def sees(self, shape: tuple[int, ...]) -> bool:
        """Whether it can look at an input of this shape."""
        if self.fit:
            return len(shape) == 3 and shape[2] == 3
        return math.prod(shape) == math.prod(self.input_shape)


def read_data(path: Path) -> tuple[Floats, Labels]:
    """Labelled samples from an .npz with `samples` [n, ...] and `labels` [n] from 0 up."""
    try:
        with np.load(path, allow_pickle=False) as held:
            samples, labels = held["samples"], held["labels"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"data={str(path)!r}: cannot be read ({reason}); give an .npz with samples and labels"
        ) from None
    if len(samples) != len(labels) or labels.ndim != 1 or not len(labels):
        refuse("data", str(path), f"has {len(samples)} samples and {len(labels)} labels")
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        refuse("data", str(path), "labels must be whole numbers from 0 up")
    return samples.astype(np.float32), labels.astype(np.int64)


def build_model(
    samples: Floats,
    labels: Labels,
    dimensions: int = 3,
    k: int = 5,
    kind: str = "auto",
    seed: int = 0,
) -> SneakPeekModel:
    """Index most of the samples and calibrate on the others."""
    classes = int(labels.max()) + 1
    rng = np.random.default_rng(seed)
    held: list[int] = []
    for number in range(classes):
        mine = rng.permutation(np.flatnonzero(labels == number))
        if len(mine) < 2:
            refuse(f"class {number}", len(mine), "must have at least 2 samples")
        held.extend(mine[: max(1, round(HELD_OUT * len(mine)))].tolist())
    out = np.zeros(len(labels), np.bool_)
    out[held] = True
    index = build_index(samples[~out], labels[~out], classes, dimensions, k, kind)
    peek = calibrate(index.votes(samples[out]), labels[out])
    return SneakPeekModel(index, peek, checksum(samples, labels), samples.shape[1:])


@dataclass(frozen=True)
class _Arrays:
    """The arrays of a file, by the names that they have there."""

    mean: NDArray[Any]
    axes: NDArray[Any]
    labels: NDArray[Any]
    faiss: NDArray[Any]

    def digest(self) -> str:
        digest = blake2b(digest_size=16)
        for name, array in sorted(vars(self).items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Header:
    """All else in a file, as JSON with these names."""

    schema: int
    data: str
    classes: int
    k: int
    kind: str
    input_shape: tuple[int, ...]
    peek: Peek
    parts: str
    """Digest of the arrays."""


def save_model(path: Path, model: SneakPeekModel) -> None:
    index = model.index
    arrays = _Arrays(
        mean=index.projection.mean,
        axes=index.projection.axes,
        labels=index.labels,
        faiss=open_faiss().serialize_index(index.faiss),
    )
    header = _Header(
        schema=SCHEMA,
        data=model.data,
        classes=index.classes,
        k=index.k,
        kind=index.kind,
        input_shape=model.input_shape,
        peek=model.peek,
        parts=arrays.digest(),
    )
    about = np.array(json.dumps(asdict(header)))
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, about=about, **vars(arrays))


def load_model(path: Path, data: Path | None = None) -> SneakPeekModel:
    """The model in a file; refused where the file is damaged, or was built from other data."""
    remedy = "build it again with `fermata sneakpeek build`"
    try:
        with np.load(path, allow_pickle=False) as held:
            about = json.loads(str(held["about"]))
            arrays = _Arrays(**{each.name: held[each.name] for each in fields(_Arrays)})
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"sneakpeek={str(path)!r}: cannot be read ({reason}); {remedy}") from None
    if about.get("schema") != SCHEMA:
        refuse(f"{path}: schema", about.get("schema"), f"must be {SCHEMA}; {remedy}")
    header = _Header(**{**about, "peek": _read_peek(**about["peek"])})
    if header.parts != arrays.digest():
        refuse("sneakpeek", str(path), f"is damaged; {remedy}")
    if data is not None and header.data != checksum(*read_data(data)):
        refuse("sneakpeek", str(path), f"was not built from {data}; {remedy}")
    index = NeighbourIndex(
        Projection(arrays.mean, arrays.axes),
        arrays.labels,
        header.classes,
        header.k,
        header.kind,
        open_faiss().deserialize_index(arrays.faiss),
    )
    return SneakPeekModel(index, header.peek, header.data, tuple(header.input_shape))


def _read_peek(confusion: Any, recall: Any, sharpness: float, hidden: Any, named: Any = ()) -> Peek:
    """JSON knows no tuples. Files of before have no `named`."""
    shares, unseen, called = (tuple(map(tuple, each)) for each in (confusion, hidden, named))
    return Peek(shares, tuple(recall), sharpness, unseen, called)
