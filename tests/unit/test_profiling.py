"""Measuring what a backend has loaded, with a runner whose run times are known."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend.execution.tensors import Array
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.models.profiling import (
    measure_runner,
    powers_of_two,
    profile_runner,
)
from fermata.deployments.models.digits import load
from fermata.deployments.specs.backend import ModelSpec, StoreOptions
from fermata.foundation.errors import ConfigError
from fermata.profiles.devices import Cpu
from fermata.profiles.measure import MeasureEffort
from fermata.profiles.profile import ms

SPEC = ModelSpec("small", "digits:small", 6, (64,), "FP32")
EFFORT = MeasureEffort(warm_up=1, runs_min=3, runs_max=3, budget_ns=ms(1))


class Metered:
    """Takes 4 + b ms for a batch of b, and 50 ms to stage it, by a clock of its own."""

    batch_size_max = 6

    def __init__(self) -> None:
        self.now_ns = 0
        self.runs = 0
        self.staged = 0

    def clock(self) -> int:
        return self.now_ns

    def check(self, item: Array) -> None:
        assert item.shape == (64,)

    def stage(self, items: Sequence[Array]) -> list[Array]:
        for item in items:
            self.check(item)
            assert item.dtype == np.float32
        self.staged += 1
        self.now_ns += ms(50)
        return list(items)

    def run(self, staged: list[Array]) -> Any:
        assert staged, "a staged batch is used up by its run"
        size = len(staged)
        staged.clear()
        self.runs += 1
        self.now_ns += ms(4 + size)
        return np.zeros((size, 10), np.float32)

    def close(self) -> None:
        pass


def test_what_runs_is_timed_and_staging_is_not() -> None:
    runner = Metered()
    found = measure_runner(SPEC, runner, Cpu(1), runner.clock, EFFORT)
    assert found.batches == (1, 2, 4, 6)
    assert found.p50_ns == (ms(5), ms(6), ms(8), ms(10))
    assert (found.name, found.input) == ("small", "64")


def test_no_batch_is_staged_that_is_not_run() -> None:
    runner = Metered()
    measure_runner(SPEC, runner, Cpu(1), runner.clock, EFFORT)
    assert runner.staged == runner.runs > 0


class Padded(Metered):
    """As captured: batches run at the next of these sizes."""

    sizes = (1, 4, 6)

    def run(self, staged: list[Array]) -> Any:
        size = len(staged)
        assert size in self.sizes, "measured where it is captured"
        return super().run(staged)


def test_padded_sizes_are_never_promised_less_than_they_take() -> None:
    runner = Padded()
    found = measure_runner(SPEC, runner, Cpu(1), runner.clock, EFFORT)
    assert found.table_ns(6) == [ms(5), ms(8), ms(8), ms(8), ms(10), ms(10)]


def test_a_loaded_model_is_measured_with_its_accuracy() -> None:
    store = ModelStore(StoreOptions((SPEC,), device="cpu"))
    found = measure_runner(SPEC, store.load("small"), Cpu(1), time.monotonic_ns, EFFORT)
    card = load("small").card
    assert card.accuracy is not None
    assert (found.accuracy, found.recall) == (card.accuracy, card.recall)


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_sizes_are_powers_of_two_and_the_largest(largest: int, sizes: list[int]) -> None:
    assert powers_of_two(largest) == sizes


def test_a_model_is_measured_once_on_a_machine(tmp_path: Path) -> None:
    first, second, other = Metered(), Metered(), Metered()
    found = profile_runner(SPEC, first, "cpu", 1, tmp_path)
    assert profile_runner(SPEC, second, "cpu", 1, tmp_path) == found
    assert first.runs > 0
    assert second.runs == 0
    # Another input is another cost.
    profile_runner(replace(SPEC, batch_size_max=7), other, "cpu", 1, tmp_path)
    assert other.runs > 0


def test_always_measures_always(tmp_path: Path) -> None:
    for _ in range(2):
        runner = Metered()
        profile_runner(SPEC, runner, "cpu", 1, tmp_path, "always")
        assert runner.runs > 0
    assert not list(tmp_path.iterdir())


def test_a_function_may_have_changed_and_is_measured_again(tmp_path: Path) -> None:
    runner = Metered()
    profile_runner(replace(SPEC, model="my_models:load"), runner, "cpu", 1, tmp_path)
    assert runner.runs > 0
    assert not list(tmp_path.iterdir())


def test_a_file_is_measured_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for content, measured in ((b"one", True), (b"one", False), (b"another", True)):
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
        runner = Metered()
        profile_runner(replace(SPEC, model=str(path)), runner, "cpu", 1, tmp_path / "cache")
        assert bool(runner.runs) == measured


def test_a_damaged_profile_is_measured_again(tmp_path: Path) -> None:
    profile_runner(SPEC, Metered(), "cpu", 1, tmp_path)
    (kept,) = tmp_path.glob("profile-*.json")
    kept.write_text("{")
    runner = Metered()
    profile_runner(SPEC, runner, "cpu", 1, tmp_path)
    assert runner.runs > 0


def test_never_refuses_a_model_without_run_times(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="small has no run times and measure=never"):
        profile_runner(SPEC, Metered(), "cpu", 1, tmp_path, "never")


def test_sizes_that_memory_does_not_suffice_for_are_left_out_and_tried_at_the_next_start(
    tmp_path: Path,
) -> None:
    class Crowded(Metered):
        def stage(self, items: Any) -> Any:
            if len(items) > 2:
                raise MemoryError("no room")
            return super().stage(items)

    short = profile_runner(SPEC, Crowded(), "cpu", 1, tmp_path)
    assert short.batches == (1, 2)
    assert profile_runner(SPEC, Metered(), "cpu", 1, tmp_path).batches[-1] == SPEC.batch_size_max
