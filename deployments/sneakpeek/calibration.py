"""How far a SneakPeek model can be trusted, measured on data that it was not built from."""

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.projection import Floats, Labels
from fermata.foundation.refusals import refuse
from fermata.router.policies.sneakpeek.classes import Peek, possible_shares

SHARPNESS = tuple(0.05 * step for step in range(1, 31))
SMOOTHING = 0.5
"""Votes added for each pair of classes: none is impossible."""
SMOOTHING_MAX = 5.0
"""Votes added for each true class at most: with many classes they would drown the real ones."""


def calibrate(votes: Floats, labels: Labels) -> Peek:
    """From votes [samples, classes] on held-out samples and their true classes."""
    classes = votes.shape[1]
    counts = np.bincount(labels, minlength=classes)
    if counts.min() == 0:
        refuse(
            "calibration", int(counts.argmin()), "is a class without a held-out sample; add some"
        )
    confusion = _shares_by_class(votes, labels, min(SMOOTHING * classes, SMOOTHING_MAX))
    answers = votes.argmax(axis=1)
    named = _shares_by_class(np.eye(classes, dtype=np.float32)[answers], labels, 1.0)
    right = answers == labels
    recall = [float(right[labels == each].mean()) for each in range(classes)]
    sharpness = max(SHARPNESS, key=lambda one: _fit(votes, labels, confusion, counts, one))
    posterior = _even_posterior(votes, confusion, sharpness)
    hidden = [np.sort(posterior[labels == each, each]) for each in range(classes)]
    return Peek(
        confusion=tuple(tuple(map(float, row)) for row in confusion),
        recall=tuple(recall),
        sharpness=sharpness,
        hidden=tuple(tuple(map(float, row)) for row in hidden),
        named=tuple(tuple(map(float, row)) for row in named),
    )


def _shares_by_class(votes: Floats, labels: Labels, added: float) -> Floats:
    """[true class][class]: shares of the votes, after so many more spread evenly."""
    classes = votes.shape[1]
    counts = np.full((classes, classes), added / classes, np.float32)
    np.add.at(counts, labels, votes)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _even_posterior(votes: Floats, confusion: Floats, sharpness: float) -> NDArray[np.float64]:
    """As `Estimator` makes it with all classes equally frequent."""
    logs = sharpness * votes @ np.log(possible_shares(confusion)).T
    raised = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _fit(
    votes: Floats,
    labels: Labels,
    confusion: Floats,
    counts: NDArray[np.int64],
    sharpness: float,
) -> float:
    """Log-likelihood of the true classes, every class counting alike."""
    posterior = _even_posterior(votes, confusion, sharpness)
    each = np.log(posterior[np.arange(len(labels)), labels] + 1e-12)
    return float((each / counts[labels]).sum())
