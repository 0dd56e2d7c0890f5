"""Ways that are built for one batch size at a time, on a device that is played."""

from typing import Any

import pytest

pytest.importorskip("torch")

from played_runner import Played, make_network
from torch import nn

from fermata.deployments.backend.execution.cuda.captured import PLAIN
from fermata.deployments.backend.kernels.choice import Choice, choose, most_served, sizes_used
from fermata.deployments.backend.kernels.tuning import KernelTuner, TuningError

TIMES_NS = {
    PLAIN: {1: 100, 2: 120, 4: 200, 8: 400},
    "fast": {1: 50, 2: 100, 4: 190, 8: 390},
    "compiled": {1: 60, 2: 55, 4: 90, 8: 150},
    "slow": {1: 60, 2: 130, 4: 210, 8: 410},
}


class Built:
    """Functions as they are asked for; `broken` sizes fail, `wrong` ones answer otherwise."""

    def __init__(self, broken: tuple[int, ...] = (), wrong: tuple[int, ...] = ()) -> None:
        self.broken = broken
        self.wrong = wrong
        self.sizes: list[int] = []

    def __call__(self, network: Any, taken: Any, size: int) -> Any:
        self.sizes.append(size)
        assert taken.shape == (min(size, 16), 4)
        if size in self.broken:
            raise RuntimeError("no compiler\nand more")

        def function(batch: Any) -> Any:
            assert len(batch) == size, "it was built for another size"
            answers = nn.functional.linear(batch, network.weight, network.bias)
            return -answers if size in self.wrong else answers

        return function


def same(network: Any, sample: Any) -> Any:
    return lambda x: nn.functional.linear(x, network.weight, network.bias)


def tuner(runner: Any, sized: dict[str, Any], **builds: Any) -> KernelTuner:
    return KernelTuner(runner, builds, sleep=lambda _: None, sized=sized)


def graphs(runner: Played) -> dict[int, tuple[str, int]]:
    """Way and size of the graph that each size runs."""
    return {size: (runner.graphs[size].way, runner.graphs[size].graph) for size in runner.sizes}


def test_batches_are_padded_to_sizes_that_were_built() -> None:
    runner, built = Played(make_network(), TIMES_NS), Built()
    choice = tuner(runner, {"compiled": built}, fast=same).tune()
    assert sorted(built.sizes) == [1, 2, 4, 8]
    assert graphs(runner) == {
        1: ("fast", 1),
        2: ("compiled", 2),
        3: ("compiled", 4),
        4: ("compiled", 4),
        6: ("compiled", 8),
        8: ("compiled", 8),
    }
    assert sizes_used(choice, "compiled") == {2, 4, 8}
    # Quick ways serve while the others are built; then all are switched at once.
    assert [sorted(each) for each in runner.installed] == [[1, 2, 3, 4], [2, 3, 4, 6, 8]]


def test_the_sizes_that_serve_most_are_built_first() -> None:
    runner, built = Played(make_network(), TIMES_NS), Built()
    runner.served = {3: 40, 4: 30, 2: 50, 8: 1, 1: 10}
    tuner(runner, {"compiled": built}).tune()
    assert built.sizes == [4, 2, 1, 8]
    assert most_served([1, 8, 4], [1, 2, 4, 8], {}) == 8
    assert most_served([1, 8], [1, 2, 4, 8], {4: 5, 16: 9}) == 8


def test_a_way_that_gains_nothing_is_given_up_after_two_sizes() -> None:
    runner, slow = Played(make_network(), TIMES_NS), Built()
    choice = tuner(runner, {"slow": slow}, fast=same).tune()
    assert slow.sizes == [8, 4]
    assert "slow" not in choice.ways.values()
    assert choice.times_ns["slow"] == {8: 410, 4: 210}


@pytest.mark.parametrize("fault", ["broken", "wrong"])
def test_a_size_that_fails_is_the_last_one_and_others_stay(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    runner, built = Played(make_network(), TIMES_NS), Built(**{fault: (4,)})
    tuner(runner, {"compiled": built}, fast=same).tune()
    assert built.sizes == [8, 4]
    assert graphs(runner)[8] == ("compiled", 8)
    assert graphs(runner)[4] == ("compiled", 8)
    assert graphs(runner)[2] == ("fast", 2)
    failed = [each for each in caplog.records if "cannot be built" in each.getMessage()]
    assert len(failed) == 1
    assert "\n" not in failed[0].getMessage()


def test_nothing_is_chosen_where_the_only_way_fails() -> None:
    runner = Played(make_network(), TIMES_NS)
    with pytest.raises(TuningError, match="same answers"):
        tuner(runner, {"compiled": Built(broken=(8,))}).tune()
    assert runner.installed == []


def test_networks_that_compute_sizes_are_not_compiled() -> None:
    runner, built = Played(make_network(), TIMES_NS), Built()
    runner.recorded = True
    tuner(runner, {"compiled": built}, fast=same).tune()
    assert built.sizes == []


def test_what_was_chosen_before_is_built_at_its_sizes_alone() -> None:
    runner, built = Played(make_network(), TIMES_NS), Built()
    times = {"compiled": {2: 55, 4: 90, 8: 150}}
    known = Choice({1: "fast", 3: "compiled", 4: "compiled", 2: "gone"}, times)
    tuner(runner, {"compiled": built}, fast=same).apply(known)
    assert built.sizes == [4]
    assert graphs(runner) == {
        1: ("fast", 1),
        3: ("compiled", 4),
        4: ("compiled", 4),
        **{size: (PLAIN, size) for size in (2, 6, 8)},
    }


def test_padding_counts_where_ways_are_compared() -> None:
    times = {PLAIN: {1: 100, 8: 800}, "compiled": {8: 450}}
    # A batch of 4 takes 400 as it is, and 450 padded to 8; one of 6 takes 600.
    assert choose(times, [1, 4, 6, 8], ["compiled"]).ways == {6: "compiled", 8: "compiled"}
    # Nothing is run at a size that is smaller than the batch.
    assert choose({PLAIN: {1: 100, 8: 800}, "compiled": {1: 10}}, [1, 8], ["compiled"]).ways == {
        1: "compiled"
    }
