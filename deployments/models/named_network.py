"""A torch network with named inputs or several outputs: arrays by name in, arrays by name out."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fermata.deployments.models.model import Array, Card
from fermata.deployments.models.signatures import numbered
from fermata.deployments.specs.served_model import TensorSpec

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]
"""Tensors of torch, by name."""


class NamedNetwork:
    """A network on one device; each call copies its inputs there, and its outputs back."""

    def __init__(
        self,
        card: Card,
        module: "torch.nn.Module",
        inputs: tuple[TensorSpec, ...],
        forward: Callable[[Tensors], Any],
        outputs: tuple[str, ...] = (),
    ) -> None:
        """`outputs` are the names of what `forward` returns, unless that is a mapping."""
        self.card = card
        self.module = module
        self.inputs = inputs
        self.device = "cpu"
        self.exact = False
        """Its weights stay 32-bit floats: answers would differ too much with others."""
        self.runs_in = ""
        """The library that runs it, and where, if that was a choice."""
        self.computes_shapes = False
        """Its operations compute sizes as tensors, which a CUDA graph cannot hold."""
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Context that its operations run in."""
        self._forward = forward
        self._outputs = outputs

    def to(self, device: str, floats: str = "") -> "NamedNetwork":
        """Move its weights, and make them `floats` where these are named, as torch does."""
        import torch

        self.module.to(device)
        if floats:
            self.module.to(getattr(torch, floats))
        self.device = device
        return self

    def static_bytes(self) -> int:
        """Memory of its weights."""
        held = [*self.module.parameters(), *self.module.buffers()]
        return sum(each.numel() * each.element_size() for each in held)

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        import torch

        with torch.inference_mode():
            given = {
                name: torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
                for name, array in batch.items()
            }
            return {name: value.cpu().numpy() for name, value in self.forward(given).items()}

    def forward(self, given: Tensors) -> dict[str, "torch.Tensor"]:
        """The network alone, on tensors that are already on its device.

        Floating-point inputs follow the type of the weights; outputs of 16 bits are widened.
        """
        weights = chain(self.module.parameters(), self.module.buffers())
        weight = next((each for each in weights if each.is_floating_point()), None)
        if weight is not None:
            given = {
                name: each.to(weight.dtype) if each.is_floating_point() else each
                for name, each in given.items()
            }
        with self.around():
            found = self._named(self._forward(given))
        return {name: _widened(value) for name, value in found.items()}

    def _named(self, returned: Any) -> Tensors:
        if isinstance(returned, Mapping):
            return returned
        values = returned if isinstance(returned, tuple | list) else (returned,)
        names = self._outputs or tuple(numbered(len(values)))
        return dict(zip(names, values, strict=True))


def _widened(value: "torch.Tensor") -> "torch.Tensor":
    return value.float() if value.is_floating_point() and value.element_size() < 4 else value
