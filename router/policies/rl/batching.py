"""The bulk service rule of RL-edge Section 5.2.2, after Neuts: batches between two sizes."""

from collections.abc import Sequence
from typing import Any

SIZES = (1, 3, 5)
"""The batch sizes there are."""
LIMITS = tuple((low, high) for low in SIZES for high in SIZES if low <= high)
"""Every choice of a smallest and a largest batch."""


def batch_size(waiting: Any, limits: Sequence[Any]) -> Any:
    """Requests in the next batch of an idle instance, 0 if it has to wait for more.

    The paper lets a batch that waited for its smallest size take "all in the buffer", which is
    that size then. Whole arrays of instances are decided at once as a single one is.
    """
    low, high = limits
    size = 0 * waiting
    for each in SIZES:
        allowed = (each >= low) & (each <= high) & (each <= waiting)
        size = size + allowed * (each - size)
    return size
