"""Shape buckets of a configuration, as backends and frontends are told of them."""

from dataclasses import replace

from fermata.applications.application import Application
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError


def in_shape(spec: ModelSpec, application: Application, swap: bool) -> ModelSpec:
    """A variant as it runs one bucket; the same where its application has none."""
    shapes, bucket = application.shapes, application.bucket
    if shapes is None:
        return spec
    where = f"shapes of {application.name}"
    if swap:
        raise ConfigError(f"{where}: backend.swap would load it for each bucket anew; use one")
    shape = () if spec.input_shape is None else spec.input_shape
    varying = [each for each in spec.inputs or (TensorSpec("", "", shape),) if -1 in each.shape]
    if not varying:
        raise ConfigError(f"{where}: no dimension of its inputs varies; give -1 in their shapes")
    if any(each.datatype == "BYTES" for each in varying) and shapes.pad:
        raise ConfigError(f"{where}: BYTES inputs cannot be padded; use pad: false")
    names = [each.name for each in varying if spec.inputs]
    if shapes.mask and shapes.mask not in names:
        known = ", ".join(names) or "none by name"
        raise ConfigError(f"{where}: mask={shapes.mask!r} is no input that varies; these: {known}")
    return replace(
        spec,
        inputs=_masked(spec.inputs, shapes.mask),
        bucket=bucket,
        pad=shapes.pad,
        mask=shapes.mask,
    )


def with_buckets(model: ServedModel, application: Application, rows: list[int]) -> ServedModel:
    """A model as its clients see it, where its requests come in buckets.

    `rows` are those that one batch takes, in each bucket.
    """
    shapes = application.shapes
    if shapes is None:
        return replace(model, rows_max=rows[0])
    first, *more = _masked(model.inputs, shapes.mask)
    return replace(
        model,
        input=first,
        more_inputs=tuple(more),
        rows_max=rows[-1],
        buckets=shapes.buckets,
        bucket_rows=tuple(rows),
    )


def _masked(inputs: tuple[TensorSpec, ...], mask: str) -> tuple[TensorSpec, ...]:
    """The inputs, of which a mask may be left out: it is made."""
    return tuple(replace(each, optional=True) if each.name == mask else each for each in inputs)
