"""The input of one planning: jobs, workers, and the worth of running a job."""

from collections.abc import Sequence
from typing import Final

from fermata.foundation.units import NEVER

INITIAL: Final = -1
"""As a resident variant: whatever the worker held before the plan."""


class Job:
    """A queued request as the planner sees it."""

    __slots__ = (
        "application",
        "deadline_ns",
        "expires_at_ns",
        "instant",
        "key",
        "likely",
        "span_ns",
        "worths",
    )

    def __init__(
        self,
        key: int,
        application: int,
        arrived_at_ns: int,
        deadline_ns: int,
        expires_at_ns: int,
        worths: Sequence[float],
        instant: float = 0.0,
        likely: int = -1,
    ) -> None:
        self.key = key
        """The request of the job; the planner hands it back."""
        self.application = application
        self.deadline_ns = deadline_ns
        self.expires_at_ns = expires_at_ns
        """Nothing may be planned to end after it."""
        self.span_ns = max(1, deadline_ns - arrived_at_ns)
        """The d of the penalty: from arrival to deadline."""
        self.worths = worths
        """Expected accuracy on each of its application's variants; 0 where a variant is barred."""
        self.instant = instant
        """The worth of ending it now: the short circuit's expected accuracy, or 0."""
        self.likely = likely
        """The class with a probability above one half; -1 where none has."""


class Worker:
    """A backend as the planner sees it: when it is free, what it holds, how fast it is."""

    __slots__ = ("free_at_ns", "held", "number", "sizes", "swap_in_ns", "tables")

    def __init__(
        self,
        number: int,
        free_at_ns: int,
        held: frozenset[int] | None,
        tables: dict[int, list[int]],
        swap_in_ns: dict[int, int],
        sizes: dict[tuple[int, int], int] | None = None,
    ) -> None:
        self.number = number
        self.free_at_ns = free_at_ns
        self.held = held
        """Variants that run without a swap-in; None when all do."""
        self.tables = tables
        """Planned run times by variant and batch size; a variant that cannot run here is absent."""
        self.swap_in_ns = swap_in_ns
        """By variant; absent means nothing."""
        self.sizes = {} if sizes is None else sizes
        """Batch sizes found before, by variant and number of jobs; all times scale alike as they
        are learnt, so they stay right."""

    def batch_size(self, variant: int, count: int) -> int:
        """How many of so many jobs to run at a time."""
        size = self.sizes.get((variant, count))
        if size is None:
            size = self.sizes[variant, count] = batch_size(self.tables[variant], count)
        return size

    def ends_ns(self, variant: int, count: int) -> list[int]:
        """From the start of so many jobs to the end of each."""
        table, size = self.tables[variant], self.batch_size(variant, count)
        if size == 1:
            return list(range(table[1], table[1] * count + 1, table[1]))
        ends: list[int] = []
        at_ns = 0
        while len(ends) < count:
            now = min(size, count - len(ends))
            at_ns += table[now]
            ends.extend([at_ns] * now)
        return ends

    def swap_ns(self, resident: int, variant: int) -> int:
        """To bring the variant in. A run of one model pays once (READINGS: Eq. 1 would charge
        every request)."""
        if resident == variant or self.held is None:
            return 0
        if resident == INITIAL and variant in self.held:
            return 0
        return self.swap_in_ns.get(variant, 0)

    def after(self, resident: int, variant: int) -> int:
        """The resident variants once the variant has run."""
        if resident == INITIAL and (self.held is None or variant in self.held):
            return INITIAL
        return variant


class Segment:
    """Jobs that run one after the other on one variant."""

    __slots__ = ("application", "in_time", "jobs", "local", "variant")

    def __init__(self, application: int, local: int, variant: int, jobs: list[Job]) -> None:
        self.application = application
        self.local = local
        """The variant's place in its application."""
        self.variant = variant
        self.jobs = jobs
        self.in_time = -1.0
        """The worth of its jobs if none is late; negative until it is asked for."""

    def worth_in_time(self) -> float:
        """Once asked for, its jobs stay as they are."""
        if self.in_time < 0.0:
            local = self.local
            self.in_time = sum([job.worths[local] for job in self.jobs])
        return self.in_time


class Schedule:
    """The jobs of each worker, in order, and those that end at once."""

    __slots__ = ("ended", "left", "lines")

    def __init__(self, workers: int) -> None:
        self.lines: list[list[Segment]] = [[] for _ in range(workers)]
        self.ended: list[Job] = []
        """By short circuit where that is worth something, else without a result."""
        self.left: list[Job] = []
        """For the next window: no worker has a variant now that may serve them."""


def batch_size(table: list[int], count: int) -> int:
    """How many of `count` jobs to run at a time, so that the mean job ends earliest.

    Where batches gain nothing, jobs run one by one as in Eq. 1; where they gain much, all at once.
    """
    size_max = min(count, len(table) - 1)
    best, best_ns = 1, NEVER
    for size in range(size_max, 0, -1):
        full, rest = divmod(count, size)
        total_ns = table[size] * size * full * (full + 1) // 2
        if rest:
            total_ns += (full * table[size] + table[rest]) * rest
        if total_ns < best_ns:
            best, best_ns = size, total_ns
    return best
