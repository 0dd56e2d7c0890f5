"""A process that waits in host memory: what it has ready, and when it may use the device."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from fermata.deployments.backend.execution.tensors import Array
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.seats import is_alive
from fermata.deployments.specs.backend import ModelSpec, StoreOptions

SPEC = ModelSpec("small", "digits:small", 4, input_shape=(64,), input_dtype="FP32")
EMULATED = ModelSpec("emulated", "emulated", 4, table_ns=(1, 2, 3, 4))


def batch() -> list[Array]:
    return [np.zeros(64, np.float32)]


def test_models_wait_in_host_memory_and_run_once_the_device_may_be_used() -> None:
    store = ModelStore(StoreOptions((SPEC, EMULATED), device="cpu", kind="some GPU"), on_host=True)
    place = store.load("small")
    store.load("emulated")
    assert store.held_bytes() == 0
    assert store.opened["small"] is not None
    assert store.opened["emulated"] is None, "nothing of it has to be read"
    with pytest.raises(AssertionError, match="host memory"):
        place.run(place.stage(batch()))
    store.use_device()
    runner = store.load("small")
    assert not store.opened.get("small"), "read once"
    assert len(runner.run(runner.stage(batch()))) == 1


def test_a_variant_that_is_unloaded_leaves_host_memory_too() -> None:
    store = ModelStore(StoreOptions((SPEC,), device="cpu"), on_host=True)
    store.load("small").close()
    store.release("small")
    assert store.opened == {}


def test_a_killed_process_that_nobody_has_waited_for_is_not_alive() -> None:
    """It has given its memory back, on the device too, though its number is still taken."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_alive(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid)
    assert not is_alive(process.pid)
