"""A torch network with named inputs or several outputs: arrays by name in, arrays by name out."""

from collections.abc import Callable, Mapping
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

        weights = chain(self.module.parameters(), self.module.buffers())
        first = next((each for each in weights if each.is_floating_point()), None)
        with torch.inference_mode():
            given = {name: self._tensor(array, first) for name, array in batch.items()}
            returned = self._forward(given)
            return {name: _array(value) for name, value in self._named(returned).items()}

    def _tensor(self, array: Array, weight: Any) -> Any:
        """An input on the device; floating-point numbers follow the type of the weights."""
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        if weight is not None and tensor.is_floating_point():
            tensor = tensor.to(weight.dtype)
        return tensor

    def _named(self, returned: Any) -> Tensors:
        if isinstance(returned, Mapping):
            return returned
        values = returned if isinstance(returned, tuple | list) else (returned,)
        names = self._outputs or tuple(numbered(len(values)))
        return dict(zip(names, values, strict=True))


def _array(value: Any) -> Array:
    """An output in numpy; 16-bit floats are widened."""
    if value.is_floating_point() and value.element_size() < 4:
        value = value.float()
    found: Array = value.cpu().numpy()
    return found
