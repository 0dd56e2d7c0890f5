"""Directions in which samples are compared: those that vary most, or that tell classes apart."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fermata.foundation.refusals import refuse

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

SHRINKAGE = 0.1
"""Share of the even spread in that within classes: few samples tell little of it."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear map of features: less a mean, onto some axes."""

    mean: Floats
    axes: Floats
    """[dimensions, features]; none: every feature as it is."""

    def __call__(self, samples: NDArray[np.generic]) -> Floats:
        flat = samples.reshape(len(samples), -1).astype(np.float32, copy=False)
        if not len(self.axes):
            return np.ascontiguousarray(flat)
        return np.ascontiguousarray((flat - self.mean) @ self.axes.T)

    def then(self, axes: Floats) -> "Projection":
        """This one, and then onto axes [dimensions, own dimensions]."""
        return Projection(self.mean, (axes @ self.axes).astype(np.float32))


def fit_projection(samples: NDArray[np.generic], dimensions: int) -> Projection:
    """Principal components of the samples; 0 dimensions: every feature as it is.

    The matrix that is decomposed has the side of whichever is fewer, samples or features.
    """
    flat = samples.reshape(len(samples), -1).astype(np.float32)
    count, features = flat.shape
    if not 0 <= dimensions <= features:
        refuse("dimensions", dimensions, f"must be 0 (as they are) to {features}")
    if dimensions == 0:
        return Projection(np.zeros(features, np.float32), np.zeros((0, features), np.float32))
    mean = flat.mean(axis=0)
    flat -= mean
    # Eigenvectors come by ascending eigenvalue.
    if features <= count:
        spread = np.asarray(flat.T @ flat, np.float64)
        axes = np.linalg.eigh(spread)[1][:, ::-1][:, :dimensions].T
    else:
        likeness = np.asarray(flat @ flat.T, np.float64)
        values, vectors = (each[..., ::-1][..., :dimensions] for each in np.linalg.eigh(likeness))
        # Directions without any spread would be noise.
        seen = values > values[0] * 1e-9
        axes = (flat.T @ vectors[:, seen].astype(np.float32) / np.sqrt(values[seen])).T
    # Their sign is arbitrary, so it is fixed here.
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    return Projection(mean, (axes * signs[:, None]).astype(np.float32))


def discriminant(points: Floats, labels: Labels, dimensions: int) -> Floats:
    """Axes [dimensions, own dimensions] along which classes lie apart (Fisher), widest first."""
    width = points.shape[1]
    classes = np.unique(labels)
    middles = np.stack([points[labels == each].mean(axis=0) for each in classes])
    apart = points - middles[np.searchsorted(classes, labels)]
    within = np.asarray(apart.T @ apart, np.float64) / len(points)
    even = np.trace(within) / width
    within = (1 - SHRINKAGE) * within + SHRINKAGE * even * np.eye(width)
    values, vectors = np.linalg.eigh(within)
    whiten = vectors / np.sqrt(np.maximum(values, 1e-12))
    centred = (middles - middles.mean(axis=0)) @ whiten
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :dimensions].T
    return np.asarray(axes @ whiten.T, np.float32)
