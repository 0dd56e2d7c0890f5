"""Batches that raise: who pays for a bad input."""

import queue
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend.execution.emulated import EmulatedModel
from fermata.deployments.backend.execution.emulated_gpu import EmulatedGpu
from fermata.deployments.backend.execution.executor import BatchOutcome, Executor
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.execution.tensors import Array

BAD = 13


def run(values: list[int]) -> tuple[BatchOutcome, list[int]]:
    """What becomes of a batch whose model cannot bear one value, and what sizes it ran in."""
    sizes: list[int] = []

    def model(batch: Array) -> Any:
        sizes.append(len(batch))
        if BAD in batch:
            raise ValueError("thirteen")
        return batch[:, 0] * 2

    return run_on(model, values), sizes


def run_on(model: Any, values: list[int]) -> BatchOutcome:
    heard: queue.SimpleQueue[BatchOutcome] = queue.SimpleQueue()
    executor = Executor(heard.put)
    job: Any = object()
    items = [(place, np.array([value])) for place, value in enumerate(values)]
    executor.begin(job, PlainRunner(model, 16), items, {})
    outcome = heard.get(timeout=10)
    executor.stop()
    return outcome


def served(outcome: BatchOutcome) -> dict[int, int]:
    return {
        place: int(row)
        for places, rows in outcome.outputs
        for place, row in zip(places, rows, strict=True)
    }


def test_a_bad_input_spoils_its_own_half_only() -> None:
    outcome, sizes = run([0, 1, 2, 3, 4, BAD, 6, 7])
    assert sizes == [8, 4, 4]
    assert served(outcome) == {0: 0, 1: 2, 2: 4, 3: 6}
    assert outcome.errors == dict.fromkeys((4, 5, 6, 7), "ValueError: thirteen")
    # It is not the batch that failed, nor was it too large.
    assert (outcome.failed, outcome.fits) == ("", 0)
    assert outcome.started_at_ns > 0
    assert outcome.spoilt == {4, 5, 6, 7}


def test_a_model_that_fails_on_everything_is_tried_no_more_than_three_times() -> None:
    outcome, sizes = run([BAD] * 8)
    assert sizes == [8, 4, 4]
    assert served(outcome) == {}
    assert outcome.failed == "ValueError: thirteen"
    assert sorted(outcome.errors) == list(range(8))


def test_one_input_alone_is_not_tried_again() -> None:
    outcome, sizes = run([BAD])
    assert sizes == [1]
    assert outcome.failed == outcome.errors[0] == "ValueError: thirteen"


class Device:
    """A model on a device that may be of no use any more."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.checked = 0

    def __call__(self, batch: Array) -> Any:
        if BAD in batch:
            raise ValueError("thirteen")
        return batch

    def check_device(self) -> None:
        self.checked += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "unusable"),
    [
        (None, ""),
        (RuntimeError("CUDA error: unspecified launch failure"), "RuntimeError: CUDA error: "),
        # Somebody else has taken it all, and may give it back.
        (RuntimeError("CUDA out of memory"), ""),
    ],
)
def test_the_device_is_checked_after_an_error(error: Exception | None, unusable: str) -> None:
    device = Device(error)
    outcome = run_on(device, [1, BAD])
    assert device.checked == 1
    assert outcome.unusable.startswith(unusable)
    assert bool(outcome.unusable) == bool(unusable)


def test_a_batch_that_runs_checks_nothing() -> None:
    device = Device(RuntimeError("broken"))
    assert run_on(device, [1, 2]).unusable == ""
    assert device.checked == 0


def test_an_emulated_gpu_may_be_of_no_use_any_more() -> None:
    gpu = EmulatedGpu()
    model = EmulatedModel(gpu, [1000, 2000])
    assert run_on(model, [1, 2]).failed == ""
    gpu.broken = "an illegal memory access"
    outcome = run_on(model, [1, 2])
    assert outcome.failed == outcome.unusable == "RuntimeError: an illegal memory access"
