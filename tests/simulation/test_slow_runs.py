"""A few runs that take several times as long as others, on backends with time to spare."""

import pytest

from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

RATE_RPS = 15_000
"""Runs of full batches then take 0.55 of the backend's time, 0.6 with the slow ones."""


def bad_rate(rate_rps: float, slow_share: float, slow_factor: float, seed: int = 3) -> float:
    scenario = read_scenario(
        {
            "seed": seed,
            "duration_s": 4,
            "warmup_s": 1,
            "backends": 1,
            "rate_rps": rate_rps,
            "policy": "deferred",
            "policy_options": {"hold": "auto"},
            "execution": {"jitter": 0.03, "slow_share": slow_share, "slow_factor": slow_factor},
            "applications": [
                {
                    "name": "resnet50",
                    "slo_ms": 21,
                    "variants": [
                        {
                            "name": "fused",
                            "alpha_ms": 0.034,
                            "beta_ms": 0.35,
                            "batch_size_max": 128,
                        }
                    ],
                }
            ],
        }
    )
    return report(scenario, simulate(scenario)).bad_rate


@pytest.mark.parametrize("slow_share", [0.01, 0.03, 0.05])
def test_slow_runs_do_not_make_a_backend_seem_full(slow_share: float) -> None:
    assert bad_rate(RATE_RPS, slow_share, 3) < 0.001


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_runs_longer_than_the_slo_do_not_close_the_door(seed: int) -> None:
    # With margins that are enough for those, 40 % were refused beside a backend with time to spare.
    assert bad_rate(2_000, 0.05, 50, seed) < 0.35
