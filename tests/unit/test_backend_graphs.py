"""Which batch sizes are captured as graphs, and what padding to them costs; needs no GPU."""

import pytest

from fermata.deployments.backend.execution.graphs import LADDER, captured_sizes, padded_size


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, [1]), (5, [1, 2, 3, 4, 5]), (8, [1, 2, 3, 4, 6, 8]), (300, [*LADDER, 300])],
)
def test_the_ladder_ends_at_the_largest_batch(largest: int, sizes: list[int]) -> None:
    assert captured_sizes(largest) == sizes


@pytest.mark.parametrize("largest", [1, 2, 7, 16, 50, 64, 256])
def test_padding_is_to_the_next_size_and_costs_at_most_a_third(largest: int) -> None:
    sizes = captured_sizes(largest)
    for size in range(1, largest + 1):
        padded = padded_size(sizes, size)
        assert padded in sizes
        assert padded == size or max(each for each in sizes if each < padded) < size
        assert padded - size <= padded / 3


def test_a_batch_of_a_captured_size_is_not_padded() -> None:
    for size in LADDER:
        assert padded_size(LADDER, size) == size
