"""Greedy schedules, and their improvement by moving segments and single jobs."""

from collections.abc import Callable, Iterator, Sequence

from fermata.router.policies.sneakpeek.groups import Group, by_deadline, group_priority
from fermata.router.policies.sneakpeek.penalty import Penalty
from fermata.router.policies.sneakpeek.problem import INITIAL, Job, Schedule, Segment, Worker
from fermata.router.policies.sneakpeek.worth import State, line_worth, tail_state

GAIN = 1e-9
"""Less is rounding."""
JOBS_A_SLICE = 2000
"""Jobs evaluated between two chances for others to run: about a millisecond."""
TRIES_A_SLICE = 20
"""Evaluations between two chances for others to run."""
COST_OF_TRY = 4
"""The cost of evaluating a line, in jobs, beside its jobs."""

Line = list[Segment]
Tails = dict[int, tuple[int, Line]]
"""By worker: from which segment on its line changes, and to what."""
Proposal = tuple[Tails, list[Job] | None]
"""New tails, and who ends at once instead, where that changes."""


class Improver:
    """Holds one schedule and what each worker's line is worth. Every change is tried, and kept only
    if the whole gains. The budget counts jobs evaluated, which bounds time without a clock."""

    def __init__(
        self,
        workers: Sequence[Worker],
        variants: dict[int, Sequence[int]],
        penalty: Penalty,
        budget: int,
    ) -> None:
        self.workers = workers
        self.variants = variants
        """Variants of each application, by the engine's numbers."""
        self.penalty = penalty
        self.budget = budget
        self.take(Schedule(len(workers)))

    @property
    def worth(self) -> float:
        return sum([states[-1][2] for states in self.states]) + self.ended_worth

    def take(self, schedule: Schedule) -> None:
        """Go on from this schedule."""
        self.lines = schedule.lines
        self.ended = schedule.ended
        self.ended_worth = sum([job.instant for job in self.ended])
        self.states: list[list[State]] = []
        """By worker: where it is before each segment of its line, and at its end."""
        for place, worker in enumerate(self.workers):
            self.states.append([(worker.free_at_ns, INITIAL, 0.0)])
            self._follow(place, 0)

    def _follow(self, place: int, index: int) -> None:
        """Bring a worker's states up to date from that segment on."""
        states, line = self.states[place], self.lines[place]
        del states[index + 1 :]
        for segment in line[index:]:
            states.append(tail_state(self.workers[place], states[-1], (segment,), self.penalty))

    def consider(self, schedule: Schedule) -> float:
        """Go on from this schedule if it is worth more; tells its worth."""
        worth = sum([job.instant for job in schedule.ended])
        for worker, line in zip(self.workers, schedule.lines, strict=True):
            worth += line_worth(worker, line, self.penalty)
        if worth > self.worth + GAIN:
            self.take(schedule)
        return worth

    def schedule(self) -> Schedule:
        found = Schedule(len(self.workers))
        found.lines, found.ended = self.lines, self.ended
        return found

    # Greedy (Algorithm 1)

    def greedy(self, now_ns: int, groups: list[Group]) -> Iterator[None]:
        """Groups by priority (Eq. 14), each on the worker and variant that is worth most (Eq. 13);
        pauses now and then. `order <- 1` belongs before the loop over groups; inside it they would
        all come first."""
        self.take(Schedule(len(self.workers)))
        ranked: list[tuple[float, int]] = []
        evaluated = 0
        for index, group in enumerate(groups):
            ranked.append((-group_priority(now_ns, group), index))
            evaluated += len(group)
        if evaluated >= JOBS_A_SLICE // 2:
            evaluated = 0
            yield
        for _, index in sorted(ranked):
            for count in self._append_best(groups[index]):
                evaluated += count
                if evaluated >= JOBS_A_SLICE:
                    evaluated = 0
                    yield

    def _append_best(self, group: Group) -> Iterator[int]:
        """Put a group where it is worth most; tells, worker by worker, how many jobs it took to
        find out."""
        best, best_place = -1.0, -1
        best_segment: Segment | None = None
        for place, worker in enumerate(self.workers):
            state = self.states[place][-1]
            choices = self._choices(group, worker)
            for segment in choices:
                gain = tail_state(worker, state, (segment,), self.penalty)[2] - state[2]
                if gain > best + GAIN:
                    best, best_place, best_segment = gain, place, segment
            yield len(group) * len(choices)
        if best_segment is None:
            self.ended.extend(group)
            self.ended_worth += sum([job.instant for job in group])
        else:
            self.lines[best_place].append(best_segment)
            self._follow(best_place, len(self.lines[best_place]) - 1)

    def _choices(self, group: Group, worker: Worker) -> list[Segment]:
        application = group[0].application
        return [
            Segment(application, local, variant, group)
            for local, variant in enumerate(self.variants[application])
            if variant in worker.tables
        ]

    # Local improvement

    def improve(self) -> Iterator[None]:
        """Change things until no change gains or the budget is spent; pauses now and then."""
        kinds: tuple[Callable[[], Iterator[Proposal]], ...] = (
            self._other_variants,
            self._endings,
            self._returns,
            self._other_places,
            self._other_segments,
        )
        tries = idle = turn = 0
        while idle < len(kinds):
            idle += 1
            gained = True
            while gained:
                gained = False
                for proposal in kinds[turn]():
                    if self.budget <= 0:
                        return
                    tries += 1
                    if tries % TRIES_A_SLICE == 0:
                        yield
                    if self._try(proposal):
                        # Other proposals were made for the schedule as it stood.
                        gained, idle = True, 0
                        break
            turn = (turn + 1) % len(kinds)

    def _try(self, proposal: Proposal) -> bool:
        tails, ended = proposal
        ended_worth = self.ended_worth
        if ended is not None:
            ended_worth = sum([job.instant for job in ended])
            self.budget -= len(ended) // 4
        gain = ended_worth - self.ended_worth
        for place, (index, tail) in tails.items():
            states = self.states[place]
            self.budget -= COST_OF_TRY + sum([len(segment.jobs) for segment in tail])
            found = tail_state(self.workers[place], states[index], tail, self.penalty)
            gain += found[2] - states[-1][2]
        if gain <= GAIN:
            return False
        for place, (index, tail) in tails.items():
            self.lines[place][index:] = [segment for segment in tail if segment.jobs]
            self._follow(place, index)
        if ended is not None:
            self.ended, self.ended_worth = ended, ended_worth
        return True

    def _endings(self) -> Iterator[Proposal]:
        """End a job at once that is worth no more by running, or holds up the others."""
        for place, line in enumerate(self.lines):
            lost = self._lost(place)
            for index, segment in enumerate(line):
                for job in segment.jobs:
                    # Even if nobody were late, the others could not gain what it is worth here.
                    if job.worths[segment.local] - job.instant < lost:
                        tail = [_without(segment, job), *line[index + 1 :]]
                        yield {place: (index, tail)}, [*self.ended, job]

    def _lost(self, place: int) -> float:
        """The cost of lateness to a line's jobs."""
        in_time = sum(
            [job.worths[segment.local] for segment in self.lines[place] for job in segment.jobs]
        )
        return in_time - self.states[place][-1][2] + GAIN

    def _returns(self) -> Iterator[Proposal]:
        """Run a job after all that ended at once."""
        for job in self.ended:
            if max(job.worths) <= job.instant + GAIN:
                continue
            others = [each for each in self.ended if each is not job]
            for place, line in enumerate(self.lines):
                for index, segment in enumerate(line):
                    if segment.application != job.application:
                        continue
                    if job.worths[segment.local] > job.instant + GAIN:
                        tail = [_joined(segment, job), *line[index + 1 :]]
                        yield {place: (index, tail)}, others
                for segment in self._choices([job], self.workers[place]):
                    if job.worths[segment.local] > job.instant + GAIN:
                        yield {place: (len(line), [segment])}, others

    def _other_segments(self) -> Iterator[Proposal]:
        """Move a job to another segment of its application."""
        for place, line in enumerate(self.lines):
            for index, segment in enumerate(line):
                for target, other in enumerate(self.lines):
                    for at, one in enumerate(other):
                        if one.application != segment.application or one is segment:
                            continue
                        for job in segment.jobs:
                            fewer, more = _without(segment, job), _joined(one, job)
                            if target != place:
                                yield (
                                    {
                                        place: (index, [fewer, *line[index + 1 :]]),
                                        target: (at, [more, *other[at + 1 :]]),
                                    },
                                    None,
                                )
                                continue
                            changed = [*line]
                            changed[index], changed[at] = fewer, more
                            first = min(index, at)
                            yield {place: (first, changed[first:])}, None

    def _other_variants(self) -> Iterator[Proposal]:
        for place, line in enumerate(self.lines):
            for index, segment in enumerate(line):
                for other in self._choices(segment.jobs, self.workers[place]):
                    if other.variant != segment.variant:
                        yield {place: (index, [other, *line[index + 1 :]])}, None

    def _other_places(self) -> Iterator[Proposal]:
        for place, line in enumerate(self.lines):
            for index, segment in enumerate(line):
                rest = [*line[:index], *line[index + 1 :]]
                for target, worker in enumerate(self.workers):
                    if segment.variant not in worker.tables:
                        continue
                    to = rest if target == place else self.lines[target]
                    for at in range(len(to) + 1):
                        if target != place:
                            tails = {
                                place: (index, rest[index:]),
                                target: (at, [segment, *to[at:]]),
                            }
                            yield tails, None
                        elif at != index:
                            first = min(at, index)
                            moved = [*to[first:at], segment, *to[at:]]
                            yield {place: (first, moved)}, None


def _with_jobs(segment: Segment, jobs: list[Job]) -> Segment:
    return Segment(segment.application, segment.local, segment.variant, jobs)


def _without(segment: Segment, job: Job) -> Segment:
    return _with_jobs(segment, [each for each in segment.jobs if each is not job])


def _joined(segment: Segment, job: Job) -> Segment:
    """The segment with one more job, by deadline."""
    return _with_jobs(segment, sorted([*segment.jobs, job], key=by_deadline))
