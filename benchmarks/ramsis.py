"""Which variant under random arrivals: RAMSIS tables, its baselines and the central queue.

Needs the profiles and the trace that the RAMSIS authors published, as JSON; see `--data`.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
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
from benchmarks.ramsis_solving import solver_rows
from fermata.simulator.sustained_load import sustained_rps


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
    # What is timed is not beside anything else.
    for row in _wanted(solver_rows(image), only):
        yield from _filled(row, row.measure())
    rows = _wanted(
        (
            *baseline_rows(image, text, quick),
            *central_rows(image, text, quick),
            *twitter_rows(image, load_trace(folder), quick),
            *drawn_rows(measured, quick),
            *beyond_rows(image, quick),
        ),
        only,
    )
    with ProcessPoolExecutor(2) as pool:
        for row, values in zip(rows, pool.map(_call, [row.measure for row in rows]), strict=True):
            yield from _filled(row, values)


def _wanted(rows: Iterable[Row], only: str) -> list[Row]:
    return [row for row in rows if only in row.figures[0].figure]


def _filled(row: Row, values: Sequence[Value]) -> Iterator[Figure]:
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
