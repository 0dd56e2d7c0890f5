"""RAMSIS tables: how long one takes to solve, and whether it promises what it should."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.figures import Figure
from benchmarks.ramsis_data import Task
from benchmarks.ramsis_rows import Row, Value
from fermata.router.live.subprocess_worker import SubprocessWorker
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.solve import solve

SLO_MS = 150.0
WORKERS = 60
PUBLISHED = {
    400: (84.23, 0.0),
    800: (81.02, 0.0),
    1200: (78.69, 0.0),
    1600: (76.21, 0.011),
    2000: (74.87, 0.19),
    2400: (73.32, 0.0),
    2800: (72.96, 0.002),
    3200: (63.93, 0.80),
}
"""Expected accuracy and violation in percent of an independent solver, by load."""


def problem(task: Task, slo_ms: float, rate_rps: float, reward: str, workers: int) -> WorkerProblem:
    slo_ns = round(1e6 * slo_ms)
    return WorkerProblem(
        task.latency_ns(), task.accuracy(), slo_ns, workers, rate_rps, reward=reward
    )


def many_models(task: Task, count: int) -> Task:
    """So many models by interpolation between those of the front (RAMSIS section 7.3.2)."""
    accuracy = np.array(task.accuracy())
    latency_ms = np.array(task.latency_ns()) / 1e6
    between = np.linspace(accuracy[0], accuracy[-1], count - len(accuracy) + 2)[1:-1]
    return Task(
        tuple(
            {
                "name": f"model-{each:.4f}",
                "accuracy": float(each),
                "latency_ms": [float(np.interp(each, accuracy, row)) for row in latency_ms.T],
            }
            for each in np.sort(np.concatenate([accuracy, between]))
        )
    )


def time_to_solve(task: Task, slo_ms: float) -> list[Value]:
    """Solved as a router has it done: in a process of its own."""
    work = partial(slowest_solve_s, task, slo_ms)
    found: list[object] = []

    async def wait() -> None:
        worker = SubprocessWorker(lasts_s_max=300.0)
        worker.submit(work, found.append)
        assert worker.running is not None
        await worker.running
        await worker.stop()

    asyncio.run(wait())
    (slowest_s,) = found
    assert isinstance(slowest_s, float), slowest_s
    return [slowest_s]


def slowest_solve_s(task: Task, slo_ms: float) -> float:
    """CPU seconds of the slowest of a few loads, each solved three times and the best taken."""
    slowest = 0.0
    for rate_rps in (400, 1600, 2400, 3200):
        times: list[float] = []
        for _ in range(3):
            begin = time.process_time()
            solve(problem(task, slo_ms, rate_rps, "query", WORKERS))
            times.append(time.process_time() - begin)
        slowest = max(slowest, min(times))
    return slowest


def solver_rows(image: Task) -> Iterator[Row]:
    front = image.front
    for count, limit, slos in ((9, 0.1, (150, 500)), (60, 0.5, (150, 300, 500))):
        task = front if count == len(front.variants) else many_models(front, count)
        for slo_ms in slos:
            name = f"time to solve, {count} models, D = 100, SLO {slo_ms}"
            figure = Figure(name, 0, "s", limit, at_most=True)
            yield Row((figure,), partial(time_to_solve, task, slo_ms))
    figures = (
        Figure("expected accuracy, 400-3,200 qps: largest deviation", 0, "points", 0.01, True),
        Figure("expected violation, 400-3,200 qps: largest deviation", 0, "points", 0.02, True),
    )
    yield Row(figures, partial(largest_deviation, front))


def largest_deviation(front: Task) -> list[Value]:
    accuracy, violation = 0.0, 0.0
    for rate_rps, published in PUBLISHED.items():
        solution = solve(problem(front, SLO_MS, rate_rps, "decision", WORKERS))
        accuracy = max(accuracy, abs(100 * solution.accuracy - published[0]))
        violation = max(violation, abs(100 * solution.violation - published[1]))
    return [accuracy, violation]
