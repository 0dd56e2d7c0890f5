"""Stages behind others wait for their target batches."""

from typing import Any

from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import read_scenario

SLO_MS = 150
DETECT, EMBED = 0, 1
"""Numbers of the variants."""


def application(name: str, alpha_ms: float, beta_ms: float) -> dict[str, Any]:
    variant = {"name": f"{name}-model", "alpha_ms": alpha_ms, "beta_ms": beta_ms}
    return {"name": name, "slo_ms": SLO_MS, "variants": [variant]}


def mean_batches(rate_rps: float) -> list[float]:
    """By stage: the mean size of a batch. Those of the second one save much when they are large."""
    document: dict[str, Any] = {
        "seed": 1,
        "duration_s": 2,
        "warmup_s": 0,
        "rate_rps": rate_rps,
        "backends": 8,
        "applications": [application("detect", 2.0, 3.0), application("embed", 0.5, 20.0)],
        "pipelines": [
            {
                "name": "objects",
                "slo_ms": SLO_MS,
                "stages": [{"application": "detect"}, {"application": "embed"}],
            }
        ],
    }
    run = Driver(read_scenario(document))
    run.run()
    requests = [0, 0]
    batches: list[set[int]] = [set(), set()]
    for rid in range(len(run.arrivals.at_ns), len(run.end_ns)):
        if run.batch[rid] >= 0:
            requests[run.variant[rid]] += 1
            batches[run.variant[rid]].add(run.batch[rid])
    return [requests[each] / len(batches[each]) for each in (DETECT, EMBED)]


def test_a_stage_waits_for_several_batches_of_the_one_before() -> None:
    """Results come a batch at a time. The lull after each is no reason to run with so few."""
    first, second = mean_batches(2300.0)
    assert second > 2.0 * first
