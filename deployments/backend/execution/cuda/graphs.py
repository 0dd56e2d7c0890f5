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
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from fermata.deployments.backend.device import run_small_kernel
from fermata.deployments.backend.execution.cuda.captured import (
    PLAIN,
    CapturedGraph,
    CaptureError,
    Staged,
    Tensor,
    abandon,
)
from fermata.deployments.backend.execution.cuda.device_queue import device_queue
from fermata.deployments.backend.execution.cuda.gathering import gather
from fermata.deployments.backend.execution.cuda.ladder import (
    LADDER,
    capture_order,
    captured_sizes,
    padded_size,
    powers_of_two,
)
from fermata.deployments.backend.execution.cuda.samples import smooth
from fermata.deployments.backend.execution.flights import AnswerBuffer, GraphFlight
from fermata.deployments.backend.execution.out_of_memory import (
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.pace import REST, Pace
from fermata.deployments.backend.execution.runners.runner import check_item
from fermata.deployments.backend.execution.tensors import Array, Item, Outputs
from fermata.deployments.models.model import TorchModel
from fermata.deployments.models.named_network import NamedNetwork
from fermata.foundation.logs import LOG, fields

WARM_UPS = 3
FINER_S = 8.0
"""Time at load for sizes between the coarse ones. Some libraries compile for each shape: there
MobileNetV3 takes two seconds a size, ResNet-50 a tenth."""
STAGED = 3
"""Batches staged at a time: one that runs, and those behind it."""
CAPTURING = threading.Lock()
"""Held while a network runs to be captured: what it sets of cuDNN holds for the whole process."""


class GraphRunner:
    """Runs one model from captured graphs; batches are staged and launched ahead meanwhile."""

    def __init__(
        self,
        model: TorchModel | NamedNetwork,
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
        self.takes = self._signature(dtype)
        """Shape and type of each input of a request."""
        self.sizes = captured_sizes(batch_size_max, sizes)
        self.pace = pace or Pace()
        if any(len(shape) == 3 for shape, _ in self.takes):
            for weight in (*model.module.parameters(), *model.module.buffers()):
                if weight.dim() == 4:
                    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        # Copies are short, and so is the decoding of pictures: neither waits for a whole batch.
        self.copying = torch.cuda.Stream(priority=-1)
        self.shared = device_queue(torch)
        self.running = self.shared.stream
        self.launching = self.shared.launching
        self.capturing = self.open_stream()
        """Other models may be served meanwhile, so not the one that runs batches."""
        self.served: dict[int, int] = {}
        """Batches launched, by the captured size that they ran at."""
        self.closed = False
        self.free: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self.buffers: queue.SimpleQueue[AnswerBuffer] = queue.SimpleQueue()
        self.inputs: Sequence[Tensor] = ()
        """Input buffers; each graph reads their first rows."""
        self.recorded = model.computes_shapes
        """Graphs are captured of recorded operations, without those on shapes."""
        self.graphs: dict[int, CapturedGraph] = {}
        """By batch size; empty if no graph can be captured."""
        self.eager = ""
        """Reason for launching kernels one by one; empty if graphs run."""
        self.finer: list[int] = []
        """Sizes that were left for later when it was loaded, largest first."""
        while not self._fits():
            self._shrink()

    def _signature(self, dtype: str) -> list[tuple[tuple[int, ...], str]]:
        card = self.model.card
        return [(card.input_shape, dtype or card.input_dtype)]

    @property
    def flying(self) -> int:
        """Batches on the device, of whatever model, whose answers have not been taken."""
        return self.shared.flying

    @property
    def room(self) -> int:
        """The largest batch that memory sufficed for at load time."""
        return self.sizes[-1]

    def _fits(self) -> bool:
        """Allocate all memory that stays in use; false if the largest size does not fit."""
        try:
            self.inputs = self._buffers(self.room, on_device=True)
            outputs = self._capture_all()
            self.answers = [(each.shape[1:], each.dtype) for each in outputs]
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
        self.inputs = ()
        release_memory()

    def _staging(self, size: int, kept: bool) -> Staged:
        host, device = self._buffers(size, on_device=False), self._buffers(size, on_device=True)
        rows = [each.numpy() for each in host]
        return Staged(host, rows, device, self.torch.cuda.Event(), 0, kept)

    def _buffers(self, size: int, on_device: bool) -> list[Tensor]:
        torch = self.torch
        where = {"device": self.model.device} if on_device else {"pin_memory": True}
        found = [
            torch.zeros((size, *shape), dtype=getattr(torch, dtype), **where)
            for shape, dtype in self.takes
        ]
        if on_device:
            # Other streams do not wait for this one, which could overwrite them with zeros.
            torch.cuda.current_stream().synchronize()
        return found

    def _answer_buffer(self) -> AnswerBuffer:
        torch, room = self.torch, self.room
        answers = [
            torch.empty((room, *shape), dtype=kind, pin_memory=True) for shape, kind in self.answers
        ]
        return AnswerBuffer(torch, answers)

    def _capture_all(self) -> Sequence[Tensor]:
        """Capture batch sizes; returns outputs of some size.

        A network that looks at its values or allocates outside torch cannot be captured; it runs
        without graphs, at the cost of its launches.
        """
        refusals = {}
        # Shapes that it computes may be all that it looks at. Recording refuses more than that.
        for recorded in (self.recorded, not self.recorded):
            self.recorded = recorded
            try:
                self._capture_sizes()
            except CaptureError as error:
                self.graphs.clear()
                refusals[recorded] = error.with_traceback(None)
                continue
            self.sizes = sorted(self.graphs)
            return self.graphs[self.room].outputs
        # Only recording tells which operation it is.
        return self._go_eager(refusals[True])

    def _capture_sizes(self) -> None:
        """From the largest down: the others reuse its memory."""
        pool = self.open_pool()
        needed, finer = capture_order(self.sizes)
        for size in needed:
            self._capture_one(size, pool)
        puts_off = self.pace.puts_off
        left_s = 0.0 if puts_off else FINER_S
        while finer and left_s > 0.0:
            left_s -= self._capture_one(finer.pop(0), pool)
        self.finer = finer if puts_off else []

    def _go_eager(self, error: CaptureError) -> Sequence[Tensor]:
        """Launch kernels one by one from now on; returns what they gave."""
        if not error.outputs:
            # Buffers for its answers could have any shape.
            raise error
        self.eager = str(error)
        about = fields(model=self.model.card.name, reason=self.eager)
        LOG.warning("model runs without CUDA graphs", extra=about)
        self.sizes = powers_of_two(self.room)
        return error.outputs

    def _capture_one(self, size: int, pool: Any) -> float:
        """Returns the seconds that it took."""
        from_s = time.monotonic()
        self.graphs[size] = self._checked(size, self.capture(size, pool))
        took_s = time.monotonic() - from_s
        self.pace.rest(took_s)
        return took_s

    def _checked(self, size: int, captured: CapturedGraph) -> CapturedGraph:
        """CaptureError for outputs that do not fit the buffers, which the largest size has made."""
        largest = self.graphs.get(self.room, captured)
        wanted, found = ([each.shape[1:] for each in one.outputs] for one in (largest, captured))
        if found != wanted:
            shapes = [[list(shape) for shape in each] for each in (found, wanted)]
            raise CaptureError(
                f"outputs of batches of {size} and of {self.room} differ in shape beside their "
                f"rows, {shapes[0]} and {shapes[1]}; leave the batch out of their shape, or set "
                "batch_size_max: 1",
                (),
            )
        return captured

    def capture(self, size: int, pool: Any, way: str = PLAIN, stream: Any = None) -> CapturedGraph:
        """The graph of one batch size as the network runs now; CaptureError where there is none."""
        torch = self.torch
        stream = stream or self.capturing
        with CAPTURING, torch.inference_mode(), torch.cuda.stream(stream), self.model.around():
            compute = self._recording(size) if self.recorded else self.compute
            given = [each[:size] for each in self.inputs]
            for _ in range(WARM_UPS):
                outputs = compute(*given)
            graph: Any = torch.cuda.CUDAGraph()
            try:
                # Other models of this process may run in their own threads.
                with torch.cuda.graph(
                    graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ):
                    captured = compute(*given)
            except RuntimeError as error:
                abandon(torch, pool)
                if is_out_of_memory(error):
                    raise
                raise CaptureError(str(error).splitlines()[0], outputs) from None
        stream.synchronize()
        return CapturedGraph(graph, captured, way, compute, stream)

    def _recording(self, size: int) -> Callable[..., Sequence[Tensor]]:
        """The network at one size; CaptureError where it looks at its values."""
        # Not above: it imports torch, which this module is imported without on a CPU.
        from fermata.deployments.backend.execution.cuda.recording import (
            ValuesError,
            check_recorded,
            record,
        )

        given = self.sample(size)
        try:
            recorded: Any = record(self.compute, given)
            zeros = [self.torch.zeros_like(each) for each in given]
            # Samples of each size are drawn anew.
            other = [each[:size] for each in self.sample(size + 1)]
            for values in (zeros, other):
                check_recorded(self.compute, recorded, values)
        except ValuesError as error:
            raise CaptureError(str(error), self.compute(*given)) from None
        found: Callable[..., Sequence[Tensor]] = recorded
        return found

    def capture_finer(self) -> None:
        """Capture the sizes that were left for later, beside the batches that are served."""
        pool, stream = self.open_pool(), self.open_stream()
        found: dict[int, CapturedGraph] = {}
        while self.finer and not self.closed:
            from_s = time.monotonic()
            size = self.finer.pop(0)
            found[size] = self._checked(size, self.capture(size, pool, stream=stream))
            self.pace.sleep(REST * (time.monotonic() - from_s))
        if found and not self.closed:
            # Not one by one: runs before a capture use the stream's workspace, as its graphs do.
            self.install(found)

    def install(self, found: Mapping[int, CapturedGraph]) -> None:
        """Run these sizes from other graphs; the batch that runs ends on the old one."""
        before = [self.graphs[size] for size in found if size in self.graphs]
        with self.launching:
            self.graphs.update(found)
            self.sizes = sorted(self.graphs)
        # They may run still.
        self.running.synchronize()
        before.clear()

    def open_stream(self) -> Any:
        """A stream beside the one that serves."""
        return self.shared.beside()

    def open_pool(self) -> Any:
        """Memory for graphs that may run beside those of other pools."""
        return self.torch.cuda.graph_pool_handle()

    @contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        """Compute there, and keep nothing for gradients."""
        with self.torch.inference_mode(), self.torch.cuda.stream(stream):
            yield

    def sample(self, size: int) -> list[Tensor]:
        """The inputs of a batch on the device, as clients could send them."""
        ((_, dtype),) = self.takes
        given = smooth(self.model.card.make_batch(size).astype(np.dtype(dtype), copy=False))
        return [self.torch.from_numpy(given).to(self.model.device)]

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

    def compute(self, *batch: Tensor) -> Sequence[Tensor]:
        """Answers of a batch on the device, kernel by kernel."""
        network: Any = self.model
        return (network.forward(self.laid_out(*batch)).float(),)

    def laid_out(self, batch: Tensor) -> Tensor:
        """An input as the network is to get it."""
        # Tensor cores want channels last for convolutions; the conversion is in the graph.
        if batch.dim() != 4:
            return batch
        return batch.contiguous(memory_format=self.torch.channels_last)

    def finish(self, *answers: Array) -> Outputs:
        """Outputs from what `compute` gave."""
        network: Any = self.model
        return network.finish(*answers)

    def check(self, item: Item) -> None:
        ((shape, dtype),) = self.takes
        check_item(item, shape, dtype)

    def alike(self, item: Item) -> Hashable:
        return item.dtype, item.shape

    def stage(self, items: Sequence[Item]) -> Staged:
        return self.stage_columns([items])

    def stage_columns(self, columns: Sequence[Sequence[Array]]) -> Staged:
        """Begin to copy a batch: for each input, the array of each request."""
        size = len(columns[0])

        def fill(spare: Staged) -> None:
            for items, host, device in zip(columns, spare.host, spare.device, strict=True):
                gather(self.torch, items, host[:size])
                device[:size].copy_(host[:size], non_blocking=True)

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
                for mine, given in zip(self.inputs, staged.device, strict=True):
                    mine[:size].copy_(given[:size])
                if self.eager:
                    outputs = self.compute(*(each[:size] for each in self.inputs))
                else:
                    at = padded_size(self.sizes, size)
                    self.served[at] = self.served.get(at, 0) + 1
                    captured = self.graphs[at]
                    captured.graph.replay()
                    outputs = captured.outputs
                for answers, output in zip(buffer.answers, outputs, strict=True):
                    answers[:size].copy_(output[:size], non_blocking=True)
                buffer.ended.record()
                self.shared.took_off()
        except BaseException:
            # Its kernels may still read the inputs.
            with suppress(RuntimeError):
                self.running.synchronize()
            self._take_back(staged)
            self.buffers.put(buffer)
            raise

        def land() -> None:
            self.shared.landed()
            self._take_back(staged)
            self.buffers.put(buffer)

        return GraphFlight(buffer, size, self.finish, land)

    def check_device(self) -> None:
        run_small_kernel()

    def close(self) -> None:
        self.closed = True
        with self.launching:
            self.graphs.clear()
            self.free, self.buffers = queue.SimpleQueue(), queue.SimpleQueue()
            del self.inputs, self.model
        self.torch.cuda.empty_cache()
