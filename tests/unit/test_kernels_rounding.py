"""Other ways are held against what a network owes to rounding."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from played_runner import Played
from torch import nn

from fermata.deployments.backend.execution.cuda.captured import PLAIN
from fermata.deployments.backend.execution.cuda.samples import BLOCK, smooth
from fermata.deployments.backend.kernels.agreement import BOUND, BOUND_MAX, bound_of, compare
from fermata.deployments.backend.kernels.rounding import in_32_bits
from fermata.deployments.backend.kernels.tuning import KernelTuner, TuningError

TIMES_NS = {PLAIN: dict.fromkeys((1, 2, 4, 8), 100), "other": dict.fromkeys((1, 2, 4, 8), 50)}


class Steep(nn.Module):
    """A network that makes much of the last bit of its inputs."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gain = gain
        self.linear = nn.Linear(4, 3).half()

    def forward(self, given: Any) -> Any:
        found = self.linear(given.to(self.linear.weight.dtype))
        # The sine of a large number is that of what rounding has left of it.
        return (found + torch.sin(found * self.gain)).float()


def runner(gain: float) -> Played:
    return Played(Steep(gain).eval().requires_grad_(False), TIMES_NS)


def off_by(share: float) -> Any:
    """A way whose answers are off by this share of the largest one."""

    def build(network: Any, sample: Any) -> Any:
        def run(given: Any) -> Any:
            found = network.linear(given.to(network.linear.weight.dtype))
            plain = (found + torch.sin(found * network.gain)).float()
            return plain + share * plain.abs().max()

        return run

    return build


def tuned(gain: float, share: float) -> KernelTuner:
    tuner = KernelTuner(runner(gain), {"other": off_by(share)}, sleep=lambda _: None)
    tuner.tune()
    return tuner


def test_a_steep_network_has_a_wider_bound() -> None:
    flat, steep = tuned(1.0, 0.0), tuned(80.0, 0.0)
    assert flat.bound == BOUND
    assert steep.bound is not None
    assert BOUND < steep.bound <= BOUND_MAX
    # Between the two: a difference that rounding alone makes of the steep one.
    share = (BOUND + steep.bound) / 2
    assert tuned(80.0, share).trials["other"].agreement.holds
    with pytest.raises(TuningError):
        tuned(1.0, share)


def test_no_network_is_so_steep_that_anything_agrees() -> None:
    with pytest.raises(TuningError):
        tuned(1e4, 1.01 * BOUND_MAX)


def test_the_bound_is_twice_what_rounding_does_within_limits() -> None:
    exact = np.array([[1.0, 0.5]])
    assert bound_of(exact, exact) == BOUND
    assert bound_of(exact + 0.03, exact) == pytest.approx(0.06)
    assert bound_of(exact + 0.5, exact) == BOUND_MAX
    assert compare(exact, exact + 0.03, 0.06).holds


def test_a_network_in_32_bits_has_nothing_wider() -> None:
    network = nn.Linear(2, 2)
    assert in_32_bits(network) is None
    wide = in_32_bits(network.half())
    assert wide is not None
    assert wide(torch.ones(1, 2).half()).dtype == torch.float32
    assert network.weight.dtype == torch.float16


def test_what_cannot_be_copied_keeps_the_usual_bound() -> None:
    played = runner(80.0)

    def refuse(memo: Any) -> Any:
        raise RuntimeError("not to be copied")

    network: Any = played.model.module
    network.__deepcopy__ = refuse
    tuner = KernelTuner(played, {"other": off_by(0.0)}, sleep=lambda _: None)
    tuner.tune()
    assert tuner.bound == BOUND


@pytest.mark.parametrize("shape", [(2, 3, 64, 48), (2, 64, 48, 3)])
def test_pictures_are_made_of_blocks(shape: tuple[int, ...]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    made = smooth(noise)
    assert made.shape == shape
    assert made.dtype == np.uint8
    first = made[:, :, :BLOCK, :BLOCK] if shape[1] == 3 else made[:, :BLOCK, :BLOCK, :]
    axes = (2, 3) if shape[1] == 3 else (1, 2)
    assert (first.min(axes) == first.max(axes)).all()
    # Requests differ, and so do the blocks of one.
    assert len(np.unique(made)) > 2
    assert (made[0] != made[1]).any()


@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 8, 8), (2, 64, 64, 64), (2, 5, 100)])
def test_other_inputs_stay_as_they_are(shape: tuple[int, ...]) -> None:
    noise = np.random.default_rng(0).standard_normal(shape, np.float32)
    assert smooth(noise) is noise
