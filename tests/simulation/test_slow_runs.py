"""A few runs that take several times as long as others, on backends with time to spare."""

import pytest

from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

RATE_RPS = 15_000
"""Runs of full batches then take 0.55 of the backend's time, 0.6 with the slow ones."""


@pytest.mark.parametrize("slow_share", [0.01, 0.03, 0.05])
def test_slow_runs_do_not_make_a_backend_seem_full(slow_share: float) -> None:
    scenario = read_scenario(
        {
            "seed": 3,
            "duration_s": 4,
            "warmup_s": 1,
            "backends": 1,
            "rate_rps": RATE_RPS,
            "policy": "deferred",
            "policy_options": {"hold": "auto"},
            "execution": {"jitter": 0.03, "slow_share": slow_share, "slow_factor": 3},
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
    assert report(scenario, simulate(scenario)).bad_rate < 0.001
