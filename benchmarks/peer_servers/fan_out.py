"""How many crops a frame has: the same draw for every server."""

import math
import random

CROP_BYTES = 2_000


def crop_count(mean: float) -> int:
    """A geometric number from 0 on with that mean; exactly one where the mean is 0."""
    if not mean:
        return 1
    return int(math.log(1.0 - random.random()) / math.log(mean / (1.0 + mean)))
