"""Models with a state between the requests of a sequence: each adds up what it was sent.

`kept` keeps the totals itself, and `carried` hands them back. Both answer with the total, so that a
request that ran twice, out of order or on another state shows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
FACTOR = 31
MODULUS = (1 << 61) - 1


def step(total: int, value: int) -> int:
    """The total after one more value; the order of values matters."""
    return (total * FACTOR + value) % MODULUS


class KeptSums:
    """Totals by sequence."""

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}

    def __call__(self, given: Arrays) -> dict[str, npt.NDArray[Any]]:
        found: list[int] = []
        rows = zip(
            given["sequence_id"].tolist(),
            given["sequence_start"].tolist(),
            given["sequence_end"].tolist(),
            given["x"][:, 0].tolist(),
            strict=True,
        )
        for key, start, end, value in rows:
            total = step(0 if start else self.totals[key], value)
            self.totals[key] = total
            if end:
                del self.totals[key]
            found.append(total)
        return {"total": np.array(found, np.int64)[:, None]}

    def end_sequences(self, keys: Sequence[int]) -> None:
        """Forget sequences that ended without a last request."""
        for key in keys:
            self.totals.pop(key, None)


def kept() -> KeptSums:
    """A model for an entry with `sequences: true`."""
    return KeptSums()


def carried() -> Callable[[Arrays], dict[str, npt.NDArray[Any]]]:
    """A model for an entry with `state: {total_in: total_out}`."""

    def run(given: Arrays) -> dict[str, npt.NDArray[Any]]:
        pairs = zip(given["total_in"][:, 0].tolist(), given["x"][:, 0].tolist(), strict=True)
        totals = np.array([step(*each) for each in pairs], np.int64)[:, None]
        return {"total": totals, "total_out": totals}

    return run
