"""A GPU whose memory is really full: batches run in halves, and models that fit not at all say so.

Somebody else's memory is played by a tensor that leaves only as much as a test wants.
"""

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from fermata.deployments.backend.execution.cuda.graphs import STAGED, GraphRunner
from fermata.deployments.backend.execution.executor import INLINE_BYTES, BatchOutcome, Executor
from fermata.deployments.backend.execution.out_of_memory import NoRoomError, release_memory
from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.backend.models.profiling import measure_runner
from fermata.deployments.models.model import Card, TorchModel
from fermata.deployments.specs.backend import ModelSpec
from fermata.profiles.devices import Cuda

torch: Any = import_module("torch")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

MB = 1 << 20
ITEM_MB = 64
"""What one request takes while it runs."""
BATCH = 16
SHAPE = (INLINE_BYTES // 4,)
"""Of one input: each batch is staged by the thread that is there for it."""


class Wide(torch.nn.Module):  # type: ignore[misc]
    """Twice the first number of each input, by way of many megabytes."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.looks = looks
        """At its values, so that no graph of it can be captured."""

    def forward(self, batch: Any) -> Any:
        if self.looks and float(batch[0, 0]) < -1e9:
            batch = -batch
        wide = batch[:, :1].repeat(1, ITEM_MB * MB // 4)
        return wide.amax(1, keepdim=True) * 2


def wide(looks: bool) -> TorchModel:
    return TorchModel(Card("wide", SHAPE, "float32", (1,)), Wide(looks)).to("cuda")


def heavy(device: str) -> TorchModel:
    """A model whose weights take 512 MB; loaded by its name."""
    card = Card("heavy", (32_768,), "float32", (4096,))
    return TorchModel(card, torch.nn.Linear(32_768, 4096)).to(device)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    release_memory()
    yield
    release_memory()


@contextmanager
def only_left(megabytes: float) -> Iterator[None]:
    """Take all memory of the GPU but so much."""
    torch.cuda.synchronize()
    release_memory()
    free, _ = torch.cuda.mem_get_info()
    assert free > megabytes * MB, f"only {free // MB} MB are free here"
    held = [torch.empty(int(free - megabytes * MB), dtype=torch.uint8, device="cuda")]
    try:
        yield
    finally:
        held.clear()
        release_memory()


class FakeJob:
    """All that an executor needs to know of one."""


class Bench:
    """The real executor with its threads."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[BatchOutcome] = queue.SimpleQueue()
        self.executor = Executor(self.heard.put)

    def run(self, runner: Any, count: int = BATCH) -> BatchOutcome:
        """A batch of so many; every one has its own answer, whatever it was run with."""
        items = [(place, np.full(SHAPE, place, np.float32)) for place in range(count)]
        job: Any = FakeJob()
        self.executor.begin(job, runner, items, {})
        outcome = self.heard.get(timeout=60)
        assert (outcome.failed, outcome.errors) == ("", {})
        answers = {
            place: float(row[0])
            for places, rows in outcome.outputs
            for place, row in zip(places, np.asarray(rows), strict=True)
        }
        assert answers == {place: 2.0 * place for place in range(count)}
        return outcome


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.executor.stop()


def test_buffers_are_free_once_a_model_is_profiled() -> None:
    runner = GraphRunner(wide(looks=False), BATCH)
    spec = ModelSpec("wide", f"{__name__}:wide", BATCH, SHAPE, "FP32")
    measure_runner(spec, runner, Cuda(), time.monotonic_ns)
    assert runner.free.qsize() == STAGED


def test_a_batch_that_does_not_fit_runs_in_halves_and_whole_again_later(bench: Bench) -> None:
    runner = GraphRunner(wide(looks=True), BATCH)
    assert runner.eager
    assert bench.run(runner).fits == 0
    with only_left((BATCH / 2 + 0.5) * ITEM_MB):
        for _ in range(3):
            assert bench.run(runner).fits == BATCH // 2
        assert bench.run(runner, BATCH // 2).fits == 0
    with only_left(1.5 * ITEM_MB):
        assert bench.run(runner).fits == 1
    assert bench.run(runner).fits == 0
    runner.close()


def test_nothing_is_lost_to_batches_that_failed(bench: Bench) -> None:
    runner = GraphRunner(wide(looks=True), BATCH)
    bench.run(runner)
    with only_left((BATCH / 4 + 0.5) * ITEM_MB):
        bench.run(runner)
        release_memory()
        before = torch.cuda.memory_allocated()
        for _ in range(10):
            bench.run(runner)
        release_memory()
        assert torch.cuda.memory_allocated() == before
    runner.close()


def test_graphs_are_captured_of_the_sizes_that_fit(bench: Bench) -> None:
    with only_left((BATCH / 2 + 0.5) * ITEM_MB + 3 * BATCH * SHAPE[0] * 4 / MB):
        runner = GraphRunner(wide(looks=False), BATCH)
        assert not runner.eager
        assert 1 < runner.room < BATCH
        assert sorted(runner.graphs) == runner.sizes
        assert 0 < bench.run(runner).fits <= runner.room
        assert bench.run(runner, runner.room).fits == 0
    # What it was loaded with is what it has.
    assert 0 < bench.run(runner).fits <= runner.room
    runner.close()


def test_a_model_that_does_not_fit_says_so_and_leaves_nothing_behind() -> None:
    spec = ModelSpec("heavy", "test_gpu_memory:heavy", 4, precision="fp32")
    budget = MemoryBudget()
    with only_left(256):
        before = torch.cuda.memory_allocated()
        with pytest.raises(NoRoomError, match="heavy does not fit the memory that is left"):
            load_runner(spec, "cuda", budget)
        assert torch.cuda.memory_allocated() == before
        assert not budget.held
    load_runner(spec, "cuda", budget).close()
