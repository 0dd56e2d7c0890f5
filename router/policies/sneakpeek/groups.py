"""Grouping by application, splitting by likely class, merging back when there are too many."""

from collections.abc import Sequence
from math import exp

from router.core.units import SECOND
from router.policies.sneakpeek.problem import Job

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
    split: list[Group] = []
    for group in groups:
        likely: dict[int, Group] = {}
        for job in group:
            likely.setdefault(job.likely, []).append(job)
        split.extend(likely.values())
    means = [_shortfalls(group) for group in split]
    while len(split) > max(count_max, len(groups)):
        left, right = _closest(split, means)
        split[left] = sorted(split[left] + split[right], key=by_deadline)
        means[left] = _shortfalls(split[left])
        del split[right], means[right]
    return split


def _closest(groups: list[Group], means: list[list[float]]) -> tuple[int, int]:
    """The two groups of one application that lose least by having one variant in common."""
    best, pair = float("inf"), (0, 0)
    for left, one in enumerate(groups):
        application, mean = one[0].application, means[left]
        for right in range(left + 1, len(groups)):
            other = groups[right]
            if other[0].application != application:
                continue
            gap = max([abs(a - b) for a, b in zip(mean, means[right], strict=True)])
            loss = gap * min(len(one), len(other))
            if loss < best:
                best, pair = loss, (left, right)
    return pair


def _shortfalls(group: Group) -> list[float]:
    """What each variant is worth to the group, in the mean, less than the best one."""
    count = len(group)
    means = [sum(column) / count for column in zip(*[job.worths for job in group], strict=True)]
    best = max(means)
    return [best - mean for mean in means]
