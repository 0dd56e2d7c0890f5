"""Outputs that are not numbers, of models that run in this process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend.execution.executor import Group, run_halves
from fermata.deployments.backend.execution.flights import OwnRun
from fermata.deployments.backend.execution.runners.finite import (
    FiniteRunner,
    NonFiniteCounts,
    non_finite_rows,
)
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.execution.tensors import OutputError
from fermata.deployments.backend.pictures.picture_runner import StagedPictures

NAN, INF = float("nan"), float("inf")
HUGE = np.full((2, 3), 3e38, np.float32)


@pytest.mark.parametrize(
    ("outputs", "rows"),
    [
        (np.zeros((3, 2), np.float32), set()),
        (np.array([[1, NAN], [1, 1], [INF, -INF]], np.float16), {0, 2}),
        (np.array([1.0, -INF]), {1}),
        (HUGE, set()),
        (np.zeros((0, 4), np.float32), set()),
        (np.zeros((2, 0), np.float32), set()),
        (np.array([1, 2]), set()),
        (np.array([b"NaN", b"x"], object), set()),
        ([np.zeros(2, np.float32), np.array([[NAN]], np.float32)], {1}),
        ([["a cat"], ["a dog"]], set()),
        ({"a": np.array([[NAN], [0], [0]]), "b": [[1.0], [2.0], [INF]]}, {0, 2}),
        (np.array([1 + 1j, complex(NAN, 0)]), {1}),
    ],
)
def test_rows_with_a_value_that_is_not_finite_are_found(outputs: Any, rows: set[int]) -> None:
    assert non_finite_rows(outputs) == rows


def runner(required: bool, counts: NonFiniteCounts) -> FiniteRunner:
    """A model that divides by its input."""

    def model(batch: Any) -> Any:
        with np.errstate(all="ignore"):
            return 1 / batch

    return FiniteRunner(PlainRunner(model, 8), "v", counts, required)


class Landed(PlainRunner):
    """Launches batches, and is done with them at once; the first row could not be staged."""

    stages_long = True

    def stage(self, items: Sequence[Any]) -> Any:
        return StagedPictures(super().stage(items), {0: "no picture"})

    def launch(self, staged: Any) -> OwnRun:
        return OwnRun(self.model, staged.staged)


def test_batches_that_are_launched_ahead_are_looked_at_too() -> None:
    counts = NonFiniteCounts()
    inner = Landed(runner(True, counts).inner.run, 8)
    one = FiniteRunner(inner, "v", counts, True)
    assert one.stages_long
    items = [np.array([value]) for value in (0.0, 2.0)]
    flight = one.launch(one.stage(items))
    # Whatever stands for an input that could not be staged is no output of it.
    assert flight.outputs()[1].tolist() == [0.5]
    assert flight.run_ns > 0
    flight = one.launch(one.stage(items[:1] * 2))
    with pytest.raises(OutputError, match="1 of its outputs"):
        flight.outputs()
    assert counts.take() == (("v", 1),)


def test_they_are_counted_and_sent() -> None:
    counts = NonFiniteCounts()
    one = runner(False, counts)
    for _ in range(2):
        found = one.run(one.stage([np.array([value]) for value in (1.0, 0.0, 2.0)]))
        assert found.tolist() == [[1.0], [INF], [0.5]]
    assert counts.take() == (("v", 2),)
    assert counts.take() == ()


def test_where_they_fail_the_others_of_their_batch_are_served() -> None:
    counts = NonFiniteCounts()
    one = runner(True, counts)
    items = [np.array([value]) for value in (1.0, 2.0, 0.0, 0.0)]
    with pytest.raises(OutputError, match="2 of its outputs have values that are not finite"):
        one.run(one.stage(items))
    group = Group(list(range(4)), items, lambda: (None, 0))
    errors, spoilt = dict.fromkeys(range(4), "failed"), set[int]()
    found = run_halves(one, group, errors, spoilt)
    assert [(places, rows.tolist()) for places, rows in found] == [([0, 1], [[1.0], [0.5]])]
    assert spoilt == {2, 3}
    assert "not finite" in errors[2]
