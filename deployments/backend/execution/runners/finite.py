"""Outputs that are not numbers: counted, and an error where the application says so."""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.flights import Flight
from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.execution.tensors import Array, OutputError, Outputs


class NonFiniteCounts:
    """Requests of each variant whose outputs held a NaN or an infinity; models run in threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def add(self, variant: str, count: int) -> None:
        with self.lock:
            self.counts[variant] += count

    def take(self) -> tuple[tuple[str, int], ...]:
        """(variant, requests) since the last call."""
        with self.lock:
            taken, self.counts = self.counts, Counter()
        return tuple(sorted(taken.items()))


class FiniteRunner:
    """Looks at the outputs of a model. Where they have to be finite, a batch with others fails as
    if the model had raised an error, so its halves, and other backends, are tried."""

    def __init__(
        self, inner: Runner, variant: str, counts: NonFiniteCounts, required: bool
    ) -> None:
        self.inner = inner
        self.variant = variant
        self.counts = counts
        self.required = required
        self.batch_size_max = inner.batch_size_max
        self.stages_long: bool = getattr(inner, "stages_long", False)
        if hasattr(inner, "launch"):
            self.launch = partial(self._launch, inner.launch)

    def check(self, item: Array) -> None:
        self.inner.check(item)

    def alike(self, item: Array) -> Hashable:
        return self.inner.alike(item)

    def stage(self, items: Sequence[Array]) -> Any:
        return self.inner.stage(items)

    def run(self, staged: Any) -> Outputs:
        """The outputs; OutputError where they have to be finite and are not."""
        refused = refused_rows(staged)
        return self._checked(self.inner.run(staged), refused)

    def _launch(self, launch: Callable[[Any], Flight], staged: Any) -> "FiniteFlight":
        refused = refused_rows(staged)
        return FiniteFlight(launch(staged), partial(self._checked, refused=refused))

    def _checked(self, outputs: Outputs, refused: frozenset[int]) -> Outputs:
        """The outputs, those of `refused` rows aside: they are of something else."""
        rows = non_finite_rows(outputs) - refused
        if rows:
            self.counts.add(self.variant, len(rows))
            if self.required:
                raise OutputError(
                    f"{len(rows)} of its outputs have values that are not finite; "
                    "finite_outputs does not let them through"
                )
        return outputs

    def check_device(self) -> None:
        self.inner.check_device()

    def close(self) -> None:
        self.inner.close()


class FiniteFlight:
    """A flight whose outputs are looked at once they are there."""

    def __init__(self, flight: Flight, check: Callable[[Outputs], Outputs]) -> None:
        self.flight = flight
        self.check = check

    @property
    def run_ns(self) -> int:
        return self.flight.run_ns

    def outputs(self) -> Outputs:
        return self.check(self.flight.outputs())


def refused_rows(staged: Any) -> frozenset[int]:
    """Rows of a staged batch that could not be staged, and so mean nothing."""
    return frozenset(getattr(staged, "refused", ()))


def non_finite_rows(outputs: Outputs) -> set[int]:
    """Positions in a batch whose outputs hold a NaN or an infinity."""
    columns = outputs.values() if isinstance(outputs, Mapping) else (outputs,)
    found: set[int] = set()
    for column in columns:
        if isinstance(column, np.ndarray) and column.dtype != object:
            if not _is_finite(column):
                finite = np.isfinite(column).reshape(len(column), -1).all(axis=1)
                found.update(map(int, np.flatnonzero(~finite)))
            continue
        for place, value in enumerate(column):
            row = np.asarray(value)
            if not _is_finite(row) and not np.isfinite(row).all():
                found.add(place)
    return found


def _is_finite(array: Array) -> bool:
    """Whether all values are; a sum that overflows makes it False too."""
    if array.dtype.kind not in "fc" or array.size == 0:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum(dtype=np.float64 if array.dtype.kind == "f" else None)))
