"""Tuning on a device that is played: graphs are calls, and run times are those of a table."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from played_runner import Played, make_network
from torch import nn

from fermata.deployments.backend.execution.cuda.captured import PLAIN
from fermata.deployments.backend.kernels.choice import Choice
from fermata.deployments.backend.kernels.substitution import input_of, substituted
from fermata.deployments.backend.kernels.tuning import KernelTuner, TuningError
from fermata.deployments.models.model import TorchModel

TIMES_NS = {
    PLAIN: {1: 100, 2: 100, 4: 200, 8: 400},
    "fast": {1: 50, 2: 60, 4: 190, 8: 399},
    "wrong": {1: 1, 2: 1, 4: 1, 8: 1},
}


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
    runner = Played(make_network(), TIMES_NS)
    choice = tuner(runner, broken=broken, wrong=wrong, fast=same).tune()
    fast = {1: "fast", 2: "fast", 3: "fast", 4: "fast"}
    assert choice.ways == fast
    assert ways(runner) == {**fast, 6: PLAIN, 8: PLAIN}
    assert "wrong" not in choice.times_ns
    # Sizes that were not timed are captured only where they are used.
    assert (6, "fast") not in runner.captured
    assert len(runner.installed) == 1


def test_constants_of_a_way_live_as_long_as_its_graphs() -> None:
    class Folded(nn.Linear):
        """Weights of its own, which graphs read at each launch."""

    built: list[weakref.ref[Any]] = []

    def fold(network: Any, sample: Any) -> Any:
        folded = Folded(4, 3)
        folded.load_state_dict(network.state_dict())
        built.append(weakref.ref(folded))
        return folded

    runner = Played(make_network(), TIMES_NS)
    tuner(runner, fast=fold).tune()
    gc.collect()
    assert built[0]() is not None
    runner.graphs.clear()
    runner.installed.clear()
    gc.collect()
    assert built[0]() is None


def test_what_was_chosen_before_is_installed_without_timing() -> None:
    runner = Played(make_network(), TIMES_NS)
    tuner(runner, fast=same, wrong=wrong).apply(
        Choice({1: "fast", 8: "wrong", 6: "gone", 5: "fast"}, {})
    )
    assert ways(runner) == {**dict.fromkeys(runner.sizes, PLAIN), 1: "fast"}


def test_nothing_is_changed_where_no_way_agrees() -> None:
    runner = Played(make_network(), TIMES_NS)
    with pytest.raises(TuningError, match="same answers"):
        tuner(runner, broken=broken, wrong=wrong).tune()
    assert runner.installed == []
    assert "forward" not in vars(runner.model.module)


def test_a_model_that_does_not_call_its_network_is_left() -> None:
    runner = Played(make_network(), TIMES_NS)
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
