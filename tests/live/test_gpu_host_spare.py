"""A spare in host memory beside a real GPU: it holds none of it, then serves like any other."""

import multiprocessing
import os
import subprocess
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from fermata.deployments.backend.execution.cuda.graphs import GraphRunner
from fermata.deployments.backend.execution.cuda.ladder import captured_sizes
from fermata.deployments.backend.execution.runners.runner import innermost
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.specs.backend import ModelSpec, StoreOptions

torch: Any = import_module("torch")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
SPEC = ModelSpec("small", "digits:small", 16, input_shape=(64,), input_dtype="FP32")


def used_mb() -> int:
    """Memory of the GPU that any process has."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return int(subprocess.check_output([*command, f"--id={devices}"], text=True))


def wait_and_serve(pipe: Connection) -> None:
    """The life of such a spare, in a process of its own."""
    store = ModelStore(StoreOptions((SPEC,), device="cuda", kind="a GPU", kernels="plain"), True)
    store.load("small")
    pipe.send("waits")
    pipe.recv()
    store.use_device()
    runner = store.load("small")
    inner = innermost(runner)
    assert isinstance(inner, GraphRunner)
    coarse = list(inner.sizes)
    rows = [np.full(64, index, np.float32) for index in range(16)]
    before = [np.asarray(runner.run(runner.stage(rows[:size]))) for size in range(1, 17)]
    inner.capture_finer()
    after = [np.asarray(runner.run(runner.stage(rows[:size]))) for size in range(1, 17)]
    differs = max(float(np.abs(a - b).max()) for a, b in zip(before, after, strict=True))
    pipe.send((coarse, list(inner.sizes), differs))


def test_it_holds_no_memory_of_the_device_until_it_serves() -> None:
    before_mb = used_mb()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=wait_and_serve, args=(there,))
    process.start()
    there.close()
    assert here.recv() == "waits"
    assert used_mb() - before_mb <= 8
    here.send("serve")
    coarse, finer, differs = here.recv()
    process.join()
    # Batches of every size run from the first; sizes between come later, with the same answers.
    assert coarse[-1] == 16
    assert set(coarse) < set(finer)
    assert finer == captured_sizes(16)
    assert differs <= 0.01
