"""A load that is there at once: its rate is known before it has been measured for long."""

from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario


def good_rps(policy: str, **options: str) -> float:
    """Good answers a second of the first 90 ms of an overload."""
    variant = {"name": "quick", "alpha_ms": 0.065, "beta_ms": 1.12, "batch_size_max": 64}
    document = {
        "seed": 1,
        "duration_s": 0.08,
        "warmup_s": 0.01,
        "rate_rps": 440_000,
        "backends": 30,
        "policy": policy,
        "policy_options": options,
        "applications": [{"name": "one", "slo_ms": 6.7, "variants": [variant]}],
    }
    scenario = read_scenario(document)
    return report(scenario, simulate(scenario)).good_rps


def test_an_overload_from_the_first_request_on_is_served() -> None:
    assert good_rps("deferred", hold="auto") > 0.9 * good_rps("batch-queues")
