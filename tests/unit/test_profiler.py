"""The profiler against a model whose run times are known and a clock that only it moves."""

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fermata.commands.profile import profile, read_batches, read_shape
from fermata.deployments.models.model import Array, Card
from fermata.foundation.errors import ConfigError
from fermata.profiles.devices import Cpu, choose_device
from fermata.profiles.measure import MeasureEffort, Row, measure, percentile
from fermata.profiles.profile import ms
from fermata.profiles.profiler import profile_model
from fermata.profiles.store import Table, load_file, save_file


class FakeClock:
    """Time passes only where a test says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class FakeDevice:
    """Counts what runs hold."""

    name = "fake"

    def __init__(self) -> None:
        self.held = 100
        self.peak = 0
        self.synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1

    def used_bytes(self) -> int:
        return self.held

    def reset_peak(self) -> None:
        self.peak = self.held

    def peak_bytes(self) -> int:
        return self.peak


def runner(clock: FakeClock, cost_ns: Callable[[int, int], int]) -> Callable[[int], None]:
    """Run number n of a size moves the clock by `cost_ns(size, n)`."""
    counts: dict[int, int] = {}

    def run(size: int) -> None:
        counts[size] = counts.get(size, 0) + 1
        clock.now_ns += cost_ns(size, counts[size])

    return run


def test_nearest_rank() -> None:
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 101), 50) == 50
    assert percentile([7], 99) == 7
    assert percentile([1, 2, 3], 99) == 3


def test_warm_up_is_left_out_and_percentiles_are_of_the_rest() -> None:
    clock = FakeClock()
    # Two slow runs to warm up, then every fiftieth takes 9 ms instead of 1 ms.
    run = runner(clock, lambda _size, n: ms(500 if n <= 2 else 9 if n % 50 == 0 else 1))
    effort = MeasureEffort(warm_up=2, runs_min=1, runs_max=200, budget_ns=ms(1e6))
    columns = measure(run, lambda size: size, (1,), FakeDevice(), clock, effort)
    assert (columns.p50_ns, columns.p99_ns, columns.runs) == ((ms(1),), (ms(9),), (200,))


def test_a_slow_model_runs_the_least_number_of_times_and_a_fast_one_to_the_budget() -> None:
    clock = FakeClock()
    run = runner(clock, lambda size, _n: ms(1) if size == 1 else ms(100))
    effort = MeasureEffort(warm_up=1, runs_min=4, runs_max=1000, budget_ns=ms(51))
    columns = measure(run, lambda size: size, (1, 2), FakeDevice(), clock, effort)
    assert columns.runs == (50, 4)


def test_latency_that_falls_with_size_is_raised_and_told() -> None:
    clock = FakeClock()
    run = runner(clock, lambda size, _n: {1: ms(2), 2: ms(1), 4: ms(3)}[size])
    rows: list[Row] = []
    effort = MeasureEffort(warm_up=0, runs_max=10)
    columns = measure(run, lambda s: s, (1, 2, 4), FakeDevice(), clock, effort, rows.append)
    assert columns.p50_ns == columns.p99_ns == (ms(2), ms(2), ms(3))
    assert [(each.index, each.before, each.after) for each in columns.raised_p50] == [
        (1, ms(1), ms(2))
    ]
    assert [row.p50_ns for row in rows] == [ms(2), ms(1), ms(3)]


def test_memory_is_the_peak_beyond_what_was_held() -> None:
    clock, device = FakeClock(), FakeDevice()

    def run(size: int) -> None:
        clock.now_ns += 1
        device.peak = device.held + 10 * size

    columns = measure(run, lambda size: size, (1, 3), device, clock)
    assert columns.dynamic_bytes == (10, 30)
    assert device.synchronized > len(columns.runs)


@pytest.mark.parametrize("batches", [(), (2,), (1, 1), (4, 2)])
def test_bad_batches_are_refused(batches: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="batches"):
        measure(lambda _: None, lambda size: size, batches, FakeDevice(), FakeClock())


class FakeModel:
    """Takes 5 + size ms; holds 1,000 bytes."""

    card = Card("fake:model", (4,), "float32", (2,), accuracy=0.9, recall=(0.8, 1.0), file_bytes=9)

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def static_bytes(self) -> int:
        return 1000

    def __call__(self, batch: Array) -> Array:
        self._clock.now_ns += ms(5 + len(batch))
        return batch


def test_a_profile_holds_all_that_was_measured_and_survives_its_file(tmp_path: Path) -> None:
    clock, opened = FakeClock(), [ms(900), ms(40)]

    def open_model() -> FakeModel:
        clock.now_ns += opened.pop(0)
        return FakeModel(clock)

    outcome = profile_model(open_model, (1, 2, 8), FakeDevice(), clock)
    found = outcome.profile
    # The first load, which imports and trains, does not count.
    assert found.load_ns == ms(40)
    assert found.p50_ns == (ms(6), ms(7), ms(13))
    assert (found.static_bytes, found.file_bytes, found.swap_in_ns) == (1000, 9, 0)
    assert (found.accuracy, found.recall, found.input) == (0.9, (0.8, 1.0), "4")
    assert outcome.raised == ()
    save_file(tmp_path / "made.json", Table("made", "fake", "test", (found,)))
    assert load_file(tmp_path / "made.json").profiles == (found,)


def test_raised_values_are_told_in_milliseconds() -> None:
    clock = FakeClock()

    class Odd(FakeModel):
        def __call__(self, batch: Array) -> Array:
            clock.now_ns += ms(8 // len(batch))
            return batch

    outcome = profile_model(lambda: Odd(clock), (1, 2), FakeDevice(), clock)
    assert str(outcome.raised[0]) == "measured/fake:model p50 at batch 2: 4.0 -> 8.0 ms"


def test_this_process_knows_its_memory() -> None:
    device = Cpu(threads=1)
    device.reset_peak()
    held = device.used_bytes()
    assert device.peak_bytes() >= held >= 0
    assert device.name.endswith("1 thread")


def test_devices_are_chosen_by_name() -> None:
    assert choose_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="must be one of auto, cpu, cuda"):
        choose_device("tpu")


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1,-2", "2,4", "1,99999", "1;2", "1,2,2"])
def test_the_command_refuses_bad_batches(text: str) -> None:
    with pytest.raises(ConfigError, match="batches"):
        read_batches(text)


def test_the_command_reads_batches_and_shapes() -> None:
    assert read_batches("1, 2,8") == (1, 2, 8)
    assert read_shape("") is None
    assert read_shape("3x224x224") == (3, 224, 224)
    for wrong in ("3x", "x", "0x2", "3,4"):
        with pytest.raises(ConfigError, match="input"):
            read_shape(wrong)


def test_the_command_writes_a_file_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("users_own")
    module.bare = lambda: np.negative  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)
    file = tmp_path / "own.json"
    profile(
        ["users_own:bare"],
        file,
        batches="1,2",
        device="cpu",
        budget_ms=5,
        input_shape="4",
        as_json=True,
    )
    printed = json.loads(capsys.readouterr().out)
    table = load_file(file)
    assert [each.name for each in table.profiles] == ["users_own:bare"]
    assert table.profiles[0].batches == (1, 2)
    assert printed["profiles"][0]["p50_ns"] == list(table.profiles[0].p50_ns)
    with pytest.raises(ConfigError, match="folder that exists"):
        profile(["users_own:bare"], tmp_path / "no" / "own.json", input_shape="4")
    with pytest.raises(ConfigError, match="named twice"):
        profile(["users_own:bare"] * 2, file, input_shape="4")
