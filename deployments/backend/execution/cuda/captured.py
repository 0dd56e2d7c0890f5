"""Batches staged for a GPU, and graphs captured there."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fermata.deployments.backend.execution.tensors import Array
from fermata.foundation.errors import ServingError

Tensor = Any
"""torch is imported at run time, and only on a GPU, so its types are not known here."""
PLAIN = "plain"
"""The network as it is, kernel by kernel."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Inputs that are copied to the device, or have been."""

    host: Sequence[Tensor]
    """One for each input; pinned, so that the copy runs beside the batch before."""
    rows: Sequence[Array]
    """The same memory as arrays."""
    device: Sequence[Tensor]
    there: Any
    size: int
    kept: bool
    """The buffers serve later batches too; others are made for one batch alone."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Why inputs could not be staged, by position; their rows mean nothing."""


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """All kernels of one batch size, launched at once."""

    graph: Any
    outputs: Sequence[Tensor]
    """Buffers that each launch writes its answers to."""
    way: str = PLAIN
    """Kind of its kernels."""
    network: Any = None
    """The network that was captured: each launch reads its constants, so they must live on."""
    stream: Any = None
    """Where it was captured: each launch uses the workspace of that stream."""


class CaptureError(ServingError):
    """A network that cannot be captured; `outputs` are what it gave kernel by kernel."""

    def __init__(self, reason: str, outputs: Sequence[Tensor]) -> None:
        super().__init__(reason)
        self.outputs = outputs


def abandon(torch: Any, pool: Any) -> None:
    """End a failed capture in torch's allocator.

    Versions 2.10 and 2.11 do not do so (pytorch#180395), and then release no memory any more,
    not even when an allocation fails. Later versions refuse the second call.
    """
    device = torch.cuda.current_device()
    # Both functions are private, and may go.
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
