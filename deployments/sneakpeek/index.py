"""A SneakPeek model: votes of the nearest training samples, found by faiss in few dimensions."""

from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

KINDS = ("auto", "exact", "ivf", "hnsw")
EXACT_MAX = 50_000
"""`auto` compares with every sample up to so many: 50,000 x 3 takes 20 us a request."""
HNSW_LINKS = 16
HNSW_EFFORT = 64
IVF_PROBES = 8


def open_faiss() -> Any:
    """The library, on one thread: batches are small, and other threads serve requests."""
    try:
        faiss = import_module("faiss")
    except ImportError:
        raise ConfigError("SneakPeek models need pip install faiss-cpu") from None
    faiss.omp_set_num_threads(1)
    return faiss


@dataclass(frozen=True, slots=True)
class Projection:
    """The first principal components of the training data."""

    mean: Floats
    axes: Floats
    """[dimensions, features]."""

    def __call__(self, samples: Floats) -> Floats:
        flat = samples.reshape(len(samples), -1).astype(np.float32, copy=False)
        return np.ascontiguousarray((flat - self.mean) @ self.axes.T)


def fit_projection(samples: Floats, dimensions: int) -> Projection:
    """Principal components of the samples; 0 dimensions: every feature as it is."""
    flat = samples.reshape(len(samples), -1).astype(np.float32)
    features = flat.shape[1]
    if not 0 <= dimensions <= features:
        refuse("dimensions", dimensions, f"must be 0 (as they are) to {features}")
    if dimensions == 0:
        return Projection(np.zeros(features, np.float32), np.eye(features, dtype=np.float32))
    mean = flat.mean(axis=0)
    spread = np.cov((flat - mean).T.astype(np.float64))
    # Eigenvectors come by ascending eigenvalue; their sign is arbitrary, so it is fixed here.
    axes = np.linalg.eigh(np.atleast_2d(spread))[1][:, ::-1][:, :dimensions].T
    signs = np.sign(axes[np.arange(dimensions), np.abs(axes).argmax(axis=1)])
    return Projection(mean, (axes * signs[:, None]).astype(np.float32))


class NeighbourIndex:
    """Answers with the classes of the k nearest training samples."""

    def __init__(
        self, projection: Projection, labels: Labels, classes: int, k: int, kind: str, faiss: Any
    ) -> None:
        self.projection = projection
        self.labels = labels
        self.classes = classes
        self.k = k
        self.kind = kind
        self.faiss = faiss

    def votes(self, samples: Floats) -> Floats:
        """How many of the k nearest are of each class: [samples, classes]."""
        found = self.faiss.search(self.projection(samples), self.k)[1]
        votes = np.zeros((len(samples), self.classes), np.float32)
        rows = np.repeat(np.arange(len(samples)), self.k)
        # An approximate index may find fewer than k; it says -1 then.
        near = found.reshape(-1)
        np.add.at(votes, (rows[near >= 0], self.labels[near[near >= 0]]), 1.0)
        return votes


def build_index(
    samples: Floats,
    labels: Labels,
    classes: int,
    dimensions: int = 3,
    k: int = 5,
    kind: str = "auto",
) -> NeighbourIndex:
    """Over these training samples; `auto` is exact for small sets, inverted lists for large."""
    faiss = open_faiss()
    if kind not in KINDS:
        refuse("kind", kind, f"must be one of {', '.join(KINDS)}")
    if len(samples) != len(labels):
        refuse("labels", len(labels), f"must be as many as samples, {len(samples)}")
    if not 1 <= k <= len(samples):
        refuse("k", k, f"must be 1 to {len(samples)}, the samples there are")
    if kind == "auto":
        kind = "exact" if len(samples) <= EXACT_MAX else "ivf"
    projection = fit_projection(samples, dimensions)
    points = projection(samples)
    width = points.shape[1]
    if kind == "exact":
        index: Any = faiss.IndexFlatL2(width)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, HNSW_LINKS)
        index.hnsw.efSearch = HNSW_EFFORT
    else:
        lists = max(1, int(len(points) ** 0.5 / 2))
        index = faiss.index_factory(width, f"IVF{lists},Flat")
        index.train(points)
        index.nprobe = min(lists, IVF_PROBES)
    index.add(points)
    return NeighbourIndex(projection, labels.astype(np.int64), classes, k, kind, index)


def checksum(samples: Floats, labels: Labels) -> str:
    """Names labelled data: one changed pixel gives another."""
    digest = blake2b(digest_size=16)
    for part in (samples.astype(np.float32), labels.astype(np.int64)):
        digest.update(repr(part.shape).encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
