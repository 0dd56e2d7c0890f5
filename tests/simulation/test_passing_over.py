"""Several applications in overload: heads that would keep batches small wait for later ones."""

from typing import Any

import pytest

from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

POISSON: dict[str, Any] = {"process": "poisson"}
BURSTS: dict[str, Any] = {"process": "gamma", "shape": 0.2}


def good_rps(
    pass_over: bool, applications: int, rate_rps: float, arrivals: dict[str, Any]
) -> float:
    variant = {"name": "net", "alpha_ms": 0.4, "beta_ms": 5, "batch_size_max": 64}
    document = {
        "seed": 1,
        "duration_s": 3,
        "warmup_s": 0.5,
        "rate_rps": rate_rps,
        "backends": 4,
        "policy_options": {"hold": "auto", "pass_over": pass_over},
        "arrivals": arrivals,
        "applications": [
            {"name": "one", "slo_ms": 25, "copies": applications, "variants": [variant]}
        ],
    }
    scenario = read_scenario({"policy": "deferred", **document})
    return report(scenario, simulate(scenario)).good_rps


@pytest.mark.parametrize(
    ("applications", "rate_rps", "arrivals"),
    [(4, 8_000, POISSON), (16, 6_000, POISSON), (4, 8_000, BURSTS)],
)
def test_more_is_served_than_where_they_are_dropped(
    applications: int, rate_rps: float, arrivals: dict[str, Any]
) -> None:
    served = good_rps(True, applications, rate_rps, arrivals)
    assert served > 1.015 * good_rps(False, applications, rate_rps, arrivals)
