"""Runners of loaded models: inputs are staged while the batch before runs, and then run."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fermata.deployments.backend.device import run_small_kernel
from fermata.deployments.backend.execution.tensors import Array, InputError, Item, Outputs

Model = Callable[[Array], Outputs]


class Runner(Protocol):
    """One loaded model on one device."""

    batch_size_max: int

    def check(self, item: Array) -> None:
        """Raise InputError for an input that the model does not take."""

    def alike(self, item: Array) -> Hashable:
        """A key: inputs with equal keys run together."""

    def stage(self, items: Sequence[Array]) -> Any:
        """Prepare inputs with equal keys for the run; called from another thread."""

    def run(self, staged: Any) -> Outputs:
        """The outputs, one for each staged input, in order."""

    def check_device(self) -> None:
        """Raises where its device cannot run anything any more; asked after a batch failed."""

    def close(self) -> None:
        """Release its memory."""


class RunnerStore(Protocol):
    """Variants to load by name."""

    def load(self, variant: str) -> Runner:
        """Load and warm up a variant, in a thread; ServingError if that fails."""

    def release(self, variant: str) -> None:
        """Free the memory budget of a variant whose runner has been closed."""


def check_item(item: Item, shape: tuple[int, ...] | None, dtype: str) -> None:
    """Refuse an input that the model would misread or crash on.

    Any shape fits None, and any type an empty `dtype`.
    """
    if isinstance(item, Mapping):
        raise InputError(f"inputs {', '.join(item)} came, the model takes one")
    if shape is not None and item.shape != shape:
        raise InputError(f"input has shape {list(item.shape)}, the model takes {list(shape)}")
    # Not by its name: numpy takes 4 us to find that, a comparison 0.2.
    if dtype and item.dtype != dtype:
        raise InputError(f"input is {item.dtype.name}, the model takes {dtype}")


class ModelRunner:
    """Runs a callable, as every kind of runner does."""

    def __init__(self, model: Any, batch_size_max: int) -> None:
        self.model = model
        self.batch_size_max = batch_size_max

    def run(self, staged: Any) -> Outputs:
        found: Outputs = self.model(staged)
        return found

    def check_device(self) -> None:
        """As its model does, where that knows better than torch."""
        getattr(self.model, "check_device", run_small_kernel)()

    def close(self) -> None:
        close = getattr(self.model, "close", None)
        if close is not None:
            close()


class PlainRunner(ModelRunner):
    """Any callable that takes a batch as an array."""

    def __init__(
        self,
        model: Model,
        batch_size_max: int,
        shape: tuple[int, ...] | None = None,
        dtype: str = "",
    ) -> None:
        super().__init__(model, batch_size_max)
        self.shape = shape
        """Shape of one request's input; None if the model takes any."""
        self.dtype = dtype

    def check(self, item: Array) -> None:
        check_item(item, self.shape, self.dtype)

    def alike(self, item: Array) -> Hashable:
        return item.dtype, item.shape

    def stage(self, items: Sequence[Array]) -> Array:
        return np.stack(items)


class FittingRunner:
    """Runs pictures of any size on a model of one size, fitting each when it is staged.

    One batch may so hold frames of clients that send different sizes.
    """

    def __init__(self, inner: Runner, fit: Callable[[Array], Array]) -> None:
        self.inner = inner
        self.fit = fit
        self.batch_size_max = inner.batch_size_max
        if hasattr(inner, "launch"):
            self.launch = inner.launch

    def check(self, item: Item) -> None:
        if isinstance(item, Mapping):
            raise InputError(f"inputs {', '.join(item)} came, the model takes a picture")
        if item.ndim != 3 or item.shape[2] != 3 or item.dtype != np.uint8:
            raise InputError(f"input is {item.dtype.name}{list(item.shape)}, not a picture")

    def alike(self, item: Array) -> Hashable:
        return ()

    def stage(self, items: Sequence[Array]) -> Any:
        return self.inner.stage([self.fit(item) for item in items])

    def run(self, staged: Any) -> Outputs:
        return self.inner.run(staged)

    def check_device(self) -> None:
        self.inner.check_device()

    def close(self) -> None:
        self.inner.close()


def innermost(runner: Any) -> Any:
    """The runner that runs the model, without those that fit its inputs or look at its outputs."""
    while hasattr(runner, "inner"):
        runner = runner.inner
    return runner


def runs_in(runner: Runner) -> str:
    """The library that runs a model, and where; empty where there was no choice."""
    return str(getattr(getattr(innermost(runner), "model", None), "runs_in", ""))
