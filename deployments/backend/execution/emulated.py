"""A model on an emulated GPU."""

from collections.abc import Mapping, Sequence

import numpy as np

from fermata.deployments.backend.execution.emulated_gpu import EmulatedGpu
from fermata.deployments.backend.execution.tensors import Array, Item, Outputs, held_as
from fermata.deployments.specs.served_model import TensorSpec


class EmulatedModel:
    """A model that takes its profiled time and answers zeros."""

    def __init__(
        self, gpu: EmulatedGpu, table_ns: Sequence[int], outputs: tuple[TensorSpec, ...] = ()
    ) -> None:
        self.gpu = gpu
        self.outputs = outputs
        """Outputs to answer with, each size that varies being 1; empty: one number."""
        self.table_ns = tuple(table_ns)
        """Run time of batches of 1, 2, 3 and so on."""

    def __call__(self, batch: Item) -> Outputs:
        size = len(next(iter(batch.values()))) if isinstance(batch, Mapping) else len(batch)
        self.gpu.run(self.table_ns[size - 1])
        if not self.outputs:
            return np.zeros((size, 1), np.float32)
        return {spec.name: _zeros(spec, size) for spec in self.outputs}

    def check_device(self) -> None:
        self.gpu.check()


def _zeros(spec: TensorSpec, size: int) -> Array:
    shape = (size, *(1 if side < 0 else side for side in spec.shape))
    if spec.datatype == "BYTES":
        texts: Array = np.full(shape, b"", dtype=object)
        return texts
    return np.zeros(shape, held_as(spec.datatype))
