"""A torch network on a GPU: one CUDA graph for each captured batch size.

Launches, not arithmetic, are the fixed cost of a small batch: on an H200 ResNet-50 takes 0.94 ms
with a graph and 5.7 ms without. A batch is padded to the next captured size.
"""

import queue
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from fermata.deployments.backend.device import run_small_kernel
from fermata.deployments.backend.execution.flights import AnswerBuffer, GraphFlight
from fermata.deployments.backend.execution.ladder import (
    LADDER,
    capture_order,
    captured_sizes,
    padded_size,
    powers_of_two,
)
from fermata.deployments.backend.execution.out_of_memory import (
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.pace import Pace
from fermata.deployments.backend.execution.runner import check_item
from fermata.deployments.backend.execution.tensors import Array, Outputs
from fermata.deployments.models.model import TorchModel
from fermata.foundation.errors import ServingError
from fermata.foundation.logs import LOG, fields

Tensor = Any
"""torch is imported at run time, and only on a GPU, so its types are not known here."""
WARM_UPS = 3
FINER_S = 8.0
"""Time at load for sizes between the coarse ones. Some libraries compile for each shape: there
MobileNetV3 takes two seconds a size, ResNet-50 a tenth."""
STAGED = 3
"""Batches staged at a time: one that runs, and those behind it."""
PLAIN = "plain"
"""The network as it is, kernel by kernel."""


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
    refused: Mapping[int, str] = field(default_factory=dict)
    """Why inputs could not be staged, by position; their rows mean nothing."""


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """All kernels of one batch size, launched at once."""

    graph: Any
    output: Tensor
    """Buffer that each launch writes its answers to."""
    way: str = PLAIN
    """Kind of its kernels."""


class GraphRunner:
    """Runs one model from captured graphs; batches are staged and launched ahead meanwhile."""

    def __init__(
        self,
        model: TorchModel,
        batch_size_max: int,
        dtype: str = "",
        sizes: Sequence[int] = LADDER,
        pace: Pace | None = None,
    ) -> None:
        torch: Any = import_module("torch")
        self.torch = torch
        # Inputs lie in memory that this process may not write to, nor does it.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self.model = model
        self.batch_size_max = batch_size_max
        self.shape = model.card.input_shape
        self.dtype = dtype or model.card.input_dtype
        self.sizes = captured_sizes(batch_size_max, sizes)
        self.pace = pace or Pace()
        if len(self.shape) == 3:
            network: Any = model.module
            network.to(memory_format=torch.channels_last)
        # Copies are short, and so is the decoding of pictures: neither waits for a whole batch.
        self.copying = torch.cuda.Stream(priority=-1)
        self.running = torch.cuda.Stream()
        self.launching = threading.Lock()
        """Held from the first to the last kernel of a batch: all of them share buffers."""
        self.flying = 0
        """Batches launched whose answers have not been taken."""
        self.closed = False
        self.free: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self.buffers: queue.SimpleQueue[AnswerBuffer] = queue.SimpleQueue()
        self.input: Tensor = None
        """Input buffer; each graph reads its first rows."""
        self.graphs: dict[int, CapturedGraph] = {}
        """By batch size; empty if no graph can be captured."""
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
        try:
            self.input = self._buffer(self.room, on_device=True)
            output = self._capture_all()
            self.answer = ((self.room, *output.shape[1:]), output.dtype)
            for _ in range(STAGED):
                self.buffers.put(self._answer_buffer())
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
        self.free, self.buffers = queue.SimpleQueue(), queue.SimpleQueue()
        self.input = None
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

    def _answer_buffer(self) -> AnswerBuffer:
        shape, kind = self.answer
        return AnswerBuffer(self.torch, self.torch.empty(shape, dtype=kind, pin_memory=True))

    def _capture_all(self) -> Tensor:
        """Capture batch sizes, the largest first: the others reuse its memory.

        Returns an output of some size. A network that looks at its values or allocates
        outside torch cannot be captured; it runs without graphs, at the cost of its launches.
        """
        pool = self.open_pool()
        needed, finer = capture_order(self.sizes)
        try:
            for size in needed:
                self._capture_one(size, pool)
            left_s = FINER_S
            while finer and left_s > 0.0:
                left_s -= self._capture_one(finer.pop(0), pool)
        except CaptureError as error:
            self.eager = str(error)
            about = fields(model=self.model.card.name, reason=self.eager)
            LOG.warning("model runs without CUDA graphs", extra=about)
            self.graphs.clear()
            self.sizes = powers_of_two(self.room)
            return error.output
        self.sizes = sorted(self.graphs)
        return self.graphs[self.room].output

    def _capture_one(self, size: int, pool: Any) -> float:
        """Returns the seconds that it took."""
        from_s = time.monotonic()
        self.graphs[size] = self.capture(size, pool)
        took_s = time.monotonic() - from_s
        self.pace.rest(took_s)
        return took_s

    def capture(self, size: int, pool: Any, way: str = PLAIN, stream: Any = None) -> CapturedGraph:
        """The graph of one batch size as the network runs now; CaptureError where there is none."""
        torch = self.torch
        stream = stream or self.running
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                output = self._forward(size)
            graph: Any = torch.cuda.CUDAGraph()
            try:
                # Other models of this process may run in their own threads.
                with torch.cuda.graph(
                    graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ):
                    captured = self._forward(size)
            except RuntimeError as error:
                abandon(torch, pool)
                if is_out_of_memory(error):
                    raise
                raise CaptureError(str(error).splitlines()[0], output) from None
        stream.synchronize()
        return CapturedGraph(graph, captured, way)

    def install(self, found: Mapping[int, CapturedGraph]) -> None:
        """Run these sizes from other graphs; the batch that runs ends on the old one."""
        before = [self.graphs[size] for size in found]
        with self.launching:
            self.graphs.update(found)
        # They may run still.
        self.running.synchronize()
        before.clear()

    def open_stream(self) -> Any:
        """A stream beside the one that serves."""
        return self.torch.cuda.Stream()

    def open_pool(self) -> Any:
        """Memory for graphs that may run beside those of other pools."""
        return self.torch.cuda.graph_pool_handle()

    @contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        """Compute there, and keep nothing for gradients."""
        with self.torch.inference_mode(), self.torch.cuda.stream(stream):
            yield

    def sample(self, size: int) -> Tensor:
        """A batch on the device, as clients could send it."""
        given = self.model.card.make_batch(size).astype(np.dtype(self.dtype), copy=False)
        return self.torch.from_numpy(given).to(self.model.device)

    def time_ns(self, captured: CapturedGraph) -> int:
        """Run time of a graph on the device, between batches that are served."""
        torch = self.torch
        began = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True, blocking=True)
        with self.launching, torch.cuda.stream(self.running):
            began.record()
            captured.graph.replay()
            ended.record()
        ended.synchronize()
        return int(1e6 * began.elapsed_time(ended))

    def _forward(self, size: int) -> Tensor:
        return self.compute(self.input[:size])

    def compute(self, batch: Tensor) -> Tensor:
        """Answers of a batch on the device, kernel by kernel."""
        if batch.dim() == 4:
            # Tensor cores want channels last for convolutions; the conversion is in the graph.
            batch = batch.contiguous(memory_format=self.torch.channels_last)
        return self.model.forward(batch).float()

    def check(self, item: Array) -> None:
        check_item(item, self.shape, self.dtype)

    def alike(self, item: Array) -> Hashable:
        return item.dtype, item.shape

    def stage(self, items: Sequence[Array]) -> Staged:
        size = len(items)

        def fill(spare: Staged) -> None:
            # One call, without the interpreter's lock. numpy takes the lock back for each input,
            # and waits for it behind a busy loop each time.
            given = [self.torch.from_numpy(item) for item in items]
            self.torch.stack(given, out=spare.host[:size])
            spare.device[:size].copy_(spare.host[:size], non_blocking=True)

        return self.stage_by(size, fill)

    def stage_by(self, size: int, fill: Callable[[Staged], None]) -> Staged:
        """Buffers for so many inputs, once `fill` has written them, or has begun to copy them."""
        torch = self.torch
        if size > self.room:
            # The executor halves the batch, as for any other lack of memory.
            raise MemoryError(f"{size} at once, {self.room} fitted when the model was loaded")
        try:
            spare = self.free.get_nowait()
        except queue.Empty:
            # A fourth batch gets buffers of its own size: half of it takes half as much.
            spare = self._staging(size, kept=False)
        try:
            with torch.inference_mode(), torch.cuda.stream(self.copying):
                fill(spare)
                spare.there.record()
        except BaseException:
            self._take_back(spare)
            raise
        return replace(spare, size=size)

    def _take_back(self, staged: Staged) -> None:
        if staged.kept:
            self.free.put(staged)

    def run(self, staged: Staged) -> Outputs:
        return self.launch(staged).outputs()

    def launch(self, staged: Staged) -> GraphFlight:
        """Start a batch behind those that run; its flight waits for the answers."""
        torch, size = self.torch, staged.size
        try:
            buffer = self.buffers.get_nowait()
        except queue.Empty:
            buffer = self._answer_buffer()
        try:
            with self.launching, torch.inference_mode(), torch.cuda.stream(self.running):
                self.running.wait_event(staged.there)
                buffer.began.record()
                self.input[:size].copy_(staged.device[:size])
                if self.eager:
                    output = self._forward(size)
                else:
                    captured = self.graphs[padded_size(self.sizes, size)]
                    captured.graph.replay()
                    output = captured.output
                buffer.answers[:size].copy_(output[:size], non_blocking=True)
                buffer.ended.record()
                self.flying += 1
        except BaseException:
            # Its kernels may still read the inputs.
            with suppress(RuntimeError):
                self.running.synchronize()
            self._take_back(staged)
            self.buffers.put(buffer)
            raise

        def land() -> None:
            with self.launching:
                self.flying -= 1
            self._take_back(staged)
            self.buffers.put(buffer)

        return GraphFlight(buffer, size, self.model.finish, land)

    def check_device(self) -> None:
        run_small_kernel()

    def close(self) -> None:
        self.closed = True
        with self.launching:
            self.graphs.clear()
            self.free, self.buffers = queue.SimpleQueue(), queue.SimpleQueue()
            del self.input, self.model
        self.torch.cuda.empty_cache()


class CaptureError(ServingError):
    """A network that cannot be captured; `output` is what it gave kernel by kernel."""

    def __init__(self, reason: str, output: Tensor) -> None:
        super().__init__(reason)
        self.output = output


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
