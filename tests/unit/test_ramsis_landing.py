"""Queues that lose their first requests before a decision, and those longer than a batch."""

from math import comb

import numpy as np
import pytest

from fermata.foundation.units import ms
from fermata.router.policies.ramsis.chain.carry import spans_ns
from fermata.router.policies.ramsis.chain.landing import beta_cdf, beta_cdf_sum, landing_of
from fermata.router.policies.ramsis.chain.problem import WorkerProblem, fixed_bins, model_bins
from fermata.router.policies.ramsis.chain.solve import solve
from fermata.router.policies.ramsis.chain.transitions import actions_of, transitions_of

SLO_NS = ms(40)
FAST = tuple(ms(6 + 4 * size) for size in range(1, 9))
GOOD = tuple(ms(10 + 9 * size) for size in range(1, 9))


def problem(rate_rps: float, sizes: int = 8, **changes: object) -> WorkerProblem:
    values: dict[str, object] = {
        "latency_ns": (FAST[:sizes], GOOD[:sizes]),
        "accuracy": (0.6, 0.9),
        "slo_ns": SLO_NS,
        "workers": 2,
        "rate_rps": rate_rps,
        "slack_ns": fixed_bins(SLO_NS, 40),
        "drops": True,
    }
    return WorkerProblem(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 9), (3, 3), (60, 61), (8, 120)])
def test_law_of_the_second_request_is_that_of_order_statistics(before: int, after: int) -> None:
    trials = before + after - 1
    places = np.linspace(0.0, 1.0, 201)
    # The n-th of so many is below x where at least n of them are.
    exact = np.array(
        [
            sum(comb(trials, n) * x**n * (1 - x) ** (trials - n) for n in range(before, trials + 1))
            for x in places
        ]
    )
    others = np.full_like(places, after)
    assert np.abs(beta_cdf(before, others, places) - exact).max() < 0.02
    summed = np.concatenate(([0.0], np.cumsum((exact[1:] + exact[:-1]) / 2) * 0.005))
    assert np.abs(beta_cdf_sum(before, others, places) - summed).max() < 0.01
    beyond = beta_cdf_sum(before, others[:1], np.array([1.5])) - beta_cdf_sum(
        before, others[:1], np.array([1.0])
    )
    assert beyond == pytest.approx(0.5)


@pytest.mark.parametrize("rate_rps", [20.0, 200.0, 600.0])
@pytest.mark.parametrize("sizes", [1, 2, 8])
def test_no_request_is_counted_twice(rate_rps: float, sizes: int) -> None:
    one = problem(rate_rps, sizes)
    valid = np.array(one.latency_ns)[:, :, None] <= np.array(one.slack_ns)
    in_time = np.asarray(valid.any(axis=0))
    moves = transitions_of(one, actions_of(one, np.ones_like(valid)))
    landing = landing_of(one, moves, in_time)
    assert landing.share.min() >= 0.0
    assert landing.share.sum(axis=(1, 2)) + landing.emptied == pytest.approx(1.0)
    # Nothing is decided where no variant is in time.
    assert landing.share[:, ~in_time].max() < 1e-8
    assert landing.lost.min() >= 0.0


def test_bins_reach_from_one_edge_to_the_next() -> None:
    for slack_ns in (fixed_bins(SLO_NS, 4), model_bins((FAST,), SLO_NS)):
        low_ns, high_ns = spans_ns(problem(100.0, slack_ns=slack_ns))
        assert (low_ns[1:] == high_ns[:-1]).all()
        assert (high_ns > low_ns).all()


def test_overload_loses_what_is_too_much_and_no_more() -> None:
    # Two workers carry 2 * 8 / 38 ms at the most, 421 a second.
    for rate_rps in (800.0, 1600.0, 3200.0):
        lost = solve(problem(rate_rps)).violation
        assert 1.0 - 421.0 / rate_rps < lost < 1.0 - 300.0 / rate_rps
    # Late queues that run whole lose nearly all.
    assert solve(problem(800.0, drops=False)).violation > 0.9


def test_short_batches_are_no_violation_where_the_rest_can_wait() -> None:
    # One at a time in 2 ms, with 40 ms for each: half of the capacity loses nobody.
    quick = problem(500.0, latency_ns=((ms(2),), (ms(4),)))
    solved = solve(quick)
    assert solved.violation < 1e-3
    assert solved.accuracy > 0.7
    # 1,000 a second are what they can do; of half as many again a third is lost.
    assert solve(quick.at_rate(1500.0)).violation == pytest.approx(1 / 3, abs=0.02)


def test_accuracy_is_not_bought_by_dropping_requests() -> None:
    both = solve(problem(200.0))
    fast_alone = solve(problem(200.0, latency_ns=(FAST,), accuracy=(0.6,)))
    assert both.accuracy > 0.6
    assert both.violation < fast_alone.violation + 0.01


def test_table_of_about_the_same_load_leads_to_the_same_sooner() -> None:
    cold = solve(problem(200.0))
    warm = solve(problem(200.0), start=solve(problem(205.0)))
    assert warm.accuracy == pytest.approx(cold.accuracy, abs=1e-6)
    assert warm.violation == pytest.approx(cold.violation, abs=1e-6)
    assert warm.rounds <= cold.rounds
