"""A fusion of two inputs among the variants, as in SneakPeek's detection of falls.

Requests have two inputs, for which two pictures of one class stand. Three variants take the first
input, a cheap one the second, and the dearest takes both. Looks are at the first input alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.figures import Figure
from benchmarks.sneakpeek_setting import Pictures, Prepared, Task, Variant, digits, prepare
from benchmarks.sneakpeek_windows import Load, draw_load, play

FIRST_SEED = 1_000_000
SINGLE = (
    Variant(10, 18, 2, (8,)),
    Variant(18, 20, 2, (32,)),
    Variant(40, 30, 1, (24,)),
    Variant(4, 5, 2, (2,), sees=(1,)),
)
FUSION = Variant(46, 36, 1, (256,), sees=(0, 1))


def fused(pictures: Pictures) -> Pictures:
    """The same pictures, two a request, the first application with a fusion of both."""
    binary, *others = pictures.tasks
    falls = replace(binary, name="falls", variants=(*SINGLE, FUSION))
    return replace(pictures, inputs=2, tasks=(falls, *others))


def fusion(quick: bool) -> Iterator[Figure]:
    """The worth of the fusion, and of looks with it."""
    pictures = fused(digits())
    prepared = [prepare(pictures, task) for task in pictures.tasks]
    without = [_without_fusion(prepared[0]), *prepared[1:]]
    windows, seeds = (60, 2) if quick else (250, 4)
    pairs = [_loads(prepared, without, windows, FIRST_SEED + seed) for seed in range(seeds)]
    recalls = prepared[0].classes.recall
    best = max(float(np.mean(each)) for each in recalls[:-1])
    name = f"recall of a fusion of two inputs, over the best variant of one ({best:.3f})"
    yield Figure(name, float(np.mean(recalls[-1])) / best, "x", 1.0)
    for penalty in ("step", "sigmoid"):
        ours, blind, edf = (
            _mean(prepared, [load for load, _ in pairs], policy, penalty)
            for policy in ("sneakpeek", "grouped", "lo-edf")
        )
        alone = _mean(without, [load for _, load in pairs], "sneakpeek", penalty)
        told = f"{penalty}: utility {ours:.3f}"
        yield Figure(f"fusion, {told}, over grouped's {blind:.3f}", ours / blind, "x", 1.0)
        yield Figure(f"fusion, {told}, over LO-EDF's {edf:.3f}", ours / edf, "x", 1.0)
        yield Figure(f"fusion, {told}, over none among the variants", ours / alone, "x", 1.0)


def _without_fusion(given: Prepared) -> Prepared:
    """The same application without its last variant."""
    task: Task = replace(given.task, variants=given.task.variants[:-1])
    classes = replace(given.classes, recall=given.classes.recall[:-1])
    return replace(given, task=task, classes=classes, networks=given.networks[:-1])


def _loads(
    prepared: Sequence[Prepared], without: Sequence[Prepared], windows: int, seed: int
) -> tuple[Load, Load]:
    """The same requests for both families."""
    return (
        draw_load(prepared, windows, False, seed),
        draw_load(without, windows, False, seed),
    )


def _mean(prepared: Sequence[Prepared], loads: Sequence[Load], policy: str, penalty: str) -> float:
    return float(np.mean([play(prepared, load, policy, penalty).mean for load in loads]))
