"""Batches that raise: who pays for a bad input."""

import queue
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.executor import BatchOutcome, Executor
from fermata.deployments.backend.execution.runner import PlainRunner
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

    heard: queue.SimpleQueue[BatchOutcome] = queue.SimpleQueue()
    executor = Executor(heard.put)
    job: Any = object()
    items = [(place, np.array([value])) for place, value in enumerate(values)]
    executor.begin(job, PlainRunner(model, 16), items, {})
    outcome = heard.get(timeout=10)
    executor.stop()
    return outcome, sizes


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
