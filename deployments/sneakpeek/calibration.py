"""How far a SneakPeek model can be trusted, measured on data that it was not built from."""

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.projection import Floats, Labels
from fermata.foundation.refusals import refuse
from fermata.router.policies.sneakpeek.classes import Peek
from fermata.router.policies.sneakpeek.possible_shares import possible_shares

SHARPNESS = tuple(0.05 * step for step in range(1, 31))
SMOOTHING = 0.5
"""Votes added for each pair of classes: none is impossible."""
SMOOTHING_MAX = 5.0
"""Votes added for each true class at most: with many classes they would drown the real ones."""
FOLDS = 5
"""Parts of the held-out samples; each is judged by a confusion matrix of the others."""


def calibrate(votes: Floats, labels: Labels) -> Peek:
    """From votes [samples, classes] on held-out samples and their true classes."""
    classes = votes.shape[1]
    counts = np.bincount(labels, minlength=classes)
    if counts.min() == 0:
        refuse(
            "calibration", int(counts.argmin()), "is a class without a held-out sample; add some"
        )
    confusion = _confusion(votes, labels)
    answers = votes.argmax(axis=1)
    named = _shares_by_class(np.eye(classes, dtype=np.float32)[answers], labels, 1.0)
    right = answers == labels
    recall = [float(right[labels == each].mean()) for each in range(classes)]
    sharpness = _sharpness(votes, labels, counts)
    posterior = _even_posterior(votes, confusion, sharpness)
    hidden = [np.sort(posterior[labels == each, each]) for each in range(classes)]
    return Peek(
        confusion=tuple(tuple(map(float, row)) for row in confusion),
        recall=tuple(recall),
        sharpness=sharpness,
        hidden=tuple(tuple(map(float, row)) for row in hidden),
        named=tuple(tuple(map(float, row)) for row in named),
    )


def _confusion(votes: Floats, labels: Labels) -> Floats:
    """[true class][voted class]: shares of the votes."""
    return _shares_by_class(votes, labels, min(SMOOTHING * votes.shape[1], SMOOTHING_MAX))


def _shares_by_class(votes: Floats, labels: Labels, added: float) -> Floats:
    """[true class][class]: shares of the votes, after so many more spread evenly."""
    classes = votes.shape[1]
    counts = np.full((classes, classes), added / classes, np.float32)
    np.add.at(counts, labels, votes)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _even_posterior(votes: Floats, confusion: Floats, sharpness: float) -> NDArray[np.float64]:
    """As `Estimator` makes it with all classes equally frequent."""
    return _normalised(sharpness * _logs(votes, confusion))


def _logs(votes: Floats, confusion: Floats) -> NDArray[np.float64]:
    """[sample][class]: logarithm of the likelihood of its votes, each counting as one."""
    return np.asarray(votes @ np.log(possible_shares(confusion)).T)


def _normalised(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    raised = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _sharpness(votes: Floats, labels: Labels, counts: NDArray[np.int64]) -> float:
    """The one by which true classes are most likely, every class counting alike.

    The confusion matrix that a sample helped to make knows it: with many classes of few samples
    each, looks would seem far surer than they are.
    """
    classes = votes.shape[1]
    fold = np.zeros(len(labels), np.int64)
    for number in range(classes):
        mine = np.flatnonzero(labels == number)
        fold[mine] = np.arange(len(mine)) % FOLDS
    found = np.zeros(len(SHARPNESS))
    for part in range(FOLDS):
        mine = np.flatnonzero(fold == part)
        others = np.flatnonzero(fold != part)
        if not len(mine):
            continue
        logs = _logs(votes[mine], _confusion(votes[others], labels[others]))
        for place, sharpness in enumerate(SHARPNESS):
            posterior = _normalised(sharpness * logs)
            each = np.log(posterior[np.arange(len(mine)), labels[mine]] + 1e-12)
            found[place] += float((each / counts[labels[mine]]).sum())
    return SHARPNESS[int(found.argmax())]
