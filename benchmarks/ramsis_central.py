"""Rows of the central queue: near the fluid bound, on the trace, and beyond what tables know."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.figures import Figure
from benchmarks.ramsis_data import Task
from benchmarks.ramsis_rows import Row, Setting, Value, outcome, percent

LOADS = (800, 1200, 1600, 2000, 2400, 2800, 3200)
OFF_BOUND = 0.7
OFF_BOUND_HIGH = 1.0
"""Points below the fluid bound that count as near it; the second from 3,200 qps on."""
VIOLATIONS = 0.01
TEXT_SLO_MS, TEXT_WORKERS = 100.0, 20
"""The strictest SLO of the paper's text task, and its workers at constant loads."""


def central_at(
    setting: Setting, rate_rps: float, seconds: float, seeds: int, **values: object
) -> list[Value]:
    """Mean accuracy and violation over some seeds."""
    start = setting.under(
        "central-queue", False, rate_rps=rate_rps, duration_s=seconds, warmup_s=3, **values
    )
    runs = [percent(outcome(replace(start, seed=seed))) for seed in range(seeds)]
    return [float(np.mean([each[side] for each in runs])) for side in (0, 1)]


def ramsis_at(
    setting: Setting, rate_rps: float, seconds: float, **values: object
) -> tuple[float, float]:
    """Accuracy and violation of RAMSIS, which is told the load."""
    one = setting.under(
        "ramsis",
        late=True,
        rate_rps=rate_rps,
        duration_s=seconds,
        warmup_s=3,
        policy_options={"load_rps": rate_rps},
        **values,
    )
    return percent(outcome(one))


def central_rows(image: Task, text: Task, quick: bool) -> Iterator[Row]:
    seconds, seeds = (8, 1) if quick else (30, 3)
    for what, setting in (
        ("9 models", Setting(image.front)),
        ("26 models", Setting(image)),
        ("text", Setting(text, slo_ms=TEXT_SLO_MS, workers=TEXT_WORKERS)),
    ):
        for rate_rps in (1600, 3200) if quick else LOADS:
            bound = setting.fluid_bound(rate_rps)
            goal = bound - (OFF_BOUND_HIGH if rate_rps == 3200 else OFF_BOUND)
            name = f"central queue, {what}, {rate_rps:,} qps (bound {bound:.2f})"
            figures = (
                Figure(name, 0, "%", goal),
                Figure("  violations", 0, "%", VIOLATIONS, at_most=True),
            )
            yield Row(figures, partial(central_at, setting, rate_rps, seconds, seeds))


def twitter(task: Task, rates: list[float], seconds: float) -> list[Value]:
    """The central queue's accuracy and violations, each beside those of RAMSIS."""
    arrivals = {"process": "trace", "rps": rates, "step_s": 10}
    setting = Setting(task, workers=70)
    mine, other = (
        percent(
            outcome(
                setting.under(policy, late=late, duration_s=seconds, warmup_s=3, arrivals=arrivals)
            )
        )
        for policy, late in (("central-queue", False), ("ramsis", True))
    )
    return [(mine[0], f" (RAMSIS {other[0]:.2f})"), (mine[1], f" (RAMSIS {other[1]:.3f})")]


def twitter_rows(image: Task, rates: list[float], quick: bool) -> Iterator[Row]:
    seconds = 40 if quick else 270
    steps = rates[12:16] if quick else rates
    for task in (image.front, image):
        figures = (
            Figure(f"Twitter trace, 70 workers, {len(task.variants)} models", 0, "%", 73.8),
            Figure("  violations", 0, "%", VIOLATIONS, at_most=True),
        )
        yield Row(figures, partial(twitter, task, steps, seconds))


def drawn(task: Task, rate_rps: float, seconds: float) -> list[Value]:
    """Run times drawn from the profiles: the central queue's violations, and its accuracy over that
    of RAMSIS, which plans with the same learnt margins and knows the load."""
    execution = {"draw": "profile"}
    setting = Setting(task)
    start = setting.under(
        "central-queue", rate_rps=rate_rps, duration_s=seconds, warmup_s=3, execution=execution
    )
    mine = percent(outcome(start))
    other = ramsis_at(setting, rate_rps, seconds, execution=execution)
    return [
        (mine[1], f" (RAMSIS {other[1]:.2f})"),
        (mine[0] - other[0], f" ({mine[0]:.2f} and {other[0]:.2f})"),
    ]


def drawn_rows(measured: Task, quick: bool) -> Iterator[Row]:
    for rate_rps in (1600, 3200) if quick else LOADS:
        figures = (
            Figure(f"drawn run times, {rate_rps:,} qps: violations", 0, "%", 0.1, at_most=True),
            Figure("  accuracy over RAMSIS", 0, "points", 0.0),
        )
        yield Row(figures, partial(drawn, measured.front, rate_rps, 8 if quick else 30))


def beyond(task: Task, rate_rps: float, seconds: float, arrivals: object) -> list[Value]:
    """What is left to the fluid bound, the violations, and the accuracy over RAMSIS."""
    setting = Setting(task)
    mine = central_at(setting, rate_rps, seconds, 1, arrivals=arrivals)
    accuracy, violation = (each for each in mine if isinstance(each, float))
    other = ramsis_at(setting, rate_rps, seconds, arrivals=arrivals)
    bound = setting.fluid_bound(rate_rps)
    return [
        (bound - accuracy, f" ({accuracy:.2f} of {bound:.2f})"),
        (violation, f" (RAMSIS {other[1]:.2f})"),
        (accuracy - other[0], f" ({other[0]:.2f})"),
    ]


def beyond_rows(image: Task, quick: bool) -> Iterator[Row]:
    """Arrivals that no table was made for, and loads near what the fastest variant can do."""
    poisson: dict[str, object] = {"process": "poisson"}
    for name, task, rate_rps, arrivals in (
        ("gaps of Gamma(0.2), 2,400 qps", image.front, 2400, {"process": "gamma", "shape": 0.2}),
        ("gaps of Gamma(0.05), 2,400 qps", image.front, 2400, {"process": "gamma", "shape": 0.05}),
        ("3,600 qps, 9 models", image.front, 3600, poisson),
        ("3,600 qps, 26 models", image, 3600, poisson),
    ):
        figures = (
            Figure(f"beyond: {name}: left to the bound", 0, "points", OFF_BOUND_HIGH, at_most=True),
            Figure("  violations", 0, "%", VIOLATIONS, at_most=True),
            Figure("  accuracy over RAMSIS", 0, "points", 0.0),
        )
        yield Row(figures, partial(beyond, task, rate_rps, 8 if quick else 30, arrivals))
