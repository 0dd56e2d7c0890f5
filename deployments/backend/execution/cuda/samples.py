"""Inputs that networks are compared by."""

import numpy as np

from fermata.deployments.backend.execution.tensors import Array

BLOCK = 16
"""Side of a block of one colour."""
CHANNELS_MAX = 4


def smooth(batch: Array) -> Array:
    """Pictures of blocks in place of noise; other inputs as they are.

    Noise drives a network to where no picture does, and there the least rounding changes answers.
    """
    if batch.ndim != 4:
        return batch
    rows, columns = (2, 3) if batch.shape[1] <= CHANNELS_MAX else (1, 2)
    channels = batch.shape[1 if rows == 2 else 3]
    if channels > CHANNELS_MAX or min(batch.shape[rows], batch.shape[columns]) < 2 * BLOCK:
        return batch
    for axis in (rows, columns):
        batch = batch.take(np.arange(batch.shape[axis]) // BLOCK, axis)
    return batch
