"""A window's schedule: which job runs on which variant and worker, in which order."""

from collections.abc import Iterator, Sequence

from fermata.router.policies.sneakpeek.exact import ExactSearch
from fermata.router.policies.sneakpeek.groups import (
    Group,
    by_application,
    by_class,
    by_deadline,
    priority,
)
from fermata.router.policies.sneakpeek.improve import JOBS_A_SLICE, Improver
from fermata.router.policies.sneakpeek.options import SneakPeekOptions
from fermata.router.policies.sneakpeek.penalty import Penalty
from fermata.router.policies.sneakpeek.prices import PRICES, priced
from fermata.router.policies.sneakpeek.problem import INITIAL, Job, Schedule, Segment, Worker
from fermata.router.policies.sneakpeek.worth import RunTable, worth_at

NODES_FOR = 24
"""Jobs for which `nodes_max` holds as it stands."""


class Planning:
    """One window's planning, done in slices so that nobody else's timers wait for all of it."""

    def __init__(
        self,
        now_ns: int,
        jobs: Sequence[Job],
        workers: Sequence[Worker],
        variants: dict[int, Sequence[int]],
        penalty: Penalty,
        options: SneakPeekOptions,
    ) -> None:
        self.now_ns = now_ns
        self.jobs = jobs
        self.workers = workers
        self.variants = variants
        """Variants of each application, by the engine's numbers."""
        self.penalty = penalty
        self.options = options
        self.schedule = Schedule(len(workers))
        self.exact = False
        """Whether the grouped part was searched to its end."""
        self._steps = self._run()

    def advance(self) -> bool:
        """Do a slice of the work; true once `schedule` is final."""
        return next(self._steps, True) is not None

    def finish(self) -> Schedule:
        """Do all of it."""
        while not self.advance():
            pass
        return self.schedule

    def _run(self) -> Iterator[None]:
        if not self.workers:
            self.schedule.ended = list(self.jobs)
            return
        left = self._set_aside()
        yield from self._plan()
        self.schedule.left = left

    def _set_aside(self) -> list[Job]:
        """Take out the jobs that no worker has a variant for, of those that are not barred."""
        there = {
            application: [
                local
                for local, variant in enumerate(variants)
                if any(variant in worker.tables for worker in self.workers)
            ]
            for application, variants in self.variants.items()
        }
        left: list[Job] = []
        kept: list[Job] = []
        for job in self.jobs:
            worths = job.worths
            found = any(worths[local] > 0.0 for local in there[job.application])
            served = found or job.instant > 0.0 or not any(worths)
            (kept if served else left).append(job)
        self.jobs = kept
        return left

    def _plan(self) -> Iterator[None]:
        if self.options.order != "grouped":
            yield from self._one_by_one()
            return
        improver = Improver(self.workers, self.variants, self.penalty, self.options.budget)
        whole = by_application(self.jobs, self._size_max())
        groups = whole
        few = len(self.workers) == 1 and len(whole) <= self.options.tau
        if few and self.options.split:
            groups = by_class(whole, self.options.tau)
        yield from improver.greedy(self.now_ns, groups)
        yield
        yield from self._price(whole, improver)
        if few:
            # The fewer groups first: what is found there makes the larger search a short one.
            yield from self._search(whole, improver)
            if len(groups) > len(whole):
                yield from self._search(groups, improver)
        if self.options.budget:
            yield from improver.improve()
        self.schedule = improver.schedule()

    def _size_max(self) -> int:
        if self.options.group_size_max or len(self.workers) == 1:
            return self.options.group_size_max
        counts: dict[int, int] = {}
        for job in self.jobs:
            counts[job.application] = counts.get(job.application, 0) + 1
        return -(-max(counts.values(), default=1) // len(self.workers))

    def _price(self, groups: list[Group], improver: Improver) -> Iterator[None]:
        """Look for the price of time whose schedule is worth most: too low a price makes jobs
        late, too high a one makes workers idle."""
        found: dict[int, float] = {}

        def worth(index: int) -> float:
            if index not in found:
                schedule = priced(self.workers, groups, self.variants, PRICES[index])
                found[index] = improver.consider(schedule)
            return found[index]

        at = len(PRICES) // 2
        while True:
            near = [index for index in (at - 1, at + 1) if 0 <= index < len(PRICES)]
            for index in near:
                worth(index)
                if len(self.jobs) * len(near) > JOBS_A_SLICE:
                    yield
            better = max(near, key=worth)
            yield
            if worth(better) <= worth(at):
                return
            at = better

    def _search(self, groups: list[Group], improver: Improver) -> Iterator[None]:
        worker = self.workers[0]
        options = [
            [
                RunTable(group, local, variant, worker, self.penalty)
                for local, variant in enumerate(self.variants[group[0].application])
                if variant in worker.tables
            ]
            for group in groups
        ]
        instants = [
            sum(job.instant for job in group) if any(job.instant for job in group) else -1.0
            for group in groups
        ]
        # A node takes the longer, the more jobs there are.
        nodes = self.options.nodes_max * NODES_FOR // max(NODES_FOR, len(self.jobs))
        search = ExactSearch(worker, options, instants, nodes, improver.worth)
        yield from search.run()
        self.exact = search.complete
        if search.best is None:
            return
        found = Schedule(1)
        for number, table in search.best.path():
            group = groups[number]
            if table is None:
                found.ended.extend(group)
            else:
                segment = Segment(group[0].application, table.local, table.variant, group)
                found.lines[0].append(segment)
        improver.take(found)

    # The request-level baselines of section 6.1

    def _one_by_one(self) -> Iterator[None]:
        """Jobs in order, each on the worker and variant that suits it best as things stand; pauses
        now and then."""
        if self.options.order == "edf":
            ordered = sorted(self.jobs, key=by_deadline)
        else:
            ordered = sorted(self.jobs, key=lambda job: (-priority(self.now_ns, job), job.key))
        free_at_ns = [worker.free_at_ns for worker in self.workers]
        resident = [INITIAL] * len(self.workers)
        evaluated = 0
        for job in ordered:
            evaluated += len(self.workers) * len(job.worths)
            if evaluated >= JOBS_A_SLICE:
                evaluated = 0
                yield
            place, local, variant, end_ns, worth = self._best(job, free_at_ns, resident)
            if place < 0 or (self.options.short_circuit and job.instant > worth):
                self.schedule.ended.append(job)
                continue
            free_at_ns[place] = end_ns
            resident[place] = self.workers[place].after(resident[place], variant)
            self._append(place, local, variant, job)

    def _best(
        self, job: Job, free_at_ns: list[int], resident: list[int]
    ) -> tuple[int, int, int, int, float]:
        """(place, local, variant, end, worth); of equals the cheapest, as everyone must run."""
        by_accuracy = self.options.choice == "accuracy"
        best = (-1, 0, 0, 0, 0.0)
        best_key = (-1.0, 0)
        most = max(job.worths)
        for place, worker in enumerate(self.workers):
            for local, variant in enumerate(self.variants[job.application]):
                # Once all are too late none is worth anything, and yet a floor is not given up.
                barred = job.worths[local] <= 0.0 < most
                if variant not in worker.tables or barred:
                    continue
                swap_ns = worker.swap_ns(resident[place], variant)
                end_ns = free_at_ns[place] + swap_ns + worker.tables[variant][1]
                worth = worth_at(job, local, end_ns, self.penalty)
                key = (job.worths[local] if by_accuracy else worth, -end_ns)
                if key > best_key:
                    best, best_key = (place, local, variant, end_ns, worth), key
        return best

    def _append(self, place: int, local: int, variant: int, job: Job) -> None:
        line = self.schedule.lines[place]
        if line and line[-1].variant == variant:
            line[-1].jobs.append(job)
        else:
            line.append(Segment(job.application, local, variant, [job]))
