"""Which variant under random arrivals: RAMSIS tables, its baselines and the central queue.

Needs the profiles and the trace that the RAMSIS authors published, as JSON; see `--data`.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.ramsis_data import (
    DEFAULT_FOLDER,
    Task,
    load_measured,
    load_task,
    load_trace,
    served,
)
from router.policies.central.hull import concave_hull, fluid_accuracy, reachable
from router.policies.ramsis.problem import WorkerProblem
from router.policies.ramsis.solve import solve
from simulator.report import Report, report
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.switching import sustained_rps

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
LOADS = (800, 1200, 1600, 2000, 2400, 2800, 3200)
Measured = Callable[[], list[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement that fills one or more figures."""

    figures: tuple[Figure, ...]
    measure: Measured


def outcome(scenario: Scenario) -> Report:
    return report(scenario, simulate(scenario))


def percent(result: Report) -> tuple[float, float]:
    """Accuracy of requests in time, and share of the others."""
    return 100.0 * (result.accuracy or 0.0), 100.0 * result.bad_rate


# Solving


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


def slowest_solve_s(task: Task, slo_ms: float) -> list[float]:
    """CPU seconds of the slowest of a few loads, each solved three times and the best taken."""
    slowest = 0.0
    for rate_rps in (400, 1600, 2400, 3200):
        times: list[float] = []
        for _ in range(3):
            begin = time.process_time()
            solve(problem(task, slo_ms, rate_rps, "query", WORKERS))
            times.append(time.process_time() - begin)
        slowest = max(slowest, min(times))
    return [slowest]


def solver_rows(image: Task) -> Iterator[Row]:
    front = image.front
    for count, limit, slos in ((9, 0.1, (150, 500)), (60, 0.5, (150, 300, 500))):
        task = front if count == len(front.variants) else many_models(front, count)
        for slo_ms in slos:
            name = f"time to solve, {count} models, D = 100, SLO {slo_ms}"
            figure = Figure(name, 0, "s", limit, at_most=True)
            yield Row((figure,), partial(slowest_solve_s, task, slo_ms))
    figures = (
        Figure("expected accuracy, 400-3,200 qps: largest deviation", 0, "points", 0.01, True),
        Figure("expected violation, 400-3,200 qps: largest deviation", 0, "points", 0.02, True),
    )
    yield Row(figures, partial(largest_deviation, front))


def largest_deviation(front: Task) -> list[float]:
    accuracy, violation = 0.0, 0.0
    for rate_rps, published in PUBLISHED.items():
        solution = solve(problem(front, SLO_MS, rate_rps, "decision", WORKERS))
        accuracy = max(accuracy, abs(100 * solution.accuracy - published[0]))
        violation = max(violation, abs(100 * solution.violation - published[1]))
    return [accuracy, violation]


# RAMSIS against its baselines


def over_baselines(front: Task, seconds: float) -> list[float]:
    """RAMSIS less Jellyfish+ and ModelSwitching, in points, at ten loads known ahead; then how far
    the two differences are from the published ones."""
    start = served(front, SLO_MS, WORKERS, "jellyfish-plus", late=True, rate_rps=1000)
    sustained = sustained_rps(start, 4000.0)
    margins: list[tuple[float, float]] = []
    for rate_rps in range(400, 4001, 400):
        accuracy: list[float] = []
        for policy, options in (
            ("ramsis", {"reward": "decision"}),
            ("jellyfish-plus", {}),
            ("model-switching", {"sustained_rps": sustained}),
        ):
            known: dict[str, object] = {"load_rps": rate_rps, **options}
            one = served(
                front,
                SLO_MS,
                WORKERS,
                policy,
                late=True,
                rate_rps=rate_rps,
                duration_s=seconds,
                warmup_s=0,
                policy_options=known,
            )
            accuracy.append(percent(outcome(one))[0])
        margins.append((accuracy[0] - accuracy[1], accuracy[0] - accuracy[2]))
    jellyfish, switching = (float(np.mean([each[side] for each in margins])) for side in (0, 1))
    return [jellyfish, switching, abs(jellyfish - 3.70), abs(switching - 1.84)]


def baseline_rows(image: Task, quick: bool) -> Iterator[Row]:
    figures = (
        Figure("RAMSIS over Jellyfish+, mean of 400-4,000 qps", 0, "points", 3.55),
        Figure("RAMSIS over ModelSwitching, mean of 400-4,000 qps", 0, "points", 1.69),
        Figure("  the first, off the paper's 3.70 by", 0, "points", 0.15, at_most=True),
        Figure("  the second, off the paper's 1.84 by", 0, "points", 0.15, at_most=True),
    )
    yield Row(figures, partial(over_baselines, image.front, 5 if quick else 30))


# The central queue


def fluid_bound(task: Task, rate_rps: float, workers: int = WORKERS) -> float:
    """In percent: what backends that never idle could reach with nobody waiting."""
    tables = [(0, *row) for row in task.latency_ns()]
    points = reachable(tables, task.accuracy(), round(1e6 * SLO_MS), rate_rps)
    bound = fluid_accuracy(concave_hull(points), workers * 1e9 / rate_rps)
    assert bound is not None, "more load than any batch sustains"
    return 100.0 * bound


def central(task: Task, rate_rps: float, seconds: float, seed: int, **values: object) -> Report:
    return outcome(
        replace(
            served(
                task,
                SLO_MS,
                WORKERS,
                "central-queue",
                late=False,
                rate_rps=rate_rps,
                duration_s=seconds,
                warmup_s=3,
                **values,
            ),
            seed=seed,
        )
    )


