"""ModelSwitching's profiling step: which load each variant sustains, by simulation."""

from collections.abc import Callable
from dataclasses import replace

from fermata.foundation.units import seconds
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario

STEP_RPS = 100.0
"""The paper profiles loads in steps of this size."""
PROFILED_NS = seconds(10)
ALWAYS_RPS = 1e12
LATE_BY = 100

Tell = Callable[[str, float], None]


def sustained_rps(
    scenario: Scenario, high_rps: float, step_rps: float = STEP_RPS, tell: Tell | None = None
) -> list[float]:
    """For each variant of the only application, the highest load up to `high_rps` at which 99 % of
    requests are answered within the SLO; 0 where there is none."""
    (application,) = scenario.applications
    found: list[float] = []
    for index, variant in enumerate(application.variants):
        found.append(_sustained_rps(scenario, index, high_rps, step_rps))
        if tell is not None:
            tell(variant.name, found[-1])
    return found


def _sustained_rps(scenario: Scenario, index: int, high_rps: float, step_rps: float) -> float:
    (application,) = scenario.applications
    only = [0.0] * len(application.variants)
    only[index] = ALWAYS_RPS
    # Late answers count as they are, not as drops or as another variant's.
    patient = replace(application, hard_limit_ns=LATE_BY * application.slo_ns)
    alone = replace(
        scenario,
        applications=(patient,),
        policy="model-switching",
        policy_options={"sustained_rps": only},
        duration_ns=PROFILED_NS,
    )
    slo_ms = application.slo_ns / 1e6
    low, high = 0, int(high_rps / step_rps)
    if application.profiles[index].latency_ns(1) > application.slo_ns:
        return 0.0
    while low < high:
        middle = (low + high + 1) // 2
        one = alone.at_rate(middle * step_rps)
        result = report(one, simulate(one))
        answered_in_time = result.p99_ms is not None and result.p99_ms <= slo_ms
        if answered_in_time and result.late + sum(result.drops.values()) <= 0.01 * result.requests:
            low = middle
        else:
            high = middle - 1
    return low * step_rps
