"""Margins that keep a variant from running: what a profile is believed, and how one is tried."""

import random

import pytest

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.margins.ratios import RULES
from fermata.router.core.margins.seeds import seed_of

SMALL, LARGE = 0, 1
RESNET18_P50_MS = [0.3727, 0.3763, 0.4354, 0.4526, 0.46, 0.477, 0.5, 0.5235]
"""An H200's, of batches of 1 to 8."""


def family(p99_ms: float = 120.0) -> Costs:
    """A small variant, and a large one whose 99th percentile may be wrong."""
    costs = Costs()
    costs.add(SMALL, [ms(10)], [ms(11)])
    costs.add(LARGE, [ms(40)], [ms(p99_ms)])
    costs.add_siblings([SMALL, LARGE])
    return costs


def run(costs: Costs, variant: int, ratio: float = 1.0, times: int = 1) -> None:
    for _ in range(times):
        costs.end_trial(variant)
        costs.observe(variant, 0, 0, 1, int(costs.of(variant).p50_ns[1] * ratio))


def until_trial(costs: Costs, most: int = 100_000) -> int:
    """Batches of the small variant until the large one is tried."""
    for count in range(1, most):
        run(costs, SMALL)
        if LARGE in costs.trials:
            return count
    return most


# Seeds


def test_a_percentile_far_too_high_says_nothing_of_other_sizes() -> None:
    # Measured at a batch of 3; the sizes after it have the running maximum.
    p50_ns = [ms(each) for each in RESNET18_P50_MS]
    p99_ns = [ms(0.4506)] * 2 + [ms(1.3781)] * 6
    assert seed_of(p50_ns, p99_ns, RULES) == pytest.approx(0.4506 / 0.3727)


@pytest.mark.parametrize("bad", range(1, 9))
@pytest.mark.parametrize("slope_ms", [0.2, 6.0])
def test_one_bad_size_of_many_is_seen(bad: int, slope_ms: float) -> None:
    p50_ns = [ms(2 + slope_ms * size) for size in range(1, 33)]
    p99_ns: list[int] = []
    for size, each in enumerate(p50_ns, 1):
        own_ns = int(each * (3.15 if size == bad else 1.05))
        p99_ns.append(max(own_ns, *p99_ns[-1:], 0))
    seed = seed_of(p50_ns, p99_ns, RULES)
    # On a flat profile the first one hides all others.
    assert (bad == 1 and slope_ms < 1.0) or seed < 1.6


def test_percentiles_that_differ_a_little_are_all_believed() -> None:
    p50_ns = [ms(5 * size) for size in range(1, 17)]
    tails = [1.4, 1.4, 1.3, 1.3, 1.3, 1.3, 1.3] + [1.05] * 9
    p99_ns = [int(each * tail) for each, tail in zip(p50_ns, tails, strict=True)]
    assert seed_of(p50_ns, p99_ns, RULES) == pytest.approx(1.4, rel=1e-6)


def test_without_percentiles_there_is_no_margin() -> None:
    assert seed_of([ms(5)] * 3, None, RULES) == 1.0
    assert seed_of([ms(5)], [ms(15)], RULES) == 3.0


# Trials


def test_a_variant_that_its_sibling_keeps_from_running_is_tried_once() -> None:
    costs = family()
    assert costs.of(LARGE).plan_ns[1] == ms(120)
    assert until_trial(costs) <= 2 * RULES.trial_after
    assert costs.of(LARGE).plan_ns[1] == ms(40)
    costs.end_trial(LARGE)
    # One batch is on trial, and the next is planned as before until it has ended.
    assert costs.of(LARGE).plan_ns[1] == ms(120)
    assert not costs.trials


def test_some_good_trials_in_a_row_refute_the_profile() -> None:
    costs = family()
    for _ in range(RULES.own_min):
        assert costs.of(LARGE).plan_ns[1] == ms(120)
        until_trial(costs)
        run(costs, LARGE, 1.02)
    assert costs.of(LARGE).plan_ns[1] == int(ms(40) * 1.02)


def test_a_profile_that_was_right_is_tried_ever_more_rarely() -> None:
    costs = family()
    waited = []
    for _ in range(2):
        waited.append(until_trial(costs))
        run(costs, LARGE, 2.9)
    waited.append(until_trial(costs))
    assert waited[0] < waited[1] < waited[2]
    run(costs, LARGE, 2.9)
    # By now its median is known to be as slow, and there is nothing to try.
    assert until_trial(costs, most=20_000) == 20_000
    assert costs.of(LARGE).plan_ns[1] == ms(120)


def test_a_fault_of_long_ago_is_forgotten_but_a_tail_is_not() -> None:
    stalled, heavy = family(41.0), family(41.0)
    rng = random.Random(4)
    run(stalled, LARGE, times=30)
    run(stalled, LARGE, 9.0, times=2)
    for _ in range(200):
        run(heavy, LARGE, rng.lognormvariate(0.0, 0.5))
    assert stalled.of(LARGE).plan_ns[1] == ms(360)
    assert heavy.of(LARGE).plan_ns[1] > ms(90)
    for _ in range(RULES.own_min):
        until_trial(stalled)
        run(stalled, LARGE)
    assert stalled.of(LARGE).plan_ns[1] == ms(40)
    assert until_trial(heavy, most=20_000) == 20_000


def test_a_variant_that_runs_or_stands_alone_is_never_tried() -> None:
    costs = family()
    for _ in range(2000):
        run(costs, SMALL)
        run(costs, LARGE, 1.1)
    assert not costs.trials
    alone = Costs()
    alone.add(SMALL, [ms(10)], [ms(11)])
    alone.add(LARGE, [ms(40)], [ms(120)])
    run(alone, SMALL, times=2000)
    assert not alone.trials
    assert alone.of(LARGE).plan_ns[1] == ms(120)


def test_each_of_a_large_family_has_its_turn() -> None:
    costs = Costs()
    for variant in range(7):
        costs.add(variant, [ms(10 + variant)], [ms(3 * (10 + variant))])
    costs.add_siblings(range(7))
    run(costs, SMALL, times=100)
    assert costs.trials == {1, 2, 3, 4, 5, 6}
