"""Which worker takes which post of a plan, and which DNNs it keeps at hand (section IV-D)."""

from collections.abc import Sequence

from fermata.router.policies.jellyfish.mapping_problem import Post


def assign(current: Sequence[int], posts: Sequence[Post], kinds: Sequence[int] = ()) -> list[Post]:
    """The post of each worker, given the DNN that each runs now. Both are sorted and matched
    element by element, which makes the distances between old and new DNNs least.

    A post stays with the kind of worker that it was planned for.
    """
    kinds = kinds or (0,) * len(current)
    workers = sorted(range(len(current)), key=lambda index: (kinds[index], current[index], index))
    ordered = sorted(range(len(posts)), key=lambda index: (kinds[index], posts[index].dnn, index))
    assigned = list(posts)
    for worker, index in zip(workers, ordered, strict=True):
        assigned[worker] = posts[index]
    return assigned


def neighbours(dnn: int, count: int, dnns: int) -> frozenset[int]:
    """The DNN itself and those nearest to it in size, `count` in all or as many as there are."""
    nearest = sorted(range(dnns), key=lambda other: (abs(other - dnn), other))
    return frozenset(nearest[: max(1, count)])


class HitCount:
    """How often a worker had its next DNN at hand."""

    __slots__ = ("hits", "switches")

    def __init__(self) -> None:
        self.hits = 0
        self.switches = 0

    def note(self, at_hand: bool) -> None:
        self.switches += 1
        self.hits += at_hand

    @property
    def ratio(self) -> float:
        """1 where no worker has had to switch yet."""
        return self.hits / self.switches if self.switches else 1.0
