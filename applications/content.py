"""Content of simulated requests: class frequencies, and samples to draw from."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.applications.classes import Steps


@dataclass(frozen=True, slots=True)
class Samples:
    """Real content: labelled samples that requests are drawn from."""

    labels: npt.NDArray[np.int64]
    votes: npt.NDArray[np.float64]
    """[sample, class]: of the SneakPeek model."""
    right: npt.NDArray[np.bool_]
    """[sample, variant]: whether it answers right."""


@dataclass(frozen=True, slots=True)
class ContentSpec:
    """Content is drawn from samples where there are some; else votes come from the SneakPeek
    model's confusion matrix, and right answers from recalls."""

    frequencies: Steps
    votes: int = 1
    """Votes of the SneakPeek model on one request; 0: there are none."""
    delay_ns: int = 0
    """From a request's arrival to its evidence."""
    samples: Samples | None = None
