"""A variant that can never end within the SLO changes nothing, wherever its accuracy ranks."""

from typing import Any

import pytest

from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

FITS = (
    {"name": "fast", "alpha_ms": 0.5, "beta_ms": 2.0, "accuracy": 0.6},
    {"name": "good", "alpha_ms": 1.0, "beta_ms": 6.0, "accuracy": 0.72},
)
BEYOND = {"name": "beyond", "alpha_ms": 5.0, "beta_ms": 60.0}


def utility(policy: str, rate_rps: float, variants: tuple[dict[str, Any], ...]) -> float:
    """Points of accuracy over all requests; those that are bad earn nothing."""
    given = {
        "seed": 11,
        "backends": 2,
        "warmup_s": 1,
        "duration_s": 11,
        "rate_rps": rate_rps,
        "policy": policy,
        "applications": [{"name": "a", "slo_ms": 30, "variants": list(variants)}],
    }
    scenario = read_scenario(given)
    found = report(scenario, simulate(scenario))
    (told,) = found.applications
    assert told.accuracy is not None
    return 100.0 * told.accuracy * (1.0 - told.bad_rate)


@pytest.mark.parametrize("accuracy", [0.5, 0.72, 0.95])
@pytest.mark.parametrize("rate_rps", [100, 700])
@pytest.mark.parametrize("policy", ["auto", "central-queue", "ramsis"])
def test_a_variant_beyond_the_slo_hides_no_other(
    policy: str, rate_rps: float, accuracy: float
) -> None:
    with_it = utility(policy, rate_rps, (*FITS, {**BEYOND, "accuracy": accuracy}))
    assert with_it >= utility(policy, rate_rps, FITS) - 0.1
