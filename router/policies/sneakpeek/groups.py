"""Grouping by application, splitting by likely class, merging back when there are too many."""

from collections.abc import Sequence
from math import exp

from fermata.foundation.units import SECOND
from fermata.router.policies.sneakpeek.problem import Job

Group = list[Job]
"""Jobs of one application, by deadline."""


def by_deadline(job: Job) -> tuple[int, int]:
    return job.deadline_ns, job.key


def priority(now_ns: int, job: Job) -> float:
    """Eq. 12. The deadline d is the time left, in seconds."""
    left_s = (job.deadline_ns - now_ns) / SECOND
    mean = sum(job.worths) / len(job.worths)
    variance = sum((worth - mean) ** 2 for worth in job.worths) / len(job.worths)
    return (1.0 + variance) * exp(-left_s)


def group_priority(now_ns: int, group: Group) -> float:
    """Eq. 14."""
    return sum(priority(now_ns, job) for job in group) / len(group)


def by_application(jobs: Sequence[Job], size_max: int = 0) -> list[Group]:
    """One group for each application, cut into parts of at most `size_max` jobs; 0: uncut."""
    found: dict[int, Group] = {}
    for job in sorted(jobs, key=by_deadline):
        found.setdefault(job.application, []).append(job)
    return cut(list(found.values()), size_max)


def cut(groups: list[Group], size_max: int) -> list[Group]:
    """Groups of at most that size, so that several workers can share one (section 8); 0: uncut."""
    if size_max < 1:
        return groups
    return [
        group[start : start + size_max]
        for group in groups
        for start in range(0, len(group), size_max)
    ]


def by_class(groups: list[Group], count_max: int) -> list[Group]:
    """Split each group by likely class (section 5.3.2) into at most `count_max` groups in all.

    Where there would be more, those of one application that are most alike are merged back: the
    greedy fallback on many small groups does worse than an exact search on few.
    """
    if len(groups) >= count_max:
        return groups
    families = [_Family(group) for group in groups]
    count = sum([len(family.parts) for family in families])
    while count > count_max:
        min(families, key=_loss).merge()
        count -= 1
    return [part for family in families for part in family.parts]


class _Family:
    """One application's jobs, split by likely class."""

    __slots__ = ("loss", "losses", "means", "pair", "parts")

    def __init__(self, group: Group) -> None:
        likely: dict[int, Group] = {}
        for job in group:
            likely.setdefault(job.likely, []).append(job)
        self.parts = list(likely.values())
        self.means = [_shortfalls(part) for part in self.parts]
        self.losses = [
            [self._loss_of(left, right) for left in range(right)]
            for right in range(len(self.parts))
        ]
        """[right][left]: what two parts lose by having one variant in common."""
        self._find()

    def _loss_of(self, left: int, right: int) -> float:
        pairs = zip(self.means[left], self.means[right], strict=True)
        gap = max([abs(a - b) for a, b in pairs])
        return gap * min(len(self.parts[left]), len(self.parts[right]))

    def _find(self) -> None:
        """The two parts that lose least."""
        self.loss, self.pair = float("inf"), (0, 0)
        for right, losses in enumerate(self.losses):
            for left, loss in enumerate(losses):
                if loss < self.loss:
                    self.loss, self.pair = loss, (left, right)

    def merge(self) -> None:
        left, right = self.pair
        self.parts[left] = sorted(self.parts[left] + self.parts[right], key=by_deadline)
        self.means[left] = _shortfalls(self.parts[left])
        del self.parts[right], self.means[right], self.losses[right]
        for losses in self.losses[right:]:
            del losses[right]
        self.losses[left] = [self._loss_of(other, left) for other in range(left)]
        for other in range(left + 1, len(self.parts)):
            self.losses[other][left] = self._loss_of(left, other)
        self._find()


def _loss(family: _Family) -> float:
    return family.loss


def _shortfalls(group: Group) -> list[float]:
    """The loss of each variant to the group against the best one, in the mean."""
    count = len(group)
    means = [sum(column) / count for column in zip(*[job.worths for job in group], strict=True)]
    best = max(means)
    return [best - mean for mean in means]
