"""The runner of a model that takes arrays by name."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.runners.runner import ModelRunner
from fermata.deployments.backend.execution.tensors import (
    Array,
    InputError,
    Item,
    Outputs,
    held_as,
)
from fermata.deployments.models.model import VARYING
from fermata.deployments.specs.served_model import (
    CONTROLS,
    SEQUENCE_ID,
    TensorSpec,
)

CONTROL_NAMES = frozenset(each.name for each in CONTROLS)
NamedModel = Callable[[Mapping[str, Array]], Outputs]


class NamedRunner(ModelRunner):
    """Any callable that takes a mapping of names to batches.

    Requests run together if they have the same inputs, each of the same shape.
    """

    def __init__(
        self, model: NamedModel, batch_size_max: int, inputs: tuple[TensorSpec, ...]
    ) -> None:
        super().__init__(model, batch_size_max)
        self.inputs = inputs
        self.dtypes = {spec.name: np.dtype(held_as(spec.datatype)) for spec in inputs}

    def check(self, item: Item) -> None:
        arrays = self._arrays(item)
        for spec in self.inputs:
            array = arrays.get(spec.name)
            if array is None:
                if not spec.optional:
                    raise InputError(f"input {spec.name!r} is missing")
                continue
            if array.dtype != self.dtypes[spec.name] or not _fits(array.shape, spec.shape):
                raise InputError(
                    f"input {spec.name!r} is {array.dtype.name}{list(array.shape)}, the model "
                    f"takes {spec.datatype}{list(spec.shape)}"
                )
        for name in arrays.keys() - self.dtypes.keys():
            raise InputError(f"the model has no input {name!r}")

    def _arrays(self, item: Item) -> Mapping[str, Array]:
        """By name; a model with one input gets its array without one."""
        return item if isinstance(item, Mapping) else {self.inputs[0].name: item}

    def alike(self, item: Item) -> Hashable:
        return tuple((name, array.shape) for name, array in self._arrays(item).items())

    def stage(self, items: Sequence[Item]) -> dict[str, Array]:
        return {name: np.stack(column) for name, column in self.columns(items).items()}

    def columns(self, items: Sequence[Item]) -> dict[str, list[Array]]:
        """The arrays of all requests, by name."""
        rows = [self._arrays(item) for item in items]
        return {name: [row[name] for row in rows] for name in rows[0]}


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (-1, got) for want, got in zip(wanted, shape, strict=True)
    )


def sample_items(
    inputs: tuple[TensorSpec, ...], count: int, varying: int = VARYING
) -> list[dict[str, Array]]:
    """Inputs of the right types and shapes, for warm-up and measurement.

    Whole numbers are 0 or 1: these are token ids, masks and token types alike.
    """
    rng = np.random.default_rng(count)
    return [
        {
            spec.name: _control(place, spec)
            if spec.name in CONTROL_NAMES
            else _sample(rng, spec, varying)
            for spec in inputs
        }
        for place in range(count)
    ]


def _control(place: int, spec: TensorSpec) -> Array:
    """An input that tells of a sequence which starts and ends with this row."""
    return np.full(spec.shape, place if spec.name == SEQUENCE_ID else True, held_as(spec.datatype))


def _sample(rng: "np.random.Generator", spec: TensorSpec, varying: int) -> Array:
    shape = tuple(varying if size < 0 else size for size in spec.shape)
    dtype = np.dtype(held_as(spec.datatype))
    if dtype.kind == "O":
        texts: Array = np.full(shape, b"text", dtype=object)
        return texts
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    numbers: Any = rng.integers(0, 2, shape)
    return np.asarray(numbers.astype(dtype))
