"""A mean accuracy to hold: the backends it takes, and what cannot hold it."""

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("pydantic")
from fermata.autoscaler.accuracy import Answers
from fermata.autoscaler.rule import RuleOptions, RuleState, advise
from fermata.autoscaler.window import Window
from fermata.deployments.config.deployment import read_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.partitioner.accuracy_mix import RatedProfile, backends_at_accuracy
from fermata.profiles.profile import from_table_ms, linear
from fermata.simulator.scenario.scenario import read_scenario

SMALL = RatedProfile(from_table_ms("small", [10.0]), 0.6)
LARGE = RatedProfile(from_table_ms("large", [50.0]), 0.8)


@pytest.mark.parametrize(
    ("accuracy", "needed"),
    # Batches of one at 100 requests a second: 10 ms each are 1 backend, 50 ms each 5.
    [(0.5, 1.0), (0.6, 1.0), (0.7, 3.0), (0.75, 4.0), (0.8, 5.0), (0.81, None)],
)
def test_backends_are_those_of_the_cheapest_mix(accuracy: float, needed: float | None) -> None:
    found = backends_at_accuracy([SMALL, LARGE], ms(200), 100.0, accuracy)
    assert found == (needed if needed is None else pytest.approx(needed, abs=0.01))


def test_a_variant_that_costs_more_for_less_changes_nothing() -> None:
    useless = RatedProfile(from_table_ms("useless", [60.0]), 0.7)
    for accuracy in (0.6, 0.65, 0.7, 0.75, 0.8):
        without = backends_at_accuracy([SMALL, LARGE], ms(200), 100.0, accuracy)
        assert backends_at_accuracy([useless, SMALL, LARGE], ms(200), 100.0, accuracy) == without


def test_a_variant_beyond_the_slo_does_not_count() -> None:
    assert backends_at_accuracy([SMALL, LARGE], ms(49), 100.0, 0.7) is None
    assert backends_at_accuracy([SMALL, LARGE], ms(49), 100.0, 0.6) == pytest.approx(1.0, abs=0.01)


def test_more_accuracy_or_more_requests_never_need_fewer() -> None:
    variants = [
        RatedProfile(linear(name, alpha, beta), accuracy, 64)
        for name, alpha, beta, accuracy in (
            ("s", 9, 12, 0.6),
            ("m", 16, 15, 0.73),
            ("l", 35, 20, 0.8),
        )
    ]

    def needed(rate_rps: float, accuracy: float) -> float:
        found = backends_at_accuracy(variants, ms(150), rate_rps, accuracy)
        assert found is not None
        return found

    accuracies = [0.55 + 0.01 * step for step in range(26)]
    for rate_rps in (1.0, 20.0, 100.0, 3000.0):
        for less, more in pairwise(accuracies):
            assert needed(rate_rps, less) <= needed(rate_rps, more) + 2e-3
    for less, more in pairwise([100.0 * 1.5**step for step in range(10)]):
        assert needed(less, 0.77) < needed(more, 0.77)


# Files


def sections(**changes: Any) -> dict[str, Any]:
    application = {
        "name": "a",
        "slo_ms": 100,
        "policy": "central-queue",
        "variants": [
            {"name": "small", "alpha_ms": 1, "beta_ms": 5, "accuracy": 0.7},
            {"name": "large", "alpha_ms": 2, "beta_ms": 50, "accuracy": 0.8},
        ],
    }
    return {"applications": [application | changes], "autoscaler": {"accuracy": 0.77}}


VARIANTS = sections()["applications"][0]["variants"]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"policy": "deferred"}, "whose policy chooses variants by load"),
    ({"policy_options": {"pinned": True}}, "whose policy chooses variants by load"),
    (
        {"variants": [VARIANTS[0], VARIANTS[1] | {"accuracy": None}]},
        "the accuracy of variant 'large' of a is unknown",
    ),
    ({"variants": VARIANTS[:1]}, "is above 0.7, the accuracy of the best variant of a"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_cannot_hold_an_accuracy_is_refused_by_name(
    changes: dict[str, Any], reason: str
) -> None:
    given = sections(**changes)
    for read in (
        lambda: read_config(given),
        lambda: read_scenario({**given, "backends": 1, "rate_rps": 1}),
    ):
        with pytest.raises(ConfigError, match=f"autoscaler.accuracy=0.77.*{reason}"):
            read()


# The rule


def answers(accuracy: float, goal: float = 0.77, count: int = 500) -> Answers:
    return Answers((count * (goal - accuracy),), (count,), (40.0,), 1)


def seen(backends: int, accuracy: float, planned: float = 3.4) -> Window:
    """A policy that is always busy: with the accuracy, and nothing else."""
    return Window(
        backends,
        0.9 * backends,
        500,
        0,
        up=backends,
        planned=planned,
        planned_busy=0.9 * backends,
        answers=answers(accuracy),
    )


@pytest.mark.parametrize("start", [2, 8, 32])
def test_the_planner_counts_however_busy_backends_are(start: int) -> None:
    options, state, backends = RuleOptions(), RuleState(), start
    history: list[int] = []
    for _ in range(20):
        given = advise(options, state, seen(backends, 0.78))
        state, backends = given.state, given.target
        history.append(backends)
    assert history[-1] == 4
    assert sum(a != b for a, b in pairwise([start, *history])) == 1


def test_an_accuracy_that_is_missed_takes_as_many_more_as_it_costs() -> None:
    options, state, backends = RuleOptions(), RuleState(), 4
    history: list[int] = []
    for _ in range(30):
        # With six it is reached; with four 0.03 are missing, at 40 backends a unit.
        given = advise(options, state, seen(backends, 0.78 if backends >= 6 else 0.74))
        state, backends = given.state, given.target
        history.append(backends)
    assert history[:2] == [4, 4]
    assert history[-1] == 6
    assert sum(a != b for a, b in pairwise(history)) == 1


def test_an_accuracy_that_more_backends_do_not_bring_is_given_up() -> None:
    options, state, backends = RuleOptions(maximum=100), RuleState(), 4
    for _ in range(200):
        given = advise(options, state, seen(backends, 0.7))
        state, backends = given.state, given.target
    assert backends <= 10
