"""Batch sizes that are captured as graphs; other batches are padded to the next one."""

from bisect import bisect_left
from collections.abc import Sequence

STEPS = 8
"""Sizes in an octave: batches above 16 are padded by 4 % in the mean, and 12.5 % at most."""
LARGEST = 1024


def _ladder() -> tuple[int, ...]:
    """1, 2, 3 and so on to 8, then eight sizes from each power of two to the next."""
    sizes = list(range(1, STEPS + 1))
    while sizes[-1] < LARGEST:
        last = sizes[-1]
        sizes += range(last + last // STEPS, 2 * last + 1, last // STEPS)
    return tuple(sizes)


LADDER = _ladder()


def captured_sizes(batch_size_max: int, ladder: Sequence[int] = LADDER) -> list[int]:
    """Batch sizes to capture, ascending; the largest batch is one of them."""
    return sorted({size for size in ladder if size < batch_size_max} | {batch_size_max})


def is_coarse(size: int) -> bool:
    """Whether a size is among two an octave, which bound padding by a third."""
    odd = size
    while odd % 2 == 0:
        odd //= 2
    return odd in (1, 3)


def capture_order(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """(sizes to capture, those to capture if there is time), each from the largest down."""
    falling = sorted(sizes, reverse=True)
    needed = [size for size in falling if size == falling[0] or is_coarse(size)]
    return needed, [size for size in falling if size not in needed]


def padded_size(sizes: Sequence[int], size: int) -> int:
    """The captured size that a batch of this size runs at."""
    return sizes[bisect_left(sizes, size)]


def powers_of_two(largest: int) -> list[int]:
    """1, 2, 4 and so on, and the largest itself."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(2 * sizes[-1], largest))
    return sizes
