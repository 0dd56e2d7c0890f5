"""Which variant under random arrivals: RAMSIS tables, its baselines and the central queue.

Needs the profiles and the trace that the RAMSIS authors published, as JSON; see `--data`.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.ramsis_central import (
    TEXT_SLO_MS,
    TEXT_WORKERS,
    beyond_rows,
    central_rows,
    drawn_rows,
    twitter_rows,
)
from benchmarks.ramsis_data import DEFAULT_FOLDER, Task, load_measured, load_task, load_trace
from benchmarks.ramsis_rows import Measured, Row, Setting, Value, outcome, percent
from router.policies.ramsis.problem import WorkerProblem
from router.policies.ramsis.solve import solve
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


def slowest_solve_s(task: Task, slo_ms: float) -> list[Value]:
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


def largest_deviation(front: Task) -> list[Value]:
    accuracy, violation = 0.0, 0.0
    for rate_rps, published in PUBLISHED.items():
        solution = solve(problem(front, SLO_MS, rate_rps, "decision", WORKERS))
        accuracy = max(accuracy, abs(100 * solution.accuracy - published[0]))
        violation = max(violation, abs(100 * solution.violation - published[1]))
    return [accuracy, violation]


# RAMSIS against its baselines


def margins(setting: Setting, reward: str, seconds: float) -> list[tuple[float, float]]:
    """RAMSIS less Jellyfish+ and less ModelSwitching, in points, at ten loads known ahead."""
    start = setting.under("jellyfish-plus", late=True, rate_rps=1000)
    sustained = sustained_rps(start, 4000.0)
    found: list[tuple[float, float]] = []
    for rate_rps in range(400, 4001, 400):
        accuracy: list[float] = []
        for policy, options in (
            ("ramsis", {"reward": reward}),
            ("jellyfish-plus", {}),
            ("model-switching", {"sustained_rps": sustained}),
        ):
            known: dict[str, object] = {"load_rps": rate_rps, **options}
            one = setting.under(
                policy,
                late=True,
                rate_rps=rate_rps,
                duration_s=seconds,
                warmup_s=0,
                policy_options=known,
            )
            accuracy.append(percent(outcome(one))[0])
        found.append((accuracy[0] - accuracy[1], accuracy[0] - accuracy[2]))
    return found


def over_baselines(front: Task, seconds: float) -> list[Value]:
    """The mean margins on the image task; then how far they are from the published ones."""
    found = margins(Setting(front), "decision", seconds)
    jellyfish, switching = (float(np.mean([each[side] for each in found])) for side in (0, 1))
    return [jellyfish, switching, abs(jellyfish - 3.70), abs(switching - 1.84)]


def over_baselines_text(text: Task, seconds: float) -> list[Value]:
    """The margins on the text task: in the mean over loads, and least of all."""
    setting = Setting(text, slo_ms=TEXT_SLO_MS, workers=TEXT_WORKERS)
    found = margins(setting, "query", seconds)
    published = margins(setting, "decision", seconds)
    values: list[Value] = []
    for side in (0, 1):
        least = min(each[side] for each in published)
        values.append(float(np.mean([each[side] for each in found])))
        values.append((min(each[side] for each in found), f" (the published reward {least:.2f})"))
    return values


def baseline_rows(image: Task, text: Task, quick: bool) -> Iterator[Row]:
    seconds = 5 if quick else 30
    figures = (
        Figure("RAMSIS over Jellyfish+, mean of 400-4,000 qps", 0, "points", 3.55),
        Figure("RAMSIS over ModelSwitching, mean of 400-4,000 qps", 0, "points", 1.69),
        Figure("  the first, off the paper's 3.70 by", 0, "points", 0.15, at_most=True),
        Figure("  the second, off the paper's 1.84 by", 0, "points", 0.15, at_most=True),
    )
    yield Row(figures, partial(over_baselines, image.front, seconds))
    figures = (
        Figure("text: RAMSIS over Jellyfish+, mean of 400-4,000 qps", 0, "points", 0.0),
        Figure("  at the load where it is least", 0, "points", 0.0),
        Figure("text: RAMSIS over ModelSwitching, mean of 400-4,000 qps", 0, "points", 0.0),
        Figure("  at the load where it is least", 0, "points", 0.0),
    )
    yield Row(figures, partial(over_baselines_text, text, seconds))


def measure(folder: Path, only: str, quick: bool) -> Iterator[Figure]:
    image, measured = load_task(folder, "image"), load_measured(folder, "image")
    text = load_task(folder, "text")
    rows = [
        *solver_rows(image),
        *baseline_rows(image, text, quick),
        *central_rows(image, text, quick),
        *twitter_rows(image, load_trace(folder), quick),
        *drawn_rows(measured, quick),
        *beyond_rows(image, quick),
    ]
    rows = [row for row in rows if only in row.figures[0].figure]
    with ProcessPoolExecutor(2) as pool:
        for row, values in zip(rows, pool.map(_call, [row.measure for row in rows]), strict=True):
            for figure, each in zip(row.figures, values, strict=True):
                value, note = each if isinstance(each, tuple) else (each, "")
                yield replace(figure, figure=figure.figure + note, value=value)


def _call(work: Measured) -> list[Value]:
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
