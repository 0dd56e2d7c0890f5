"""How far SneakPeek's figures hang on its settings, on data that judges nothing else.

Every setting is changed alone, down and up, and played on pictures from the training and profiling
parts only; no picture by which `benchmarks.sneakpeek` judges is touched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.sneakpeek import floors
from benchmarks.sneakpeek_setting import Prepared, digits, prepare, without_judges
from benchmarks.sneakpeek_windows import Load, draw_load, play
from fermata.router.policies.sneakpeek.estimator import Estimator, EstimatorRules
from fermata.router.policies.sneakpeek.frequencies import Frequencies, FrequencyRules

OPTIONS: dict[str, tuple[int, int, int]] = {
    "tau": (3, 5, 7),
    "nodes_max": (30, 120, 480),
    "budget": (150, 600, 2400),
}
"""Options of the policy: less, as it is, more."""
FREQUENCY_RULES = {
    "gain_min": (FrequencyRules(gain_min=1 / 40_000), FrequencyRules(gain_min=1 / 10_000)),
    "gain_fall": (FrequencyRules(gain_fall=0.6), FrequencyRules(gain_fall=0.8)),
    "gain_most": (FrequencyRules(gain_most=2.5), FrequencyRules(gain_most=10.0)),
    "prior": (FrequencyRules(prior=0.5), FrequencyRules(prior=2.0)),
}
"""Rules of the class frequencies: less, and more."""
KNOWN_FROM = (EstimatorRules(known_from=30), EstimatorRules(known_from=120))
"""Rules of the estimates, likewise."""
FLOOR_WEIGHTS = (10.0, 20.0, 40.0)
"""What a request of a class below its floor weighs."""
NEAR = 0.004
"""Of utility: what another value may gain at most."""


def utility(
    prepared: Sequence[Prepared], loads: Sequence[Load], options: dict[str, object]
) -> float:
    """The mean over penalties that differ most."""
    return float(
        np.mean(
            [
                play(prepared, load, "sneakpeek", penalty, options).mean
                for load in loads
                for penalty in ("step", "sigmoid")
            ]
        )
    )


def measure(quick: bool) -> Iterator[Figure]:
    pictures = without_judges(digits())
    prepared = [prepare(pictures, task) for task in pictures.tasks]
    windows = 80 if quick else 400
    loads = [draw_load(prepared, windows, continuous, 300) for continuous in (False, True)]
    as_it_is = utility(prepared, loads, {})
    yield Figure("utility as it is, settings chosen without judging data", as_it_is, "", 0.93)
    for name, (less, _, more) in OPTIONS.items():
        yield _row(name, as_it_is, [utility(prepared, loads, {name: one}) for one in (less, more)])
    for name, others in FREQUENCY_RULES.items():
        found: list[float] = []
        for rules in others:
            Frequencies.rules = rules
            found.append(utility(prepared, loads, {}))
        Frequencies.rules = FrequencyRules()
        yield _row(name, as_it_is, found)
    found = []
    for estimating in KNOWN_FROM:
        Estimator.rules = estimating
        found.append(utility(prepared, loads, {}))
    Estimator.rules = EstimatorRules()
    yield _row("known_from", as_it_is, found)
    yield from floor_weights(prepared, quick)


def floor_weights(prepared: Sequence[Prepared], quick: bool) -> Iterator[Figure]:
    """Whether a floor holds with other weights, and what it costs then."""
    usual = Estimator.rules
    for weight in FLOOR_WEIGHTS:
        Estimator.rules = replace(usual, floored_weight=weight)
        for figure in floors(prepared, quick):
            # Only the weight that is used has to hold.
            goal = figure.goal if weight == usual.floored_weight else 1.0 if figure.at_most else 0.0
            yield replace(figure, figure=f"weight {weight:g}: {figure.figure}", goal=goal)
    Estimator.rules = usual


def _row(name: str, as_it_is: float, others: Sequence[float]) -> Figure:
    less, more = (other - as_it_is for other in others)
    told = f"{name}: utility with less of it {less:+.4f}, with more {more:+.4f}; the better gains"
    return Figure(told, max(less, more), "", NEAR, at_most=True)


if __name__ == "__main__":
    run("SneakPeek: what its settings matter", measure)
