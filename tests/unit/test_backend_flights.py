"""Batches that are launched ahead: order, times and failures, with a device played by hand."""

import queue
import threading
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.executor import BatchOutcome, Executor, refusals
from fermata.deployments.backend.execution.runners.runner import FittingRunner, PlainRunner
from fermata.deployments.backend.execution.tensors import Array, RowItems
from fermata.deployments.backend.pictures.picture_runner import StagedPictures
from fermata.foundation.units import ms


class HandFlight:
    """A batch that ends when the test says so."""

    def __init__(self, staged: Array) -> None:
        self.staged = staged
        self.landed = threading.Event()
        self.error: Exception | None = None
        self.run_ns = 0

    def outputs(self) -> Any:
        assert self.landed.wait(10)
        if self.error is not None:
            raise self.error
        self.run_ns = ms(3)
        return self.staged * 2


class HandDevice(PlainRunner):
    """Launches batches; the test has them by `launched`."""

    def __init__(self) -> None:
        super().__init__(lambda batch: batch * 2, 16)
        self.launched: queue.SimpleQueue[HandFlight] = queue.SimpleQueue()
        self.ran: list[int] = []

    def launch(self, staged: Array) -> HandFlight:
        if len(staged) > 8:
            raise MemoryError("nine at once")
        flight = HandFlight(staged)
        self.launched.put(flight)
        return flight

    def run(self, staged: Array) -> Any:
        self.ran.append(len(staged))
        return super().run(staged)


class Bench:
    """An executor, the device and what was reported."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[BatchOutcome] = queue.SimpleQueue()
        self.executor = Executor(self.heard.put)
        self.device = HandDevice()

    def begin(self, job: Any, count: int, runner: Any = None) -> None:
        items = [(place, np.array([place])) for place in range(count)]
        self.executor.begin(job, runner or self.device, items, {})

    def take(self) -> BatchOutcome:
        return self.heard.get(timeout=10)

    def flight(self) -> HandFlight:
        return self.device.launched.get(timeout=10)


def test_the_next_batch_is_launched_while_one_flies() -> None:
    bench = Bench()
    bench.begin("first", 2)
    bench.begin("second", 3)
    first, second = bench.flight(), bench.flight()
    assert bench.heard.empty()
    second.landed.set()
    first.landed.set()
    outcomes = [bench.take(), bench.take()]
    bench.executor.stop()
    assert [each.job for each in outcomes] == ["first", "second"]
    assert [len(each.outputs[0][0]) for each in outcomes] == [2, 3]


def test_run_times_are_those_of_the_device() -> None:
    bench = Bench()
    bench.begin("job", 1)
    bench.flight().landed.set()
    outcome = bench.take()
    bench.executor.stop()
    assert outcome.run_ns == ms(3)
    assert outcome.started_at_ns > 0


def test_a_flight_that_fails_is_run_in_halves_and_others_go_on() -> None:
    bench = Bench()
    bench.begin("bad", 4)
    bench.begin("good", 1)
    bad, good = bench.flight(), bench.flight()
    good.landed.set()
    bad.error = RuntimeError("a kernel failed")
    bad.landed.set()
    outcomes = [bench.take(), bench.take()]
    bench.executor.stop()
    assert [each.job for each in outcomes] == ["bad", "good"]
    assert bench.device.ran == [2, 2]
    assert (outcomes[0].failed, outcomes[0].errors) == ("", {})
    assert sorted(place for places, _ in outcomes[0].outputs for place in places) == [0, 1, 2, 3]


def test_a_batch_without_room_to_launch_runs_in_halves() -> None:
    bench = Bench()
    bench.begin("large", 9)
    outcome = bench.take()
    bench.executor.stop()
    assert bench.device.ran == [4, 5]
    assert outcome.fits == 5


def test_a_batch_that_cannot_be_launched_ahead_waits_for_the_flights() -> None:
    bench = Bench()
    bench.begin("flying", 1)
    bench.begin("own", 1, PlainRunner(lambda batch: batch, 16))
    bench.flight().landed.set()
    outcomes = [bench.take().job, bench.take().job]
    bench.executor.stop()
    assert outcomes == ["flying", "own"]


def test_an_input_that_could_not_be_staged_is_named_behind_one_of_several_rows() -> None:
    rows = RowItems(np.zeros((3, 1)), 3)
    single = np.zeros(1)
    box = [StagedPictures(None, {1: "of the first", 3: "of the second"})]
    found = refusals(box, [4, 6, 7], [rows, single, single])
    assert found == {4: "of the first", 6: "of the second"}


def test_fitted_pictures_are_launched_ahead_too() -> None:
    bench = Bench()
    fitting = FittingRunner(bench.device, lambda picture: picture[0, 0, :1])
    picture = np.full((1, 1, 3), 7, np.uint8)
    bench.executor.begin("job", fitting, [(0, picture)], {})  # type: ignore[arg-type]
    bench.flight().landed.set()
    outcome = bench.take()
    bench.executor.stop()
    assert int(outcome.outputs[0][1][0, 0]) == 14
