"""Sub-clusters as a new router finds them: told by what backends hold."""

from collections.abc import Mapping, Sequence

LIKE = 0.5
"""Models that two have in common, as a share of all that either has, from which on they are of one
sub-cluster: during a move, neighbours have some in common."""


def likest(held: frozenset[int], sub_clusters: Sequence[tuple[int, frozenset[int]]]) -> int | None:
    """The sub-cluster whose models are most like those held, the first one of several; None where
    none are like enough."""
    best, found = LIKE, None
    for rank, needed in sub_clusters:
        common = len(held & needed)
        if common and common / len(held | needed) > best:
            best, found = common / len(held | needed), rank
    return found


def renumbering(found: Mapping[int, int], planned: Mapping[int, int], count: int) -> list[int]:
    """Number by the plan of each sub-cluster found, so that the fewest applications move.

    Pairs with the most applications in common come first, which is not always best, and enough:
    where backends hold what the plan says, all of a pair are in common.
    """
    common: dict[tuple[int, int], int] = {}
    for application, rank in found.items():
        if application in planned:
            pair = rank, planned[application]
            common[pair] = common.get(pair, 0) + 1
    new: dict[int, int] = {}
    for rank, number in sorted(common, key=lambda pair: (-common[pair], pair)):
        if rank not in new and number not in new.values():
            new[rank] = number
    free = [number for number in range(count) if number not in new.values()]
    left = [rank for rank in range(count) if rank not in new]
    # Those without a part in the plan keep their numbers where they can.
    for rank in [each for each in left if each in free]:
        new[rank] = rank
        free.remove(rank)
    for rank in [each for each in left if each not in new]:
        new[rank] = free.pop(0)
    return [new[rank] for rank in range(count)]
