"""SneakPeek's planner: times worked by hand, optima by brute force."""

from collections.abc import Sequence
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.foundation.units import ms
from fermata.router.policies.sneakpeek.exact import ExactSearch
from fermata.router.policies.sneakpeek.groups import (
    by_application,
    by_class,
    group_priority,
    priority,
)
from fermata.router.policies.sneakpeek.improve import JOBS_A_SLICE
from fermata.router.policies.sneakpeek.options import GROUPED, LO_EDF, MAXACC_EDF, SneakPeekOptions
from fermata.router.policies.sneakpeek.penalty import PENALTIES, Penalty, linear, step
from fermata.router.policies.sneakpeek.planner import Planning
from fermata.router.policies.sneakpeek.problem import (
    INITIAL,
    Job,
    Schedule,
    Segment,
    Worker,
    batch_size,
)
from fermata.router.policies.sneakpeek.worth import RunTable, line_worth, worth_at

VARIANTS: dict[int, Sequence[int]] = {0: (0, 1), 1: (2, 3)}
TIMES_MS = (4, 10, 6, 11)
SWAPS_MS = (5, 18, 8, 12)


def table(first: float, more: float | None = None, sizes: int = 8) -> list[int]:
    """A batch of b takes first + (b - 1) * more; without gain from batches unless said."""
    more = first if more is None else more
    return [0, *(ms(first + more * (size - 1)) for size in range(1, sizes + 1))]


def worker(
    free_ms: float = 0, held: frozenset[int] | None = frozenset(), number: int = 0
) -> Worker:
    tables = {variant: table(each) for variant, each in enumerate(TIMES_MS)}
    swaps = {variant: ms(each) for variant, each in enumerate(SWAPS_MS)}
    return Worker(number, ms(free_ms), held, tables, swaps)


def job(
    key: int,
    application: int = 0,
    deadline_ms: float = 100,
    worths: Sequence[float] = (0.8, 0.9),
    instant: float = 0.0,
    likely: int = -1,
    expires_ms: float = 1000,
) -> Job:
    deadline_ns = ms(deadline_ms)
    return Job(key, application, 0, deadline_ns, ms(expires_ms), worths, instant, likely)


def plan(
    jobs: Sequence[Job],
    workers: Sequence[Worker] | None = None,
    penalty: Penalty = step,
    options: SneakPeekOptions | None = None,
) -> Schedule:
    given_workers = [worker()] if workers is None else workers
    options = options or SneakPeekOptions()
    return Planning(0, jobs, given_workers, VARIANTS, penalty, options).finish()


def runs(schedule: Schedule, place: int = 0) -> list[tuple[int, list[int]]]:
    return [(each.variant, [job.key for job in each.jobs]) for each in schedule.lines[place]]


# Time and worth


def test_run_of_one_model_pays_its_swap_once() -> None:
    two = [Segment(0, 0, 0, [job(0, deadline_ms=9)]), Segment(0, 0, 0, [job(1, deadline_ms=13)])]
    assert line_worth(worker(), two, step) == pytest.approx(1.6)
    assert line_worth(worker(free_ms=0.1), two, step) == 0


def test_resident_model_needs_no_swap() -> None:
    one = [Segment(0, 0, 0, [job(0, deadline_ms=4)])]
    assert line_worth(worker(held=frozenset((0,))), one, step) == pytest.approx(0.8)
    assert line_worth(worker(held=None), one, step) == pytest.approx(0.8)
    assert line_worth(worker(), one, step) == 0


def test_late_worth_falls_with_lateness_and_ends_with_the_hard_limit() -> None:
    late = job(0, deadline_ms=100, expires_ms=160)
    assert worth_at(late, 0, ms(100), linear) == 0.8
    assert worth_at(late, 0, ms(150), linear) == pytest.approx(0.4)
    assert worth_at(late, 0, ms(161), linear) == 0


def test_batches_are_as_large_as_to_end_the_mean_job_earliest() -> None:
    assert batch_size(table(10, 10), 4) == 1
    assert batch_size(table(10, 1), 4) == 4
    # 8 end at 13.5 and 4 at 25, 17.3 in the mean; in two sixes 6 end at 12.5 and 6 at 25.
    assert batch_size(table(10, 0.5), 12) == 8


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(10, 200), min_size=1, max_size=6),
    st.integers(0, 150),
    st.sampled_from(sorted(PENALTIES)),
)
def test_table_of_a_group_agrees_with_adding_up(
    deadlines: list[int], start: int, name: str
) -> None:
    group = sorted(
        (job(k, deadline_ms=d) for k, d in enumerate(deadlines)), key=lambda j: j.deadline_ns
    )
    found = RunTable(group, 1, 1, worker(held=None), PENALTIES[name]).worth(ms(start))
    line = [Segment(0, 1, 1, group)]
    assert found == pytest.approx(line_worth(worker(start, held=None), line, PENALTIES[name]))


# Groups


