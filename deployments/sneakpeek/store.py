"""SneakPeek models on disk: index, calibration, and the checksum of the data they were made of."""

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.pictures.picture import FITS
from fermata.deployments.sneakpeek.embedding import RAW, open_embedding, sees, use_one_core
from fermata.deployments.sneakpeek.index import NeighbourIndex, open_faiss
from fermata.deployments.sneakpeek.labelled_data import (
    ArchiveData,
    Array,
    FolderData,
    digest_files,
)
from fermata.deployments.sneakpeek.projection import Floats, Labels, Projection
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.router.policies.sneakpeek.classes import Peek

SCHEMA = 2
SCHEMAS = (1, SCHEMA)
"""Those that can be read; the first knew raw inputs alone."""


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
    embedding: str = RAW
    dtype: str = ""
    """Type of the samples that it was built from; empty where unknown."""
    names: tuple[str, ...] = ()
    """Names of classes; empty where unknown."""
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and deviation of each channel that inputs were normalised by; None: they were not."""
    on_backends: bool = False
    """Backends look with it, not frontends."""

    @property
    def accuracy(self) -> float:
        """On held-out samples, every class counting alike."""
        return sum(self.peek.recall) / len(self.peek.recall)

    @property
    def is_embedded(self) -> bool:
        """Whether looks need more than the inputs themselves."""
        return self.embedding != RAW

    def warm_up(self) -> None:
        """Take a first look, on one core: other threads serve requests."""
        if not self.is_embedded:
            return
        use_one_core()
        shape = tuple(64 if side < 0 else side for side in self.input_shape)
        self.look([np.zeros(shape, self.dtype or np.float32)])

    def sees(self, shape: tuple[int, ...]) -> bool:
        """Whether it can look at an input of this shape."""
        if self.fit:
            return len(shape) == 3 and shape[2] == 3
        return sees(self.embedding, self.input_shape, shape) or self._is_turned(shape)

    def _is_turned(self, shape: tuple[int, ...]) -> bool:
        """Whether channels of a picture come last, where the model has them first."""
        return len(shape) == 3 == shape[2] and len(self.input_shape) == 3 == self.input_shape[0]

    def look(self, samples: Sequence[Array], device: str = "cpu") -> Floats:
        """Votes [samples, classes] on inputs as they come."""
        return self.vote(self._batch(samples), device)

    def vote(self, batch: Any, device: str = "cpu") -> Floats:
        """Votes on inputs in the form of the samples that it was built from: an array, or a tensor
        of the device where the embedding takes one."""
        return self.index.votes(open_embedding(self.embedding, device)(batch))

    def _batch(self, samples: Sequence[Array]) -> Array:
        """Inputs as they come, in that form."""
        pictures = len(self.input_shape) == 3
        if self.fit:
            make, side = FITS[self.fit], self.input_shape[1]
            samples = [make(each, side) for each in samples]
        elif pictures:
            turned = [self._is_turned(each.shape) and each.shape[0] != 3 for each in samples]
            samples = [
                each.transpose(2, 0, 1) if turn else each
                for each, turn in zip(samples, turned, strict=True)
            ]
        batch = np.stack([each.reshape(self._shape(each.shape)) for each in samples])
        return self._pixels(batch)

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which an input is embedded."""
        same = math.prod(shape) == math.prod(self.input_shape)
        return self.input_shape if same and -1 not in self.input_shape else shape

    def _pixels(self, batch: Array) -> Array:
        """Inputs as they were before they were normalised."""
        if self.scale is None or batch.dtype == np.uint8:
            return batch
        mean, std = (np.array(each, np.float32)[:, None, None] for each in self.scale)
        return (255 * (batch * std + mean)).round().clip(0, 255).astype(np.uint8)


def read_data(path: Path) -> tuple[Floats, Labels]:
    """Labelled samples from an .npz with `samples` [n, ...] and `labels` [n] from 0 up."""
    data = ArchiveData(path)
    parts = [rows.astype(np.float32) for _, rows in data.parts(np.arange(len(data.labels)))]
    return np.concatenate(parts), data.labels


def checksum_of(path: Path) -> str:
    """Names the labelled data in a folder, a CSV or an .npz."""
    if path.is_dir():
        return FolderData(path, 1, "stretch").checksum()
    if path.suffix == ".csv" and path.is_file():
        return digest_files([path])
    return ArchiveData(path).checksum()


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
    embedding: str = RAW
    dtype: str = ""
    names: tuple[str, ...] = ()


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
        embedding=model.embedding,
        dtype=model.dtype,
        names=model.names,
    )
    about = np.array(json.dumps(asdict(header)))
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, about=about, **vars(arrays))


def embedding_of(path: Path) -> str:
    """The embedding that the model in a file needs; the model itself is not read."""
    try:
        with np.load(path, allow_pickle=False) as held:
            return str(json.loads(str(held["about"])).get("embedding", RAW))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        # Whoever reads the whole says why.
        return RAW


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
    if about.get("schema") not in SCHEMAS:
        refuse(f"{path}: schema", about.get("schema"), f"must be 1 to {SCHEMA}; {remedy}")
    header = _Header(**{**about, "peek": _read_peek(**about["peek"])})
    if header.parts != arrays.digest():
        refuse("sneakpeek", str(path), f"is damaged; {remedy}")
    if data is not None and header.data != checksum_of(data):
        refuse("sneakpeek", str(path), f"was not built from {data}; {remedy}")
    index = NeighbourIndex(
        Projection(arrays.mean, arrays.axes),
        arrays.labels,
        header.classes,
        header.k,
        header.kind,
        open_faiss().deserialize_index(arrays.faiss),
    )
    return SneakPeekModel(
        index,
        header.peek,
        header.data,
        tuple(header.input_shape),
        embedding=header.embedding,
        dtype=header.dtype,
        names=tuple(header.names),
    )


def _read_peek(confusion: Any, recall: Any, sharpness: float, hidden: Any, named: Any = ()) -> Peek:
    """JSON knows no tuples. Files of before have no `named`."""
    shares, unseen, called = (tuple(map(tuple, each)) for each in (confusion, hidden, named))
    return Peek(shares, tuple(recall), sharpness, unseen, called)
