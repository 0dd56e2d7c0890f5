"""How good a classifier is on labelled data: accuracy, recall by class, confusion matrix."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse

BATCH = 64


@dataclass(frozen=True, slots=True)
class Quality:
    """Measured on a test set; accuracy holds for streams whose classes come as often as there."""

    accuracy: float
    """tr(Z) / sum(Z) of the confusion matrix Z (SneakPeek Eq. 7)."""
    recall: tuple[float, ...]
    confusion: tuple[tuple[int, ...], ...]
    """[true class][answered class]: how many samples."""


def measure_quality(
    model: Callable[[Any], Any],
    samples: NDArray[np.float32],
    labels: NDArray[np.int64],
    batch: int = BATCH,
    on_batch: Callable[[int], None] | None = None,
) -> Quality:
    """Run a classifier, whose answers are scores by class, over every sample."""
    classes = int(labels.max()) + 1
    parts = (
        (samples[start : start + batch], labels[start : start + batch])
        for start in range(0, len(samples), batch)
    )
    found = measure_batches(model, parts, classes, on_batch)
    if not found.recall:
        sizes = np.bincount(labels, minlength=classes)
        raise ConfigError(f"data has no sample of class {int(sizes.argmin())}; add some")
    return found


def measure_batches(
    model: Callable[[Any], Any],
    batches: Iterable[tuple[NDArray[Any], NDArray[np.int64]]],
    classes: int,
    on_batch: Callable[[int], None] | None = None,
) -> Quality:
    """The same for (samples, labels) that come a batch at a time; recall and confusion are empty
    where some class has no sample."""
    answers: list[int] = []
    truths: list[int] = []
    for samples, labels in batches:
        scores = np.stack([np.asarray(each) for each in _scores(model(samples))])
        if scores.ndim != 2 or scores.shape[1] < classes:
            rule = f"has labels up to {classes - 1}, answers have shape {list(scores.shape[1:])}"
            refuse("data", f"{classes} classes", rule)
        answers.extend(scores.argmax(axis=1).tolist())
        truths.extend(labels.tolist())
        if on_batch is not None:
            on_batch(len(answers))
    counts = np.zeros((classes, max(classes, max(answers) + 1)), np.int64)
    np.add.at(counts, (np.array(truths), np.array(answers)), 1)
    sizes = counts.sum(axis=1)
    right = counts.diagonal()
    accuracy = round(float(right.sum() / counts.sum()), 4)
    if sizes.min() == 0:
        return Quality(accuracy, (), ())
    return Quality(
        accuracy,
        tuple(round(float(each), 4) for each in right / sizes),
        tuple(tuple(row) for row in counts.tolist()),
    )


def _scores(answers: Any) -> Any:
    """The only output of a model that names its outputs."""
    if isinstance(answers, Mapping) and len(answers) == 1:
        return next(iter(answers.values()))
    return answers
