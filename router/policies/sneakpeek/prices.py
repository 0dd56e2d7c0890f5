"""Schedules found by putting a price on a worker's time."""

from collections.abc import Sequence

from fermata.router.policies.sneakpeek.groups import Group
from fermata.router.policies.sneakpeek.problem import INITIAL, Job, Schedule, Segment, Worker

PRICES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.2)
"""Worth of 10 ms of a worker. With the right one, what is worth its price fits in time."""
PRICED_NS = 10_000_000


def priced(
    workers: Sequence[Worker],
    groups: Sequence[Group],
    variants: dict[int, Sequence[int]],
    price: float,
) -> Schedule:
    """Every job on the variant that is worth most after its price, or ended at once; a variant is
    used only if its jobs together pay for its swap-in. One application may use two. Groups go to
    the least loaded worker, and each worker runs the most urgent segment first."""
    schedule = Schedule(len(workers))
    loads_ns = [worker.free_at_ns for worker in workers]
    price_ns = price / PRICED_NS
    for group in groups:
        place = min(range(len(workers)), key=loads_ns.__getitem__)
        worker = workers[place]
        for segment in _choose(worker, group, variants[group[0].application], price_ns, schedule):
            schedule.lines[place].append(segment)
            table, variant = worker.tables[segment.variant], segment.variant
            loads_ns[place] += worker.swap_ns(INITIAL, variant) + table[1] * len(segment.jobs)
    for line in schedule.lines:
        line.sort(key=_urgency)
    return schedule


def _urgency(segment: Segment) -> int:
    return sum(job.deadline_ns for job in segment.jobs) // len(segment.jobs)


def _choose(
    worker: Worker,
    group: Group,
    variants: Sequence[int],
    price_ns: float,
    schedule: Schedule,
) -> list[Segment]:
    fixed: list[float] = []
    gains: list[list[float]] = []
    """By variant, of each job: its worth above ending it at once, less the price of its time."""
    locals_: list[int] = []
    for local, variant in enumerate(variants):
        table = worker.tables.get(variant)
        if table is None:
            continue
        size = worker.batch_size(variant, len(group))
        each_ns = price_ns * table[size] / size
        locals_.append(local)
        fixed.append(price_ns * worker.swap_ns(INITIAL, variant))
        gains.append([job.worths[local] - job.instant - each_ns for job in group])
    totals = [
        sum([gain for gain in row if gain > 0.0]) - cost
        for row, cost in zip(gains, fixed, strict=True)
    ]
    if not totals:
        schedule.ended.extend(group)
        return []
    first = max(range(len(totals)), key=totals.__getitem__)
    best, second = max(0.0, totals[first]), -1
    used = totals[first] > 0.0
    for other, row in enumerate(gains):
        # Two together are worth no more than the sum of each alone.
        if other == first or totals[first] + totals[other] <= best:
            continue
        both = [a if a > b else b for a, b in zip(gains[first], row, strict=True)]
        total = sum([gain for gain in both if gain > 0.0]) - fixed[first] - fixed[other]
        if total > best:
            best, second, used = total, other, True
    if not used:
        schedule.ended.extend(group)
        return []
    chosen: dict[int, list[Job]] = {first: [], second: []}
    for position, job in enumerate(group):
        gain = gains[first][position]
        of = first
        if second >= 0 and gains[second][position] > gain:
            gain, of = gains[second][position], second
        if gain > 0.0:
            chosen[of].append(job)
        else:
            schedule.ended.append(job)
    application = group[0].application
    return [
        Segment(application, locals_[of], variants[locals_[of]], jobs)
        for of, jobs in chosen.items()
        if jobs
    ]
