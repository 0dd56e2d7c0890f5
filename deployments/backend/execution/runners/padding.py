"""The runner of a shape bucket: inputs are padded to its size, and answers are cut back."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.runners.named import sample_items
from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.execution.tensors import (
    Array,
    InputError,
    Item,
    Outputs,
    held_as,
)
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import OUTPUT, TensorSpec
from fermata.foundation.logs import LOG, fields

Cuts = Mapping[str, Sequence[tuple[int, int]]]
"""By output: its axes that have the size of an axis of the inputs, each with that axis."""


class PaddingRunner:
    """Runs inputs of any size up to a bucket's, padded with zeros, as one batch."""

    def __init__(self, inner: Runner, spec: ModelSpec, cuts: Cuts | None = None) -> None:
        self.inner = inner
        self.batch_size_max = inner.batch_size_max
        self.bucket = spec.bucket
        self.mask = spec.mask
        dtype, shape = spec.input_dtype or "FP32", spec.input_shape or ()
        self.inputs = {each.name: each for each in spec.inputs or (TensorSpec("", dtype, shape),)}
        self.dtypes = {name: np.dtype(held_as(each.datatype)) for name, each in self.inputs.items()}
        self.cuts = cuts or {}
        # Nothing is to be cut: the answers are the inner runner's own.
        if not self.cuts and hasattr(inner, "launch"):
            self.launch = inner.launch

    def check(self, item: Item) -> None:
        arrays = self._arrays(item)
        for name in arrays.keys() - self.inputs.keys():
            raise InputError(f"the model has no input {name!r}")
        for name, spec in self.inputs.items():
            if name in arrays:
                self._check(name, spec, arrays[name])
            elif not spec.optional:
                raise InputError(f"input {name!r} is missing")

    def _check(self, name: str, spec: TensorSpec, array: Array) -> None:
        fits = len(array.shape) == len(spec.shape) and all(
            size <= self.bucket if side < 0 else size == side
            for side, size in zip(spec.shape, array.shape, strict=True)
        )
        if not fits or array.dtype != self.dtypes[name]:
            raise InputError(
                f"input {name!r} is {array.dtype.name}{list(array.shape)}, the model takes "
                f"{spec.datatype}{list(spec.shape)} up to {self.bucket}"
            )

    def _arrays(self, item: Item) -> Mapping[str, Array]:
        """By name; a model with one input gets its array without one."""
        return item if isinstance(item, Mapping) else {next(iter(self.inputs)): item}

    def alike(self, item: Item) -> Hashable:
        """Inputs that are given: a mask is made where it is not."""
        return frozenset(self._arrays(item)) | {self.mask}

    def stage(self, items: Sequence[Item]) -> Any:
        staged = self.inner.stage([self._padded(item) for item in items])
        return (staged, [self._sizes(item) for item in items]) if self.cuts else staged

    def _padded(self, item: Item) -> Item:
        """An input in the size of the bucket."""
        arrays = self._arrays(item)
        found = {name: self._fill(self.inputs[name].shape, array) for name, array in arrays.items()}
        if self.mask and self.mask not in found:
            spec, sizes = self.inputs[self.mask], self._sizes(item)
            own = [sizes[axis] if side < 0 else side for axis, side in enumerate(spec.shape)]
            found[self.mask] = self._fill(spec.shape, np.ones(own, self.dtypes[self.mask]))
        return found if isinstance(item, Mapping) or self.mask else next(iter(found.values()))

    def _fill(self, wanted: tuple[int, ...], array: Array) -> Array:
        shape = tuple(self.bucket if side < 0 else side for side in wanted)
        if array.shape == shape:
            return array
        made: Array = np.zeros(shape, array.dtype)
        made[tuple(map(slice, array.shape))] = array
        return made

    def _sizes(self, item: Item) -> dict[int, int]:
        """Own sizes of an input, by the axis that varies."""
        sizes: dict[int, int] = {}
        for name, array in self._arrays(item).items():
            for axis, side in enumerate(self.inputs[name].shape):
                if side < 0:
                    sizes[axis] = max(sizes.get(axis, 0), array.shape[axis])
        return sizes

    def run(self, staged: Any) -> Outputs:
        if not self.cuts:
            return self.inner.run(staged)
        inner, sizes = staged
        outputs = self.inner.run(inner)
        if not isinstance(outputs, Mapping):
            return self._cut(self.cuts[OUTPUT], outputs, sizes)
        return {
            name: self._cut(self.cuts[name], column, sizes) if name in self.cuts else column
            for name, column in outputs.items()
        }

    @staticmethod
    def _cut(
        axes: Sequence[tuple[int, int]], column: Sequence[Array], sizes: Sequence[Mapping[int, int]]
    ) -> list[Array]:
        """Answers in the sizes that their inputs had."""
        found: list[Array] = []
        for answer, own in zip(column, sizes, strict=True):
            whole = [slice(None)] * np.ndim(answer)
            for axis, of_input in axes:
                whole[axis] = slice(own.get(of_input))
            found.append(answer[tuple(whole)])
        return found

    def check_device(self) -> None:
        self.inner.check_device()

    def close(self) -> None:
        self.inner.close()


def find_cuts(spec: ModelSpec, model: Callable[[Any], Outputs]) -> Cuts:
    """Axes of a model's outputs that follow its inputs' sizes, as two runs show.

    Nothing that a file declares is relied on: there, -1 may also say that nobody knows.
    """
    if spec.bucket < 2:
        return {}
    inputs = spec.inputs or (TensorSpec("", spec.input_dtype or "FP32", spec.input_shape or ()),)
    (sample,) = sample_items(inputs, 1, spec.bucket)
    cuts: dict[str, list[tuple[int, int]]] = {}
    axes = {axis for each in inputs for axis, side in enumerate(each.shape) if side < 0}
    try:
        full = _shapes(spec, model, sample)
        for axis in sorted(axes):
            less = {each.name: _shorter(sample[each.name], each.shape, axis) for each in inputs}
            for name, shape in _shapes(spec, model, less).items():
                for place, size in enumerate(shape):
                    if size == spec.bucket - 1 and full[name][place] == spec.bucket:
                        cuts.setdefault(name, []).append((place, axis))
    # A model is a user's code and may raise anything, here for a size that it does not take.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        about = fields(variant=spec.name, reason=reason)
        LOG.warning("answers to padded inputs are not cut back", extra=about)
        return {}
    return cuts


def _shorter(array: Array, shape: tuple[int, ...], axis: int) -> Array:
    """The same, one less along an axis that varies."""
    if axis >= len(shape) or shape[axis] >= 0:
        return array
    return array[(slice(None),) * axis + (slice(-1),)]


def _shapes(
    spec: ModelSpec, model: Callable[[Any], Outputs], given: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the answers to one request, by output."""
    batch = {name: np.ascontiguousarray(array)[None] for name, array in given.items()}
    outputs = model(batch if spec.inputs else next(iter(batch.values())))
    columns = outputs if isinstance(outputs, Mapping) else {OUTPUT: outputs}
    return {name: np.shape(column[0]) for name, column in columns.items()}
