"""CUDA graphs of a network that takes or returns tensors by name."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.cuda.captured import CaptureError, Staged, Tensor
from fermata.deployments.backend.execution.cuda.graphs import GraphRunner
from fermata.deployments.backend.execution.pace import Pace
from fermata.deployments.backend.execution.runners.named import NamedRunner, sample_items
from fermata.deployments.backend.execution.tensors import Array, Item, Outputs, held_as
from fermata.deployments.models.named_network import NamedNetwork
from fermata.deployments.specs.served_model import TensorSpec


def can_be_captured(inputs: Sequence[TensorSpec]) -> bool:
    """Whether all requests have the same inputs, of one shape each, and numbers in them."""
    return bool(inputs) and not any(
        each.optional or each.datatype == "BYTES" or -1 in each.shape for each in inputs
    )


class NamedGraphRunner(GraphRunner):
    """Runs a network with named tensors from captured graphs; CaptureError if there are none."""

    def __init__(
        self,
        model: NamedNetwork,
        batch_size_max: int,
        inputs: tuple[TensorSpec, ...],
        pace: Pace | None = None,
    ) -> None:
        self.named = NamedRunner(model, batch_size_max, inputs)
        self.names: tuple[str, ...] = ()
        """Names of outputs, as the network gave them last."""
        super().__init__(model, batch_size_max, pace=pace)

    def _signature(self, dtype: str) -> list[tuple[tuple[int, ...], str]]:
        return [(each.shape, held_as(each.datatype)) for each in self.named.inputs]

    def _go_eager(self, error: CaptureError) -> Sequence[Tensor]:
        # Its outputs may differ in shape from batch to batch, for which there are no buffers.
        raise error

    def sample(self, size: int) -> list[Tensor]:
        items = sample_items(self.named.inputs, size)
        columns = [np.stack([item[each.name] for item in items]) for each in self.named.inputs]
        return [self.torch.from_numpy(each).to(self.model.device) for each in columns]

    def compute(self, *batch: Tensor) -> Sequence[Tensor]:
        network: Any = self.model
        names = [each.name for each in self.named.inputs]
        given = dict(zip(names, map(self.laid_out, batch), strict=True))
        found = network.forward(given)
        size = len(batch[0])
        for name, output in found.items():
            if not output.dim() or len(output) != size:
                raise CaptureError(f"output {name!r} has no row for each request", ())
        self.names = tuple(found)
        return tuple(found.values())

    def finish(self, *answers: Array) -> Outputs:
        return dict(zip(self.names, answers, strict=True))

    def check(self, item: Item) -> None:
        self.named.check(item)

    def alike(self, item: Item) -> Hashable:
        return self.named.alike(item)

    def stage(self, items: Sequence[Item]) -> Staged:
        batch = self.named.columns(items)
        return self.stage_columns([batch[each.name] for each in self.named.inputs])

    def close(self) -> None:
        super().close()
        # Inputs may be checked still: they wait until it is loaded again.
        del self.named.model
