"""The autoscaler with a mean accuracy to hold."""

import pytest

from benchmarks.autoscale_policies import held, settled
from fermata.simulator.run import simulate

RATE_RPS = 100.0


@pytest.mark.parametrize(
    ("policy", "accuracy", "planned"),
    # By simulation of the central queue at each number, as `fermata policy ramsis plan` has it.
    [
        ("central-queue", 0.75, 4),
        ("central-queue", 0.77, 4),
        pytest.param("central-queue", 0.82, 10, marks=pytest.mark.long),
        ("auto", 0.75, 4),
        ("auto", 0.77, 4),
    ],
)
def test_it_settles_where_the_planner_says_from_any_start(
    policy: str, accuracy: float, planned: int
) -> None:
    for start in (2, 8, 32):
        log = simulate(held(accuracy, start, RATE_RPS, policy))
        last = [each.advice.target for each in log.windows[-20:]]
        assert abs(last[-1] - planned) <= 1
        assert len({*last}) <= 2
        reached, bad_rate = settled(log)
        assert reached >= accuracy
        assert bad_rate <= 0.01


@pytest.mark.parametrize(
    "policy", [pytest.param("ramsis", marks=pytest.mark.long), "jellyfish-plus"]
)
def test_a_policy_that_is_less_accurate_gets_more(policy: str) -> None:
    log = simulate(held(0.77, 8, RATE_RPS, policy))
    reached, bad_rate = settled(log)
    assert reached >= 0.765
    assert bad_rate <= 0.01
    assert log.windows[-1].advice.target <= 8
