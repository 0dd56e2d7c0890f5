"""Tuning on a device that is played: graphs are calls, and run times are those of a table."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from fermata.deployments.backend.execution.captured import PLAIN, CapturedGraph
from fermata.deployments.backend.kernels.choice import Choice
from fermata.deployments.backend.kernels.substitution import input_of, substituted
from fermata.deployments.backend.kernels.tuning import KernelTuner, TuningError
from fermata.deployments.models.model import Card, TorchModel

TIMES_NS = {
    PLAIN: {1: 100, 2: 100, 4: 200, 8: 400},
    "fast": {1: 50, 2: 60, 4: 190, 8: 399},
    "wrong": {1: 1, 2: 1, 4: 1, 8: 1},
}


class Played:
    """A `GraphRunner` without a GPU."""

    def __init__(self, network: Any) -> None:
        self.torch = torch
        self.model = TorchModel(Card("played", (4,), "float32", (3,)), network)
        self.sizes = [1, 2, 3, 4, 6, 8]
        self.room = 8
        self.flying = 0
        self.captured: list[tuple[int, str]] = []
        self.installed: list[dict[int, CapturedGraph]] = []
        self.graphs = {size: self.capture(size, None) for size in self.sizes}

    def open_stream(self) -> str:
        return "side"

    def open_pool(self) -> object:
        return object()

    @contextmanager
    def on_stream(self, stream: str) -> Iterator[None]:
        assert stream == "side"
        with torch.inference_mode():
            yield

    def sample(self, size: int) -> Any:
        return [torch.from_numpy(self.model.card.make_batch(size))]

    def compute(self, batch: Any) -> Any:
        return (self.model.forward(batch),)

    def capture(self, size: int, pool: Any, way: str = PLAIN, stream: Any = None) -> CapturedGraph:
        self.captured.append((size, way))
        return CapturedGraph(size, self.compute(torch.ones(size, 4)), way)

    def time_ns(self, captured: CapturedGraph) -> int:
        return TIMES_NS[captured.way][captured.graph]

    def install(self, found: dict[int, CapturedGraph]) -> None:
        self.installed.append(found)
        self.graphs.update(found)


def make_network() -> Any:
    torch.manual_seed(0)
    return nn.Linear(4, 3).eval().requires_grad_(False)


def tuner(runner: Any, **builds: Any) -> KernelTuner:
    return KernelTuner(runner, builds, sleep=lambda _: None)


def same(network: Any, sample: Any) -> Any:
    assert sample.shape == (8, 4)
    return lambda x: nn.functional.linear(x, network.weight, network.bias)


def wrong(network: Any, sample: Any) -> Any:
    return lambda x: -nn.functional.linear(x, network.weight, network.bias)


def broken(network: Any, sample: Any) -> Any:
    raise RuntimeError("the compiler gave up")


def ways(runner: Played) -> dict[int, str]:
    return {size: runner.graphs[size].way for size in runner.sizes}


def test_faster_ways_that_agree_are_installed_at_their_sizes() -> None:
    runner = Played(make_network())
    choice = tuner(runner, broken=broken, wrong=wrong, fast=same).tune()
    fast = {1: "fast", 2: "fast", 3: "fast", 4: "fast"}
    assert choice.ways == fast
    assert ways(runner) == {**fast, 6: PLAIN, 8: PLAIN}
    assert "wrong" not in choice.times_ns
    # Sizes that were not timed are captured only where they are used.
    assert (6, "fast") not in runner.captured
    assert len(runner.installed) == 1


def test_what_was_chosen_before_is_installed_without_timing() -> None:
    runner = Played(make_network())
    tuner(runner, fast=same, wrong=wrong).apply(
        Choice({1: "fast", 8: "wrong", 6: "gone", 5: "fast"}, {})
    )
    assert ways(runner) == {**dict.fromkeys(runner.sizes, PLAIN), 1: "fast"}


def test_nothing_is_changed_where_no_way_agrees() -> None:
    runner = Played(make_network())
    with pytest.raises(TuningError, match="same answers"):
        tuner(runner, broken=broken, wrong=wrong).tune()
    assert runner.installed == []
    assert "forward" not in vars(runner.model.module)


def test_a_model_that_does_not_call_its_network_is_left() -> None:
    runner = Played(make_network())
    runner.model = TorchModel(runner.model.card, runner.model.module, lambda batch: batch[:, :3])
    with pytest.raises(TuningError, match="one tensor"):
        tuner(runner, fast=same).tune()


def test_a_substitute_runs_in_its_own_thread_only() -> None:
    network, batch = make_network(), torch.ones(2, 4)
    plain = network(batch)
    with substituted(network, lambda x: "mine"):
        assert network(batch) == "mine"
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(network, batch).result(), plain)
    assert torch.equal(network(batch), plain)


def test_a_network_with_a_forward_of_its_own_keeps_it() -> None:
    network = make_network()
    network.forward = lambda x: "own"
    with substituted(network, lambda x: "other"):
        assert network(1) == "other"
    assert network(1) == "own"


def test_the_input_of_a_network_is_seen_through_its_model() -> None:
    network = make_network()
    seen = input_of(network, lambda: network(torch.full((1, 4), 3.0)))
    assert torch.equal(seen, torch.full((1, 4), 3.0))
    assert input_of(network, lambda: None) is None
    assert input_of(network, lambda: network(input=torch.ones(1, 4))) is None
