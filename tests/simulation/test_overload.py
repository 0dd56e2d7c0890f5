"""Ten times the capacity, by one client of one application: the others do not notice."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.overload import STEP_S, judge, outcome, scenario
from benchmarks.workloads import RESNET50, table4
from fermata.router.core.events import DropReason
from fermata.simulator.run import DROPPED, simulate
from fermata.simulator.scenario.scenario import read_scenario

MODEL = {"alpha_ms": 4, "beta_ms": 20}
CAPACITY_RPS = 500.0
"""Three backends, batches of about 30 in 140 ms."""


@pytest.mark.parametrize("policy", ["deferred", "eager", "partitioned", "timeout"])
def test_flood_is_what_is_refused(policy: str) -> None:
    given = scenario(MODEL, 200.0, 3, CAPACITY_RPS, flood_s=STEP_S)
    options = {"hold": "auto"} if policy == "deferred" else {}
    seen = outcome(read_scenario({**given, "policy": policy, "policy_options": options}))
    found = {
        each.figure.rpartition(": ")[2]: each
        for each in judge("simulated", seen, CAPACITY_RPS, 200.0, 2 * STEP_S)
    }
    assert found["goodput over the peak"].value > 0.9
    assert found["bad, the other application"].value < 0.05
    assert found["bad, the other client"].value < 0.1
    assert found["of refusals, within 10 ms"].value > 0.98
    assert found["bad, from one SLO after its end"].value < 0.01


def test_shares_change_nothing_below_the_peak() -> None:
    load = table4(RESNET50, 25.0, duration_s=3, rate_rps=5_200)
    with_shares, without = (simulate(replace(load, fair_shares=fair)) for fair in (True, False))
    assert np.array_equal(with_shares.end_ns, without.end_ns)


def test_stall_refuses_nobody_once_it_is_over() -> None:
    """All backends hang for two seconds at 80 % load; it once took admission seconds to forget."""
    hang = [{"at_s": 2, "backend": each, "kind": "hang", "for_s": 2} for each in range(8)]
    load = table4(
        RESNET50, 25.0, duration_s=6, rate_rps=4_400, faults=hang, fair_shares=True, warmup_s=0
    )
    log = simulate(load)
    at_s = log.arrivals.at_ns / 1e9
    refused = np.zeros(len(at_s), bool)
    refused[[i for i, reason in log.reasons.items() if reason == DropReason.SHED]] = True
    assert refused[at_s > 4.1].mean() < 0.01
    assert (log.end_ns[at_s > 4.1] == DROPPED).mean() < 0.02
