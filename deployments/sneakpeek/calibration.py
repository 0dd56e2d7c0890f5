"""How far a SneakPeek model can be trusted, measured on data that it was not built from."""

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.index import Floats, Labels
from fermata.foundation.refusals import refuse
from fermata.router.policies.sneakpeek.classes import TINY, Peek

SHARPNESS = tuple(0.05 * step for step in range(1, 31))
SMOOTHING = 0.5
"""Votes added for each pair of classes: none is impossible."""


def calibrate(votes: Floats, labels: Labels) -> Peek:
    """From votes [samples, classes] on held-out samples and their true classes."""
    classes = votes.shape[1]
    counts = np.bincount(labels, minlength=classes)
    if counts.min() == 0:
        refuse(
            "calibration", int(counts.argmin()), "is a class without a held-out sample; add some"
        )
    confusion = np.stack([votes[labels == each].sum(axis=0) for each in range(classes)])
    confusion = confusion + SMOOTHING
    confusion /= confusion.sum(axis=1, keepdims=True)
    right = votes.argmax(axis=1) == labels
    recall = [float(right[labels == each].mean()) for each in range(classes)]
    sharpness = max(SHARPNESS, key=lambda one: _fit(votes, labels, confusion, counts, one))
    posterior = _even_posterior(votes, confusion, sharpness)
    hidden = [np.sort(posterior[labels == each, each]) for each in range(classes)]
    return Peek(
        confusion=tuple(tuple(map(float, row)) for row in confusion),
        recall=tuple(recall),
        sharpness=sharpness,
        hidden=tuple(tuple(map(float, row)) for row in hidden),
    )


def _even_posterior(
    votes: Floats, confusion: NDArray[np.float64], sharpness: float
) -> NDArray[np.float64]:
    """As `Estimator` makes it with all classes equally frequent."""
    logs = sharpness * votes @ np.log((1 - TINY) * confusion + TINY / len(confusion)).T
    raised = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _fit(
    votes: Floats,
    labels: Labels,
    confusion: NDArray[np.float64],
    counts: NDArray[np.int64],
    sharpness: float,
) -> float:
    """Log-likelihood of the true classes, every class counting alike."""
    posterior = _even_posterior(votes, confusion, sharpness)
    each = np.log(posterior[np.arange(len(labels)), labels] + 1e-12)
    return float((each / counts[labels]).sum())
