"""The worth of running jobs, as a function of when they start."""

from bisect import bisect_left
from collections.abc import Sequence

from fermata.router.policies.sneakpeek.penalty import Penalty, step
from fermata.router.policies.sneakpeek.problem import INITIAL, Job, Segment, Worker


def worth_at(job: Job, local: int, end_ns: int, penalty: Penalty) -> float:
    """Eq. 2: expected accuracy, less the penalty of ending then."""
    late_ns = end_ns - job.deadline_ns
    if late_ns <= 0:
        return job.worths[local]
    if late_ns >= job.span_ns or end_ns > job.expires_at_ns:
        return 0.0
    return job.worths[local] * (1.0 - penalty(late_ns / job.span_ns))


class RunTable:
    """A group on one variant: the worth of starting it at any time, in O(log n) plus the late."""

    __slots__ = ("duration_ns", "entries", "from_there", "local", "penalty", "slacks", "variant")

    def __init__(
        self, group: list[Job], local: int, variant: int, worker: Worker, penalty: Penalty
    ) -> None:
        self.local = local
        self.variant = variant
        self.penalty = penalty
        ends = worker.ends_ns(variant, len(group))
        self.duration_ns = ends[-1]
        self.entries = sorted(
            [
                (job.deadline_ns - end, job.span_ns, job.expires_at_ns - end, job.worths[local])
                for job, end in zip(group, ends, strict=True)
            ]
        )
        """(latest start in time, span, latest start at all, worth), most urgent first."""
        self.slacks = [entry[0] for entry in self.entries]
        total = 0.0
        sums = [0.0]
        for entry in reversed(self.entries):
            total += entry[3]
            sums.append(total)
        sums.reverse()
        self.from_there = sums
        """Worth of all entries from each one on."""

    def worth(self, start_ns: int) -> float:
        late = bisect_left(self.slacks, start_ns)
        total = self.from_there[late]
        if late and self.penalty is not step:
            penalty = self.penalty
            for slack_ns, span_ns, last_ns, worth in self.entries[:late]:
                late_ns = start_ns - slack_ns
                if late_ns < span_ns and start_ns <= last_ns:
                    total += worth * (1.0 - penalty(late_ns / span_ns))
        return total


State = tuple[int, int, float]
"""State of a worker between two segments: time, resident variant, worth so far."""


def tail_state(worker: Worker, state: State, tail: Sequence[Segment], penalty: Penalty) -> State:
    """Where a worker is after running these segments from that state."""
    at_ns, resident, total = state
    for segment in tail:
        variant, local, jobs = segment.variant, segment.local, segment.jobs
        left = len(jobs)
        if left == 0:
            continue
        if variant != resident:
            at_ns += worker.swap_ns(resident, variant)
            resident = worker.after(resident, variant)
        table = worker.tables[variant]
        size = worker.batch_size(variant, left)
        if size == 1:
            run_ns = table[1]
            if at_ns + left * run_ns <= jobs[0].deadline_ns:
                # Jobs are by deadline: where the last ends before the first one's, nobody is late.
                at_ns += left * run_ns
                total += segment.worth_in_time()
                continue
            for job in jobs:
                at_ns += run_ns
                if at_ns <= job.deadline_ns:
                    total += job.worths[local]
                else:
                    total += worth_at(job, local, at_ns, penalty)
            continue
        start = 0
        while start < left:
            now = min(size, left - start)
            at_ns += table[now]
            for job in jobs[start : start + now]:
                total += worth_at(job, local, at_ns, penalty)
            start += now
    return at_ns, resident, total


def line_worth(worker: Worker, line: Sequence[Segment], penalty: Penalty) -> float:
    """The worth of a worker's segments, run in this order from when it is free."""
    return tail_state(worker, (worker.free_at_ns, INITIAL, 0.0), line, penalty)[2]
