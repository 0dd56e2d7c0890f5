"""SneakPeek's schedulers side by side, over deadlines, rates, applications, variants and workers.

`python -m benchmarks.sneakpeek_sweeps [--only PART] [--json] [--quick]`, on digits. Figures are
numbered as in the paper. Each goal is the best of the other schedulers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.figures import Figure, run_parts
from benchmarks.sneakpeek_estimates import estimate_errors, profiled_errors
from benchmarks.sneakpeek_setting import Prepared, Variant, digits, prepare
from benchmarks.sneakpeek_windows import USUAL, Load, Played, Shape, draw_load, play

HELD_OUT = 10**6
"""The first seed. Nothing was tuned on seeds from there on."""
SEEDS = 2
PENALTY = "sigmoid"
OTHERS = ("grouped", "lo-priority", "lo-edf")
BASELINES = ("maxacc-edf", *reversed(OTHERS))
LOOKING: Mapping[str, object] = {"evidence": True, "short_circuit": True}
LONGER_MS = (200.0, 25.0)
"""Deadlines where there are more requests than usual, as in section 6.4."""
REQUESTS = 24
"""Of a window with many applications."""

PARTS = {
    "schedulers": "violations, and every scheduler with looks and without (Figs. 6 and 8)",
    "priors": "errors of estimates by prior (Fig. 10)",
    "deadlines": "utility by deadlines and their spread (Fig. 11)",
    "applications": "utility by number of applications (Fig. 12a)",
    "rates": "utility by requests in a window (Fig. 13a)",
    "variants": "utility by how far variants differ (Fig. 15)",
    "workers": "utility of several workers (Fig. 16)",
}


def loads_of(prepared: Sequence[Prepared], quick: bool, shape: Shape = USUAL) -> list[Load]:
    windows = 25 if quick else 100
    seeds = range(HELD_OUT, HELD_OUT + (1 if quick else SEEDS))
    return [draw_load(prepared, windows, False, seed, shape=shape) for seed in seeds]


def utility(
    prepared: Sequence[Prepared],
    loads: Sequence[Load],
    policy: str,
    options: Mapping[str, object] | None = None,
    backends: int = 1,
) -> float:
    played = [play(prepared, each, policy, PENALTY, options, backends=backends) for each in loads]
    return float(np.mean([each.mean for each in played]))


def beside(
    name: str,
    prepared: Sequence[Prepared],
    loads: Sequence[Load],
    backends: int = 1,
    options: Mapping[str, object] | None = None,
) -> Figure:
    """SneakPeek's utility, and what the others reach with the same requests."""
    found = {each: utility(prepared, loads, each, None, backends) for each in OTHERS}
    ours = utility(prepared, loads, "sneakpeek", options, backends)
    told = ", ".join(f"{each} {value:.3f}" for each, value in found.items())
    return Figure(f"{name}: utility", ours, f"({told})", max(found.values()))


