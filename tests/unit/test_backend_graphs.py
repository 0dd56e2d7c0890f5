"""Which batch sizes are captured as graphs, and what padding to them costs; needs no GPU."""

from statistics import mean

import pytest

from fermata.deployments.backend.execution.cuda.ladder import (
    LADDER,
    capture_order,
    captured_sizes,
    padded_size,
)


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, [1]),
        (5, [1, 2, 3, 4, 5]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (21, [*range(1, 17), 18, 20, 21]),
        (1500, [*LADDER, 1500]),
    ],
)
def test_the_ladder_ends_at_the_largest_batch(largest: int, sizes: list[int]) -> None:
    assert captured_sizes(largest) == sizes


def padding(sizes: list[int], size: int) -> float:
    padded = padded_size(sizes, size)
    assert padded in sizes
    assert padded == size or max(each for each in sizes if each < padded) < size
    return (padded - size) / size


@pytest.mark.parametrize("largest", [17, 24, 50, 64, 100, 128, 256, 1000])
def test_padding_of_batches_above_16_is_small(largest: int) -> None:
    sizes = captured_sizes(largest)
    lost = [padding(sizes, size) for size in range(17, largest + 1)]
    assert mean(lost) <= 0.05
    assert max(lost) <= 0.125
    assert all(padding(sizes, size) == 0 for size in range(1, min(16, largest) + 1))


@pytest.mark.parametrize("largest", [1, 2, 7, 16, 50, 64, 256])
def test_sizes_that_are_always_captured_bound_padding_by_a_third(largest: int) -> None:
    needed, finer = capture_order(captured_sizes(largest))
    assert sorted(needed + finer) == captured_sizes(largest)
    # The largest comes first: graphs of the others fit its memory.
    assert needed[0] == largest
    sizes = sorted(needed)
    for size in range(1, largest + 1):
        assert padded_size(sizes, size) - size <= padded_size(sizes, size) / 3


def test_a_batch_of_a_captured_size_is_not_padded() -> None:
    for size in LADDER:
        assert padded_size(LADDER, size) == size
