"""Outputs at warm-up: every request of a batch must have a row of its own, whoever is beside it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.tensors import Outputs
from fermata.deployments.specs.served_model import OUTPUT
from fermata.foundation.errors import ConfigError

RowShapes = Mapping[str, tuple[int, ...] | None]
"""Shape of a row, by output; None where rows are arrays of their own, which may differ."""


def row_shapes(variant: str, size: int, outputs: Outputs) -> RowShapes:
    """Shapes of the rows of a batch; ConfigError if not every request has one."""
    columns = outputs if isinstance(outputs, Mapping) else {OUTPUT: outputs}
    found: dict[str, tuple[int, ...] | None] = {}
    for name, column in columns.items():
        rows = _rows(column)
        if rows != size:
            told = "is one value" if rows is None else f"has {rows} rows"
            raise ConfigError(
                f"{variant}: output {name!r} {told} for a batch of {size}; the model must return "
                "a row for each request, in order"
            )
        found[name] = column.shape[1:] if isinstance(column, np.ndarray) else None
    return found


def _rows(column: Any) -> int | None:
    """Rows of an output; None of a single value."""
    try:
        return len(column)
    except TypeError:
        return None


def check_row_shapes(variant: str, found: Mapping[int, RowShapes]) -> None:
    """ConfigError for rows with a side as long as the batch, in batches of several sizes: answers
    would depend on who runs beside them."""
    sizes = list(found)
    for name in found[sizes[0]]:
        shapes = [shape for each in found.values() if (shape := each.get(name)) is not None]
        if len(sizes) > 1 and len(shapes) == len(sizes) and _follows(shapes, sizes):
            raise ConfigError(
                f"{variant}: rows of output {name!r} have shape {list(shapes[-1])} in a batch of "
                f"{sizes[-1]} and {list(shapes[0])} in one of {sizes[0]}; leave the batch out of "
                "their shape, or set batch_size_max: 1"
            )


def _follows(shapes: list[tuple[int, ...]], sizes: list[int]) -> bool:
    """Whether some axis is as long as the batch, in every batch."""
    if len({len(shape) for shape in shapes}) > 1:
        return False
    return any(list(axis) == sizes for axis in zip(*shapes, strict=True))