def schedulers(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    loads = loads_of(prepared, quick)
    for policy in (*BASELINES, "sneakpeek"):
        looking = "" if policy == "sneakpeek" else " blind"
        yield _one(f"Fig. 6, {policy}{looking}", prepared, loads, policy, {})
    for policy in BASELINES:
        yield _one(f"Fig. 8, {policy} with looks", prepared, loads, policy, LOOKING)


def _one(
    name: str,
    prepared: Sequence[Prepared],
    loads: Sequence[Load],
    policy: str,
    options: Mapping[str, object],
) -> Figure:
    played = [play(prepared, load, policy, PENALTY, options) for load in loads]
    late = float(np.mean([violations(each) for each in played]))
    right = float(np.mean([each.right.mean() for each in played]))
    found = float(np.mean([each.mean for each in played]))
    return Figure(f"{name}: utility", found, f"(late {late:.1%}, right {right:.1%})", 0.0)


def violations(played: Played) -> float:
    """Share of requests that were dropped, or answered after their deadline."""
    log = played.log
    took_ns = log.end_ns - log.arrivals.at_ns
    return float(np.mean((log.end_ns < 0) | (took_ns > log.arrivals.slo_ns)))


def priors(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """Expert priors of the true frequencies, and of even ones, weak and strong, beside ours."""
    rng = np.random.default_rng(HELD_OUT)
    count = 400 if quick else 1500
    streams = [each.stream(count, each.task.frequencies, rng) for each in prepared]
    pairs = list(zip(prepared, streams, strict=True))
    ours = float(np.mean([estimate_errors(*pair).mean() for pair in pairs]))
    profiled = float(np.mean([profiled_errors(*pair).mean() for pair in pairs]))
    jeffreys = float(np.mean([estimate_errors(*pair, "jeffreys").mean() for pair in pairs]))
    yield Figure("Fig. 10, error of the profiled accuracy", profiled, "", 1.0, True)
    yield Figure("Fig. 10, Jeffreys", jeffreys, "", 1.0, True)
    for told, weight in (("weak", 1.0), ("strong", 4.0)):
        for kind in ("true", "even"):
            found = []
            for each, stream in pairs:
                classes = len(each.task.classes)
                shares = each.task.frequencies if kind == "true" else (1 / classes,) * classes
                prior = tuple(weight * share for share in shares)
                found.append(estimate_errors(each, stream, prior).mean())
            yield Figure(f"Fig. 10, {told} prior, {kind}", float(np.mean(found)), "", 1.0, True)
    yield Figure("Fig. 10, frequencies learnt from the stream (ours)", ours, "", jeffreys, True)


def deadlines(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    for mean_ms in (100.0, 200.0) if quick else (100.0, 150.0, 200.0, 300.0, 400.0):
        loads = loads_of(prepared, quick, Shape(deadline_ms=(mean_ms, 25.0)))
        yield beside(f"Fig. 11a, deadlines of {mean_ms:g} ms", prepared, loads)
    for spread_ms in (75.0,) if quick else (5.0, 25.0, 50.0, 75.0):
        loads = loads_of(prepared, quick, Shape(deadline_ms=(150.0, spread_ms)))
        yield beside(f"Fig. 11b, deadlines of 150 +- {spread_ms:g} ms", prepared, loads)


def applications(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """As many requests of ever more applications; several are of one task."""
    for count in (3, 12) if quick else (3, 6, 12):
        every = [
            replace(each, task=replace(each.task, name=f"{each.task.name}-{copy}"))
            for copy in range(count // len(prepared))
            for each in prepared
        ]
        loads = loads_of(every, quick, Shape(REQUESTS // count, LONGER_MS))
        yield beside(f"Fig. 12a, {REQUESTS} requests of {count} applications", every, loads)


def rates(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    for each in (4, 12) if quick else (2, 4, 8, 12, 16):
        loads = loads_of(prepared, quick, Shape(each, LONGER_MS))
        yield beside(f"Fig. 13a, {each * len(prepared)} requests a window", prepared, loads)


def variants(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """Three variants of each task that are right by chance: the mean of its own, one that is worse
    and faster, and one that is better and slower by the same part."""
    for apart in (0.05, 0.2) if quick else (0.01, 0.05, 0.1, 0.2):
        changed = [_apart(each, apart) for each in prepared]
        loads = [_by_chance(changed, load) for load in loads_of(prepared, quick)]
        name = f"Fig. 15, variants {apart:.0%} apart, no answers at once"
        yield beside(name, changed, loads, options={"short_circuit": False})


def _apart(prepared: Prepared, apart: float) -> Prepared:
    accuracy = float(np.mean(prepared.classes.recall))
    own = prepared.task.variants
    latency_ms = float(np.mean([each.latency_ms for each in own]))
    swap_in_ms = float(np.mean([each.swap_in_ms for each in own]))
    scales = (1 - apart, 1.0, 1 + apart)
    made = tuple(replace_times(own[0], latency_ms * scale, swap_in_ms) for scale in scales)
    classes = len(prepared.task.classes)
    recall = tuple((min(1.0, accuracy * scale),) * classes for scale in scales)
    return replace(
        prepared,
        task=replace(prepared.task, variants=made),
        classes=replace(prepared.classes, recall=recall),
    )


def replace_times(variant: Variant, latency_ms: float, swap_in_ms: float) -> Variant:
    return replace(variant, latency_ms=latency_ms, swap_in_ms=swap_in_ms)


def _by_chance(prepared: Sequence[Prepared], load: Load) -> Load:
    """The load with answers that are right as often as the variants are said to be."""
    rng = np.random.default_rng(HELD_OUT)
    accuracy = np.array([[row[0] for row in each.classes.recall] for each in prepared])
    drawn = rng.random((len(load.contents.label), 1))
    right = drawn < accuracy[load.arrivals.application]
    return replace(load, contents=replace(load.contents, right=right))


def workers(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    for mean_ms in (150.0,) if quick else (75.0, 100.0, 150.0, 200.0):
        loads = loads_of(prepared, quick, Shape(8, (mean_ms, 25.0)))
        name = f"Fig. 16a, two workers, deadlines of {mean_ms:g} ms, {8 * len(prepared)} requests"
        yield beside(name, prepared, loads, 2)
    for count in (4,) if quick else (1, 2, 3, 4):
        loads = loads_of(prepared, quick, Shape(8))
        yield beside(
            f"Fig. 16b, {count} workers, {8 * len(prepared)} requests", prepared, loads, count
        )


def measure(only: Sequence[str], quick: bool) -> Iterator[Figure]:
    pictures = digits()
    prepared = [prepare(pictures, task) for task in pictures.tasks]
    every = (schedulers, priors, deadlines, applications, rates, variants, workers)
    for part in every:
        if part.__name__ in only:
            yield from part(prepared, quick)


if __name__ == "__main__":
    run_parts("SneakPeek's schedulers side by side", measure, PARTS)
