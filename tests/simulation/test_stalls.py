"""One instance of four stalls every two seconds: routing must lose no more than one queue does."""

import pytest

from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

LIGHT = {"name": "light", "alpha_ms": 6, "beta_ms": 4, "accuracy": 0.78}
HEAVY = {"name": "heavy", "alpha_ms": 16, "beta_ms": 24, "accuracy": 0.83}
DURATION_S = 30


def run(
    policy: str,
    variants: list[dict[str, object]],
    rate_rps: float,
    slo_ms: float,
    backend: int = 0,
    stall_s: float = 0.35,
    every_s: float = 2.0,
    **values: object,
) -> RunReport:
    stalls = [
        {"kind": "hang", "backend": backend, "at_s": 0.5 + every_s * count, "for_s": stall_s}
        for count in range(int(DURATION_S / every_s))
    ]
    scenario = read_scenario(
        {
            "seed": 7,
            "duration_s": DURATION_S,
            "backends": 4,
            "policy": policy,
            "rate_rps": rate_rps,
            "faults": stalls,
            "applications": [{"name": "app", "slo_ms": slo_ms, "variants": variants}],
            **values,
        }
    )
    return report(scenario, simulate(scenario))


@pytest.mark.parametrize("backend", [0, 3])
@pytest.mark.parametrize(
    ("variants", "rate_rps", "slo_ms"),
    [([LIGHT], 120, 50), ([LIGHT], 200, 40), ([LIGHT, HEAVY], 75, 100), ([HEAVY, LIGHT], 75, 150)],
)
def test_an_instance_that_stalls_costs_no_more_than_in_a_single_queue(
    variants: list[dict[str, object]], rate_rps: float, slo_ms: float, backend: int
) -> None:
    plain = run("single-queue", variants, rate_rps, slo_ms, backend)
    routed = run("routing", variants, rate_rps, slo_ms, backend)
    assert routed.bad_rate <= 1.2 * plain.bad_rate < 0.01


@pytest.mark.parametrize("dispatch_ms", [2, 5])
def test_a_batch_that_was_sent_ahead_hides_no_stall(dispatch_ms: float) -> None:
    plain = run("single-queue", [LIGHT], 120, 60, dispatch_ms=dispatch_ms)
    routed = run("routing", [LIGHT], 120, 60, dispatch_ms=dispatch_ms)
    assert routed.bad_rate <= 1.2 * plain.bad_rate < 0.01


@pytest.mark.parametrize("policy", ["routing", "single-queue"])
def test_stalls_so_frequent_that_they_make_the_margin_do_not_end_service(policy: str) -> None:
    often = run(policy, [LIGHT], 120, 50, stall_s=0.1, every_s=0.4)
    assert often.bad_rate < 0.03
