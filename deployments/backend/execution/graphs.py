"""A torch network on a GPU: one CUDA graph for each captured batch size.

Launches, not arithmetic, are the fixed cost of a small batch: on an H200 ResNet-50 takes 0.94 ms
with a graph and 5.7 ms without. A batch is padded to the next captured size.
"""

import queue
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from fermata.deployments.backend.device import run_small_kernel
from fermata.deployments.backend.execution.out_of_memory import (
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.runner import check_item
from fermata.deployments.backend.execution.tensors import Array, Outputs
from fermata.deployments.models.model import TorchModel
from fermata.foundation.logs import LOG, fields

Tensor = Any
"""torch is imported at run time, and only on a GPU, so its types are not known here."""
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes to capture: padding costs at most a third, each size load time and memory."""
WARM_UPS = 3
STAGED = 2
"""Batches staged at a time: one that runs, and the one behind it."""


def captured_sizes(batch_size_max: int, ladder: Sequence[int] = LADDER) -> list[int]:
    """Batch sizes to capture, ascending; the largest batch is one of them."""
    return sorted({size for size in ladder if size < batch_size_max} | {batch_size_max})


def padded_size(sizes: Sequence[int], size: int) -> int:
    """The captured size that a batch of this size runs at."""
    return sizes[bisect_left(sizes, size)]


@dataclass(frozen=True, slots=True)
class Staged:
    """Inputs that are copied to the device, or have been."""

    host: Tensor
    """Pinned, so that the copy runs beside the batch before."""
    rows: Array
    """The same memory as an array."""
    device: Tensor
    there: Any
    size: int
    kept: bool
    """The buffers serve later batches too; others are made for one batch alone."""


class GraphRunner:
    """Runs one model from captured graphs; staging may go on in another thread meanwhile."""

    def __init__(
        self,
        model: TorchModel,
        batch_size_max: int,
        dtype: str = "",
        sizes: Sequence[int] = LADDER,
    ) -> None:
        torch: Any = import_module("torch")
        self.torch = torch
        self.model = model
        self.batch_size_max = batch_size_max
        self.shape = model.card.input_shape
        self.dtype = dtype or model.card.input_dtype
        self.sizes = captured_sizes(batch_size_max, sizes)
        if len(self.shape) == 3:
            network: Any = model.module
            network.to(memory_format=torch.channels_last)
        self.copying = torch.cuda.Stream()
        self.running = torch.cuda.Stream()
        self.free: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self.input: Tensor = None
        """Input buffer; each graph reads its first rows."""
        self.graphs: dict[int, tuple[Any, Tensor]] = {}
        """Each batch size's graph and output buffer; empty if no graph can be captured."""
        self.eager = ""
        """Reason for launching kernels one by one; empty if graphs run."""
        while not self._fits():
            self._shrink()

    @property
    def room(self) -> int:
        """The largest batch that memory sufficed for at load time."""
        return self.sizes[-1]

    def _fits(self) -> bool:
        """Allocate all memory that stays in use; false if the largest size does not fit."""
        torch = self.torch
        try:
            self.input = self._buffer(self.room, on_device=True)
            output = self._capture()
            self.answers = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
            for _ in range(STAGED):
                self.free.put(self._staging(self.room, kept=True))
        except Exception as error:
            if len(self.sizes) == 1 or not is_out_of_memory(error):
                raise
            drop_references(error)
            return False
        return True

    def _shrink(self) -> None:
        """Drop the largest size, and release its memory."""
        about = fields(model=self.model.card.name, size=self.sizes.pop(), room=self.room)
        LOG.warning("batch size does not fit in memory", extra=about)
        self.graphs.clear()
        self.eager = ""
        self.free = queue.SimpleQueue()
        self.input = self.answers = None
        release_memory()

    def _staging(self, size: int, kept: bool) -> Staged:
        host, device = self._buffer(size, on_device=False), self._buffer(size, on_device=True)
        return Staged(host, host.numpy(), device, self.torch.cuda.Event(), 0, kept)

    def _buffer(self, size: int, on_device: bool) -> Tensor:
        torch = self.torch
        shape = (size, *self.shape)
        kind = getattr(torch, self.dtype)
        if on_device:
            found = torch.zeros(shape, dtype=kind, device=self.model.device)
            # Other streams do not wait for this one, which could overwrite them with zeros.
            torch.cuda.current_stream().synchronize()
            return found
        return torch.zeros(shape, dtype=kind, pin_memory=True)

    def _capture(self) -> Tensor:
        """Capture every size, the largest first: the others reuse its memory.

        Returns an output of the largest size. A network that looks at its values or allocates
        outside torch cannot be captured; it runs without graphs, at the cost of its launches.
        """
        torch = self.torch
        pool: Any = torch.cuda.graph_pool_handle()
        first: Tensor = None
        with torch.inference_mode(), torch.cuda.stream(self.running):
            for size in reversed(self.sizes):
                for _ in range(WARM_UPS):
                    output = self._forward(size)
                first = output if first is None else first
                graph: Any = torch.cuda.CUDAGraph()
                try:
                    # Other models of this process may run in their own threads.
                    with torch.cuda.graph(
                        graph,
                        pool=pool,
                        stream=self.running,
                        capture_error_mode="thread_local",
                    ):
                        output = self._forward(size)
                except RuntimeError as error:
                    abandon(torch, pool)
                    if is_out_of_memory(error):
                        raise
                    self.eager = str(error).splitlines()[0]
                    about = fields(model=self.model.card.name, reason=self.eager)
                    LOG.warning("model runs without CUDA graphs", extra=about)
                    self.graphs.clear()
                    break
                self.graphs[size] = (graph, output)
        self.running.synchronize()
        return first

    def _forward(self, size: int) -> Tensor:
        batch = self.input[:size]
        if batch.dim() == 4:
            # Tensor cores want channels last for convolutions; the conversion is in the graph.
            batch = batch.contiguous(memory_format=self.torch.channels_last)
        return self.model.forward(batch).float()

    def check(self, item: Array) -> None:
        check_item(item, self.shape, self.dtype)

    def alike(self, item: Array) -> Hashable:
        return item.dtype, item.shape

    def stage(self, items: Sequence[Array]) -> Staged:
        torch, size = self.torch, len(items)
        if size > self.room:
            # The executor halves the batch, as for any other lack of memory.
            raise MemoryError(f"{size} at once, {self.room} fitted when the model was loaded")
        try:
            spare = self.free.get_nowait()
        except queue.Empty:
            # A third batch gets buffers of its own size: half of it takes half as much.
            spare = self._staging(size, kept=False)
        try:
            np.stack(items, out=spare.rows[:size])
            with torch.cuda.stream(self.copying):
                spare.device[:size].copy_(spare.host[:size], non_blocking=True)
                spare.there.record()
        except BaseException:
            self._take_back(spare)
            raise
        return replace(spare, size=size)

    def _take_back(self, staged: Staged) -> None:
        if staged.kept:
            self.free.put(staged)

    def run(self, staged: Staged) -> Outputs:
        torch, size = self.torch, staged.size
        try:
            with torch.inference_mode(), torch.cuda.stream(self.running):
                self.running.wait_event(staged.there)
                self.input[:size].copy_(staged.device[:size])
                if self.eager:
                    output = self._forward(size)
                else:
                    graph, output = self.graphs[padded_size(self.sizes, size)]
                    graph.replay()
                self.answers[:size].copy_(output[:size], non_blocking=True)
        finally:
            # Also after a failure: the inputs have been read, and their buffers are free.
            self.running.synchronize()
            self._take_back(staged)
        return self.model.finish(self.answers[:size].numpy().copy())

    def check_device(self) -> None:
        run_small_kernel()

    def close(self) -> None:
        self.graphs.clear()
        self.free = queue.SimpleQueue()
        del self.input, self.answers, self.model
        self.torch.cuda.empty_cache()


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
