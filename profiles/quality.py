"""How good a classifier is on labelled data: accuracy, recall by class, confusion matrix."""

from collections.abc import Callable
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
    answers: list[int] = []
    for start in range(0, len(samples), batch):
        scores = np.stack([np.asarray(each) for each in model(samples[start : start + batch])])
        if scores.ndim != 2 or scores.shape[1] < classes:
            rule = f"has labels up to {classes - 1}, answers have shape {list(scores.shape[1:])}"
            refuse("data", f"{classes} classes", rule)
        answers.extend(scores.argmax(axis=1).tolist())
        if on_batch is not None:
            on_batch(len(answers))
    counts = np.zeros((classes, max(classes, max(answers) + 1)), np.int64)
    np.add.at(counts, (labels, np.array(answers)), 1)
    sizes = counts.sum(axis=1)
    if sizes.min() == 0:
        raise ConfigError(f"data has no sample of class {int(sizes.argmin())}; add some")
    right = counts.diagonal()
    return Quality(
        round(float(right.sum() / counts.sum()), 4),
        tuple(round(float(each), 4) for each in right / sizes),
        tuple(tuple(row) for row in counts.tolist()),
    )
