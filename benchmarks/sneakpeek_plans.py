"""Single windows as the planner sees them: how long it takes, how close to the optimum it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sneakpeek_setting import Prepared
from fermata.foundation.units import ms
from fermata.router.policies.sneakpeek.estimator import Estimator
from fermata.router.policies.sneakpeek.options import SneakPeekOptions
from fermata.router.policies.sneakpeek.penalty import PENALTIES, Penalty
from fermata.router.policies.sneakpeek.planner import Planning
from fermata.router.policies.sneakpeek.problem import INITIAL, Job, Schedule, Worker
from fermata.router.policies.sneakpeek.worth import line_worth, worth_at

WINDOW_NS = ms(100)
LEARNT = 300
"""Requests of each application from which class frequencies are learnt beforehand."""
SIZE_MAX = 64


@dataclass(frozen=True, slots=True)
class Window:
    """One window's problem: applications in turn are copies of the prepared ones."""

    jobs: list[Job]
    worker: Worker
    variants: dict[int, Sequence[int]]

    def plan(self, penalty: str, options: SneakPeekOptions) -> Planning:
        return Planning(
            WINDOW_NS, self.jobs, [self.worker], self.variants, PENALTIES[penalty], options
        )

    def worth(self, schedule: Schedule, penalty: str) -> float:
        ended = sum(job.instant for job in schedule.ended)
        return ended + line_worth(self.worker, schedule.lines[0], PENALTIES[penalty])


def draw_window(
    prepared: Sequence[Prepared],
    applications: int,
    requests: int,
    deadline_ms: float,
    seed: int,
) -> Window:
    """So many requests, evenly of so many applications, arriving uniformly over the window."""
    rng = np.random.default_rng([31, seed])
    variants: dict[int, Sequence[int]] = {}
    tables: dict[int, list[int]] = {}
    swap_in_ns: dict[int, int] = {}
    estimators: list[Estimator] = []
    for application in range(applications):
        each = prepared[application % len(prepared)]
        variants[application] = range(len(tables), len(tables) + len(each.task.variants))
        for number, variant in zip(variants[application], each.task.variants, strict=True):
            tables[number] = [ms(variant.latency_ms * size) for size in range(SIZE_MAX + 1)]
            swap_in_ns[number] = ms(variant.swap_in_ms)
        estimators.append(Estimator(each.classes, ()))
        for votes in each.stream(LEARNT, each.task.frequencies, rng).votes:
            estimators[-1].on_votes(tuple(map(float, votes)))
    jobs: list[Job] = []
    for number in range(requests):
        application = number % applications
        each = prepared[application % len(prepared)]
        votes = each.stream(1, each.task.frequencies, rng).votes[0]
        estimate = estimators[application].on_votes(tuple(map(float, votes)))
        arrived_at_ns = int(rng.integers(0, WINDOW_NS))
        deadline_ns = arrived_at_ns + ms(max(20.0, rng.normal(deadline_ms, 25.0)))
        jobs.append(
            Job(
                number,
                application,
                arrived_at_ns,
                deadline_ns,
                deadline_ns + ms(1000),
                estimate.accuracies,
                estimate.label_accuracy,
                estimate.likely,
            )
        )
    worker = Worker(0, WINDOW_NS, frozenset(), tables, swap_in_ns)
    return Window(jobs, worker, variants)


def optimum(window: Window, penalty: Penalty) -> float:
    """The best that any order of requests, each on a variant of its own or ended at once, can be
    worth. Every order and choice, save those that reach the same requests and resident model no
    earlier and no better than another; about 7 requests are enough."""
    worker, jobs = window.worker, window.jobs
    fronts: dict[tuple[int, int], list[tuple[int, float]]] = {
        (0, INITIAL): [(worker.free_at_ns, 0.0)]
    }
    for _ in jobs:
        found: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for (done, resident), front in fronts.items():
            for number, job in enumerate(jobs):
                if done >> number & 1:
                    continue
                ended = found.setdefault((done | 1 << number, resident), [])
                ended.extend((at_ns, worth + job.instant) for at_ns, worth in front)
                for local, variant in enumerate(window.variants[job.application]):
                    after = (done | 1 << number, worker.after(resident, variant))
                    run_ns = worker.swap_ns(resident, variant) + worker.tables[variant][1]
                    found.setdefault(after, []).extend(
                        (at_ns + run_ns, worth + worth_at(job, local, at_ns + run_ns, penalty))
                        for at_ns, worth in front
                    )
        fronts = {key: _front(ways) for key, ways in found.items()}
    return max(worth for front in fronts.values() for _, worth in front)


def _front(ways: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Those that no other beats in both time and worth."""
    kept: list[tuple[int, float]] = []
    for at_ns, worth in sorted(ways, key=lambda way: (way[0], -way[1])):
        if not kept or worth > kept[-1][1]:
            kept.append((at_ns, worth))
    return kept
