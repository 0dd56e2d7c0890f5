"""The few best of many scores."""

from typing import Any

import numpy as np
import numpy.typing as npt


def highest(scores: npt.NDArray[Any], count: int) -> list[int]:
    """Places of so many of the highest scores, best first; of equal ones, the first."""
    values = scores.astype(np.float64)
    places: npt.NDArray[np.intp]
    if 0 < count < len(values):
        # A thousand scores would be sorted for three of them otherwise.
        places = np.flatnonzero(values >= np.partition(values, -count)[-count])
        if len(places) >= count:
            return _sorted(values, places)[:count]
    # All are asked for, or some are no numbers and come last.
    return _sorted(values, np.arange(len(values)))[:count]


def _sorted(values: npt.NDArray[np.float64], places: npt.NDArray[np.intp]) -> list[int]:
    found: list[int] = places[np.argsort(-values[places], kind="stable")].tolist()
    return found
