"""Confusion matrices that are measured on few samples."""

import numpy as np
import numpy.typing as npt

from fermata.router.policies.sneakpeek.classes import Matrix

TINY = 1e-3
"""Least share of votes, over the number of classes: nothing is impossible. What has been measured
above that is left as it is."""


def possible_shares(matrix: Matrix | npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """A confusion matrix in which nothing is impossible."""
    shares: npt.NDArray[np.float64] = np.maximum(np.asarray(matrix, float), TINY / len(matrix))
    return shares
