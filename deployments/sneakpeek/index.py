"""A SneakPeek model: votes of the nearest training samples, found by faiss in few dimensions."""

from importlib import import_module
from typing import Any

import numpy as np

from fermata.deployments.sneakpeek.labelled_data import ArrayData
from fermata.deployments.sneakpeek.projection import Floats, Labels, Projection, fit_projection
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse

KINDS = ("auto", "exact", "ivf", "hnsw")
EXACT_MAX = 10_000
"""`auto` compares with every sample up to so many. In 3 to 64 dimensions, 10,000 take up to 0.15 ms
of a core, and 50,000 0.25 to 0.8 ms, for which lists take 0.04 to 0.11 and are as right."""
IVF_MAX = 1_000_000
"""Above, `auto` takes a graph: lists would be long."""
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
        return self.votes_at(self.projection(samples))

    def votes_at(self, points: Floats) -> Floats:
        """The same of projected samples."""
        found = self.faiss.search(points, self.k)[1]
        votes = np.zeros((len(points), self.classes), np.float32)
        rows = np.repeat(np.arange(len(points)), self.k)
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
    """Over these training samples, by so many of their principal components."""
    if len(samples) != len(labels):
        refuse("labels", len(labels), f"must be as many as samples, {len(samples)}")
    projection = fit_projection(samples, dimensions)
    return index_points(projection(samples), labels, projection, classes, k, kind)


def index_points(
    points: Floats, labels: Labels, projection: Projection, classes: int, k: int, kind: str
) -> NeighbourIndex:
    """Over samples that are projected already; `auto` is exact for small sets, has inverted lists
    for large ones and a graph for the largest."""
    faiss = open_faiss()
    if kind not in KINDS:
        refuse("kind", kind, f"must be one of {', '.join(KINDS)}")
    if not 1 <= k <= len(points):
        refuse("k", k, f"must be 1 to {len(points)}, the samples there are")
    if kind == "auto":
        kind = "exact" if len(points) <= EXACT_MAX else "ivf" if len(points) <= IVF_MAX else "hnsw"
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
    return ArrayData(samples, labels).checksum()
