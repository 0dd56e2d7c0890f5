"""A loaded model: a card that describes it, and a call that runs a batch."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fermata.applications.server_options import BoxOptions
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
Answers = Array | Sequence[Array]
"""Item i answers request i of the batch."""
VARYING = 64
"""Size in warm-up and measurement of a dimension that varies."""


@dataclass(frozen=True, slots=True)
class Card:
    """A model as frontends, clients and profiles need to know it."""

    name: str
    input_shape: tuple[int, ...]
    """Shape of one request, without the batch."""
    input_dtype: str
    """numpy's name of the type that `make_batch` gives."""
    output_shape: tuple[int, ...]
    """Shape of one answer; -1 where any number may come."""
    labels: tuple[str, ...] = ()
    """Name of each class, in the order of scores."""
    mean: tuple[float, ...] = ()
    """Mean of each channel on a scale of 0 to 1; senders of floats subtract it."""
    std: tuple[float, ...] = ()
    fit: str = ""
    """Fit of a client's picture to the input, `centre`, `whole`, `page` or `line`; empty if inputs
    are no pictures."""
    boxes: BoxOptions | None = None
    """Boxes among its outputs; None: it is no detector."""
    text: bool = False
    """Inputs are token ids of a sentence; see `minilm.Tokens`."""
    accuracy: float | None = None
    recall: tuple[float, ...] = ()
    file_bytes: int = 0
    trained: bool = True
    """False where no weights are on this machine: costs are right, answers are noise."""
    outputs: tuple[TensorSpec, ...] = ()
    """Outputs of a model that names them; empty: one called `output`, of `output_shape`."""

    @property
    def input(self) -> str:
        """As profiles write it: `3x224` for a square image, `tokens 64`, else all sides."""
        if -1 in self.input_shape:
            return ""
        if self.input_dtype == "int64" and len(self.input_shape) == 1:
            return f"tokens {self.input_shape[0]}"
        sides = self.input_shape
        if len(sides) == 3 and sides[1] == sides[2]:
            sides = sides[:2]
        return "x".join(map(str, sides))

    def make_batch(self, size: int) -> Array:
        """Inputs of the right shape and type whose content costs what real content costs."""
        rng = np.random.default_rng(size)
        shape = (size, *(VARYING if side < 0 else side for side in self.input_shape))
        dtype = np.dtype(self.input_dtype)
        if dtype == np.int64:
            # Token ids: none of the first thousand, which holds padding and other marks.
            return rng.integers(1000, 20000, size=shape, dtype=np.int64)
        if dtype.kind == "O":
            return np.full(shape, b"text", dtype=object)
        if dtype == np.uint8:
            return rng.integers(0, 256, size=shape, dtype=np.uint8)
        if dtype.kind in "iub":
            # Token ids, masks and flags alike.
            return rng.integers(0, 2, size=shape).astype(dtype)
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)


class Model(Protocol):
    """A loaded model."""

    @property
    def card(self) -> Card: ...

    def __call__(self, batch: Any) -> Any:
        """Answers to a batch: an array, or arrays by name for a model that takes them so."""


class TorchModel:
    """A torch network on one device; `forward` and `finish` apart, for CUDA graphs and streams."""

    def __init__(
        self,
        card: Card,
        module: "torch.nn.Module",
        forward: "Callable[[torch.Tensor], torch.Tensor] | None" = None,
        finish: Callable[[Array], Answers] | None = None,
    ) -> None:
        self.card = card
        self.module = module.eval()
        self.device = "cpu"
        self.exact = False
        """Its weights stay 32-bit floats: answers would differ too much with others."""
        self.runs_in = ""
        """The library that runs it, and where, if that was a choice."""
        self.computes_shapes = False
        """Its operations compute sizes as tensors, which a CUDA graph cannot hold."""
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Context that its operations run in."""
        self.original: TorchModel | None = None
        """The model that this one is under another card: it stays for others to share."""
        self._forward = forward or module
        self._finish = finish

    def with_card(self, card: Card) -> "TorchModel":
        """The same network and weights, under another card."""
        found = copy(self)
        found.card, found.original = card, self
        return found

    def to(self, device: str, floats: str = "") -> "TorchModel":
        """Move its weights, and make them `floats` where these are named, as torch does."""
        import torch

        self.module.to(device)
        if floats:
            self.module.to(getattr(torch, floats))
        self.device = device
        return self

    def forward(self, batch: "torch.Tensor") -> "torch.Tensor":
        """The network alone, on a tensor that is already on its device."""
        with self.around():
            return self._forward(batch)

    def finish(self, output: Array) -> Answers:
        """Answers, one a request, from what `forward` gave."""
        return output if self._finish is None else self._finish(output)

    def static_bytes(self) -> int:
        """Memory of its weights."""
        held = [*self.module.parameters(), *self.module.buffers()]
        return sum(each.numel() * each.element_size() for each in held)

    def __call__(self, batch: Array) -> Answers:
        import torch

        with torch.inference_mode():
            output = self.forward(torch.from_numpy(np.ascontiguousarray(batch)).to(self.device))
            return self.finish(output.float().cpu().numpy())


def check_batch(card: Card, batch: Array, dtypes: Sequence[str]) -> None:
    """Refuse a batch that the network would misread or crash on."""
    if batch.shape[1:] != card.input_shape or batch.dtype.name not in dtypes:
        wanted = " or ".join(dtypes)
        raise ConfigError(
            f"{card.name}: input {batch.dtype.name} {list(batch.shape)} must be {wanted} of "
            f"[batch, {', '.join(map(str, card.input_shape))}]"
        )


def pick(family: str, name: str, known: Sequence[str]) -> str:
    """`name` where the family has it, else a ConfigError that lists what it has."""
    if name not in known:
        raise ConfigError(f"no model {family}:{name}; known: {', '.join(known)}")
    return name