def test_priority_is_urgency_and_variance() -> None:
    same, wide = job(0, worths=(0.8, 0.8)), job(1, worths=(0.6, 1.0))
    assert priority(ms(100), same) == 1
    assert priority(ms(100), wide) == pytest.approx(1.04)
    assert priority(0, same) < 1
    assert group_priority(ms(100), [same, wide]) == pytest.approx(1.02)


def test_groups_are_cut_to_their_cap() -> None:
    jobs = [job(key, deadline_ms=100 - key) for key in range(5)]
    assert [[each.key for each in group] for group in by_application(jobs, 2)] == [
        [4, 3],
        [2, 1],
        [0],
    ]


def test_split_groups_that_are_too_many_are_merged_where_it_costs_least() -> None:
    jobs = [
        job(0, worths=(0.9, 0.91), likely=0),
        job(1, worths=(0.2, 0.9), likely=1),
        job(2, worths=(0.89, 0.92), likely=2),
        job(3, application=1),
    ]
    whole = by_application(jobs)
    assert len(by_class(whole, 9)) == 4
    merged = {frozenset(each.key for each in group) for group in by_class(whole, 3)}
    assert merged == {frozenset((0, 2)), frozenset((1,)), frozenset((3,))}
    assert len(by_class(whole, 1)) == 2


# Search


def brute_force(groups: Sequence[list[Job]], place: Worker, penalty: Penalty) -> float:
    """Every order of groups and one variant for each, or ended at once."""
    best = 0.0
    for order in permutations(groups):
        for locals_ in product(*[(-1, 0, 1) for _ in order]):
            line = [
                Segment(group[0].application, local, VARIANTS[group[0].application][local], group)
                for group, local in zip(order, locals_, strict=True)
                if local >= 0
            ]
            ended = [g for g, local in zip(order, locals_, strict=True) if local < 0]
            worth = sum(each.instant for group in ended for each in group)
            best = max(best, worth + line_worth(place, line, penalty))
    return best


JOBS = st.lists(
    st.builds(
        job,
        key=st.integers(0, 0),
        application=st.integers(0, 1),
        deadline_ms=st.integers(5, 90),
        worths=st.tuples(st.sampled_from([0.3, 0.7, 0.8]), st.sampled_from([0.6, 0.9, 1.0])),
        instant=st.sampled_from([0.0, 0.0, 0.5, 0.85]),
        likely=st.integers(-1, 1),
    ),
    min_size=1,
    max_size=6,
)


def numbered(jobs: Sequence[Job]) -> list[Job]:
    for key, each in enumerate(jobs):
        each.key = key
    return list(jobs)


@settings(max_examples=80, deadline=None)
@given(JOBS, st.sampled_from(sorted(PENALTIES)))
def test_exact_search_finds_what_enumeration_finds(jobs: list[Job], name: str) -> None:
    groups = by_class(by_application(numbered(jobs)), 4)
    place, penalty = worker(), PENALTIES[name]
    options = [
        [RunTable(g, local, VARIANTS[g[0].application][local], place, penalty) for local in (0, 1)]
        for g in groups
    ]
    instants = [sum(each.instant for each in group) for group in groups]
    search = ExactSearch(place, options, instants, 10**6)
    for _ in search.run():
        pass
    assert search.complete
    assert search.best_worth == pytest.approx(brute_force(groups, place, penalty))
    assert search.best is not None
    assert sorted(number for number, _ in search.best.path()) == list(range(len(groups)))


@settings(max_examples=80, deadline=None)
@given(JOBS, st.sampled_from(sorted(PENALTIES)), st.integers(1, 3))
def test_every_job_is_planned_once_and_no_worse_than_in_groups(
    jobs: list[Job], name: str, workers: int
) -> None:
    places = [worker(number=number) for number in range(workers)]
    schedule = plan(numbered(jobs), places, PENALTIES[name])
    planned = [job.key for line in schedule.lines for each in line for job in each.jobs]
    planned += [job.key for job in schedule.ended]
    assert sorted(planned) == list(range(len(jobs)))
    worth = sum(job.instant for job in schedule.ended)
    for place, line in zip(places, schedule.lines, strict=True):
        worth += line_worth(place, line, PENALTIES[name])
    best = brute_force(by_application(jobs), places[0], PENALTIES[name])
    assert worth >= best - 1e-9


def test_slices_give_the_same_plan_as_one_go() -> None:
    jobs = [job(k, k % 2, 40 + 7 * k, (0.7, 0.95), likely=k % 3) for k in range(9)]
    planning = Planning(0, jobs, [worker()], VARIANTS, linear, SneakPeekOptions())
    slices = 1
    while not planning.advance():
        slices += 1
    assert slices > 3
    assert runs(planning.schedule) == runs(plan(jobs, penalty=linear))


