"""How a model runs: inputs are staged while the batch before runs, then comes the run itself."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from fermata.deployments.backend.execution.tensors import Array, InputError, Outputs

Model = Callable[[Array], Outputs]


class Runner(Protocol):
    """One loaded model on one device."""

    batch_size_max: int

    def check(self, item: Array) -> None:
        """InputError where this input is not what the model takes."""

    def alike(self, item: Array) -> Hashable:
        """Inputs for which this is equal are run together."""

    def stage(self, items: Sequence[Array]) -> Any:
        """Bring inputs that are alike where the run wants them; called from another thread."""

    def run(self, staged: Any) -> Outputs:
        """The outputs, one for each staged input, in order."""

    def close(self) -> None:
        """Give its memory back."""


class RunnerStore(Protocol):
    """Variants that can be had by name."""

    def load(self, variant: str) -> Runner:
        """Warm; called from a thread. ServingError where it cannot be had."""

    def give_back(self, variant: str) -> None:
        """Its runner has been closed."""


def check_item(item: Array, shape: tuple[int, ...] | None, dtype: str) -> None:
    """Refuse an input that the model would misread or crash on; empty means anything goes."""
    if shape is not None and item.shape != shape:
        raise InputError(f"input has shape {list(item.shape)}, the model takes {list(shape)}")
    # Not by its name: numpy takes 4 us to find that, a comparison 0.2.
    if dtype and item.dtype != dtype:
        raise InputError(f"input is {item.dtype.name}, the model takes {dtype}")


class PlainRunner:
    """Any callable that takes a batch as an array."""

    def __init__(
        self,
        model: Model,
        batch_size_max: int,
        shape: tuple[int, ...] | None = None,
        dtype: str = "",
    ) -> None:
        self.model = model
        self.batch_size_max = batch_size_max
        self.shape = shape
        """Of one request; None where the model takes any."""
        self.dtype = dtype

    def check(self, item: Array) -> None:
        check_item(item, self.shape, self.dtype)

    def alike(self, item: Array) -> Hashable:
        return item.dtype, item.shape

    def stage(self, items: Sequence[Array]) -> Array:
        return np.stack(items)

    def run(self, staged: Array) -> Outputs:
        return self.model(staged)

    def close(self) -> None:
        close = getattr(self.model, "close", None)
        if close is not None:
            close()


class FittingRunner:
    """Runs pictures of any size on a model of one: each is fitted when it is staged, so that one
    batch may hold frames of clients that were told different sizes."""

    def __init__(self, inner: Runner, fit: Callable[[Array], Array]) -> None:
        self.inner = inner
        self.fit = fit
        self.batch_size_max = inner.batch_size_max

    def check(self, item: Array) -> None:
        if item.ndim != 3 or item.shape[2] != 3 or item.dtype != np.uint8:
            raise InputError(f"input is {item.dtype.name}{list(item.shape)}, not a picture")

    def alike(self, item: Array) -> Hashable:
        return ()

    def stage(self, items: Sequence[Array]) -> Any:
        return self.inner.stage([self.fit(item) for item in items])

    def run(self, staged: Any) -> Outputs:
        return self.inner.run(staged)

    def close(self) -> None:
        self.inner.close()