def central_at(
    task: Task, rate_rps: float, seconds: float, seeds: int, **values: object
) -> list[float]:
    """Mean accuracy and violation over some seeds."""
    runs = [percent(central(task, rate_rps, seconds, seed, **values)) for seed in range(seeds)]
    return [float(np.mean([each[side] for each in runs])) for side in (0, 1)]


def central_rows(image: Task, quick: bool) -> Iterator[Row]:
    seconds, seeds = (8, 1) if quick else (30, 3)
    for task in (image.front, image):
        count = len(task.variants)
        for rate_rps in (1600, 3200) if quick else LOADS:
            bound = fluid_bound(task, rate_rps)
            goal = bound - (1.0 if rate_rps == 3200 else 0.7)
            name = f"central queue, {count} models, {rate_rps:,} qps (bound {bound:.2f})"
            figures = (
                Figure(name, 0, "%", goal),
                Figure("  violations", 0, "%", 0.01, at_most=True),
            )
            yield Row(figures, partial(central_at, task, rate_rps, seconds, seeds))


def twitter(task: Task, policy: str, rates: list[float], seconds: float) -> list[float]:
    arrivals = {"process": "trace", "rps": rates, "step_s": 10}
    one = served(
        task,
        SLO_MS,
        70,
        policy,
        late=policy == "ramsis",
        duration_s=seconds,
        warmup_s=3,
        arrivals=arrivals,
    )
    return list(percent(outcome(one)))


def twitter_rows(image: Task, rates: list[float], quick: bool) -> Iterator[Row]:
    seconds = 40 if quick else 270
    step = rates[12:16] if quick else rates
    for count, task, policy, goal in (
        (9, image.front, "ramsis", 71.0),
        (9, image.front, "central-queue", 73.8),
        (26, image, "central-queue", 73.8),
    ):
        limit = 0.1 if policy == "ramsis" else 0.01
        figures = (
            Figure(f"Twitter trace, 70 workers, {policy}, {count} models", 0, "%", goal),
            Figure("  violations", 0, "%", limit, at_most=True),
        )
        yield Row(figures, partial(twitter, task, policy, step, seconds))


def drawn(task: Task, rate_rps: float, seconds: float) -> list[float]:
    """Run times drawn from the profiles: the central queue's violations, and its accuracy over that
    of RAMSIS, which plans with the same learnt margins and knows the load."""
    execution = {"draw": "profile"}
    mine = percent(central(task, rate_rps, seconds, 11, execution=execution))
    other = served(
        task,
        SLO_MS,
        WORKERS,
        "ramsis",
        late=True,
        rate_rps=rate_rps,
        duration_s=seconds,
        warmup_s=3,
        policy_options={"load_rps": rate_rps},
        execution=execution,
    )
    return [mine[1], mine[0] - percent(outcome(other))[0]]


def drawn_rows(measured: Task, quick: bool) -> Iterator[Row]:
    for rate_rps in (1600, 3200) if quick else LOADS:
        figures = (
            Figure(f"drawn run times, {rate_rps:,} qps: violations", 0, "%", 0.1, at_most=True),
            Figure("  accuracy over RAMSIS", 0, "points", 0.0),
        )
        yield Row(figures, partial(drawn, measured.front, rate_rps, 8 if quick else 30))


def beyond_rows(image: Task, quick: bool) -> Iterator[Row]:
    """Arrivals that no table was made for, and loads near what the fastest variant can do."""
    seconds = 8 if quick else 30
    for name, task, rate_rps, values, goal, limit in (
        ("Gamma(0.2), 2,400 qps", image.front, 2400, {"shape": 0.2}, 74.0, 0.01),
        ("Gamma(0.05), 2,400 qps", image.front, 2400, {"shape": 0.05}, 72.0, 0.5),
        ("3,600 qps", image.front, 3600, None, 61.3, 0.1),
        ("3,600 qps, 26 models", image, 3600, None, 62.3, 0.1),
    ):
        arrivals = {"process": "poisson"} if values is None else {"process": "gamma", **values}
        figures = (
            Figure(f"central queue, {name}", 0, "%", goal),
            Figure("  violations", 0, "%", limit, at_most=True),
        )
        yield Row(figures, partial(central_at, task, rate_rps, seconds, 1, arrivals=arrivals))


def measure(folder: Path, only: str, quick: bool) -> Iterator[Figure]:
    image, measured = load_task(folder, "image"), load_measured(folder, "image")
    rows = [
        *solver_rows(image),
        *baseline_rows(image, quick),
        *central_rows(image, quick),
        *twitter_rows(image, load_trace(folder), quick),
        *drawn_rows(measured, quick),
        *beyond_rows(image, quick),
    ]
    rows = [row for row in rows if only in row.figures[0].figure]
    with ProcessPoolExecutor(2) as pool:
        for row, values in zip(rows, pool.map(_call, [row.measure for row in rows]), strict=True):
            for figure, value in zip(row.figures, values, strict=True):
                yield replace(figure, value=value)


def _call(work: Measured) -> list[float]:
    return work()


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--data",
        type=Path,
        default=DEFAULT_FOLDER,
        help="folder with image_profiles.json and twitter_trace.json (default: %(default)s)",
    )
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    arguments, _ = parser.parse_known_args()
    work = partial(measure, arguments.data, arguments.only)
    run("Variants under random arrivals", work, parser)


if __name__ == "__main__":
    main()