@pytest.mark.parametrize("options", [SneakPeekOptions(), LO_EDF])
def test_no_slice_takes_long_with_many_waiting_and_many_workers(options: SneakPeekOptions) -> None:
    evaluated = 0

    def counting(lateness: float) -> float:
        nonlocal evaluated
        evaluated += 1
        return linear(lateness)

    # All are a little late, so every look at one asks for the penalty.
    late = [Job(k, k % 2, ms(-60_000), 0, ms(60_000), (0.7, 0.95)) for k in range(1000)]
    workers = [worker(number=number) for number in range(16)]
    planning = Planning(0, late, workers, VARIANTS, counting, options)
    slices: list[int] = []
    done = False
    while not done:
        before = evaluated
        done = planning.advance()
        slices.append(evaluated - before)
    assert sum(slices) > 10 * JOBS_A_SLICE
    assert max(slices) <= 2 * JOBS_A_SLICE


def test_search_is_exact_for_few_groups_and_bounded_for_many() -> None:
    jobs = [job(k, k % 2, 60 + 9 * k, (0.6, 0.9)) for k in range(8)]
    few = Planning(0, jobs, [worker()], VARIANTS, linear, GROUPED)
    few.finish()
    assert few.exact
    cut_short = Planning(0, jobs, [worker()], VARIANTS, linear, SneakPeekOptions(nodes_max=0))
    cut_short.finish()
    assert not cut_short.exact


# Choices


def test_takes_the_better_variant_only_if_there_is_time() -> None:
    assert runs(plan([job(0, deadline_ms=28)])) == [(1, [0])]
    assert runs(plan([job(0, deadline_ms=27)])) == [(0, [0])]


def test_likely_class_decides_the_variant_of_each_request() -> None:
    easy = [job(k, deadline_ms=60, worths=(0.99, 0.99), likely=0) for k in range(3)]
    hard = [job(k, deadline_ms=60, worths=(0.1, 0.9), likely=1) for k in (3, 4)]
    found = dict(runs(plan([*easy, *hard])))
    assert sorted(found[0]) == [0, 1, 2]
    assert sorted(found[1]) == [3, 4]


@pytest.mark.parametrize(("workers", "tau"), [(1, 0), (2, 5), (3, 0)])
def test_classes_decide_without_split_groups_too(workers: int, tau: int) -> None:
    # Groups are split for one worker and up to `tau` applications; prices serve all others.
    easy = [job(key, worths=(0.95, 0.96), likely=0) for key in range(0, 6, 2)]
    hard = [job(key, worths=(0.1, 0.9), likely=1) for key in range(1, 6, 2)]
    places = [worker(held=None, number=number) for number in range(workers)]
    options = SneakPeekOptions(tau=tau)
    found = plan([*easy, *hard], places, options=options)
    ran = {
        each.key: segment.local for line in found.lines for segment in line for each in segment.jobs
    }
    assert len(ran) == 6
    assert all(ran[each.key] == 1 for each in hard)


def test_short_circuit_is_chosen_per_request() -> None:
    schedule = plan([job(0, instant=0.95), job(1, instant=0.5)])
    assert [each.key for each in schedule.ended] == [0]
    assert runs(schedule) == [(1, [1])]


def test_barred_variant_is_never_worth_running() -> None:
    assert runs(plan([job(0, deadline_ms=27, worths=(0.0, 0.9))], penalty=linear)) == [(1, [0])]


def test_two_workers_share_a_large_group() -> None:
    jobs = [job(key, deadline_ms=30) for key in range(8)]
    schedule = plan(jobs, [worker(), worker(number=1)], options=GROUPED)
    assert [sum(len(each.jobs) for each in line) for line in schedule.lines] == [4, 4]


def test_heterogeneous_worker_gets_what_it_can_run() -> None:
    slow = Worker(1, 0, frozenset(), {0: table(8)}, {0: ms(5)})
    jobs = [job(0, 0, 14), job(1, 1, 20, (0.8, 0.9))]
    schedule = plan(jobs, [worker(), slow])
    assert runs(schedule, 1) in ([], [(0, [0])])
    assert not schedule.ended


def test_locally_optimal_takes_jobs_by_deadline_and_the_best_variant_in_time() -> None:
    jobs = [job(0, 0, 60), job(1, 1, 40), job(2, 0, 30)]
    # Deadlines 30, 40, 60: 18 + 10 = 28; then 28 + 8 + 6 = 42 is late for all, the first of equals
    # is the one that ends first; then 42 + 10 + 18 is late, 42 + 5 + 4 = 51 is in time.
    assert runs(plan(jobs, options=LO_EDF)) == [(1, [2]), (2, [1]), (0, [0])]


def test_max_accuracy_ignores_time() -> None:
    jobs = [job(0, 0, 10), job(1, 0, 20)]
    assert runs(plan(jobs, options=MAXACC_EDF)) == [(1, [0, 1])]


def test_without_workers_everything_ends() -> None:
    assert [each.key for each in plan([job(0)], []).ended] == [0]
    assert INITIAL == -1
