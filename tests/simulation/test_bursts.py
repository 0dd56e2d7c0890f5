"""Routing under bursts at reduced size; `benchmarks/rl.py` measures it in full."""

import pytest

from benchmarks.rl import overload, recovery_s
from benchmarks.workloads import edge, eq12, periodic_bursts
from fermata.simulator.reports.phase_report import PhaseReport, report_phases
from fermata.simulator.run import simulate


def bursts(**values: object) -> PhaseReport:
    scenario = edge(arrivals=eq12("text"), duration_s=600, seed=5, **values)
    return report_phases(scenario, simulate(scenario))


def test_each_request_goes_where_a_clairvoyant_would_send_it() -> None:
    result = bursts(policy_options={"mix": "2/2"})
    burst, normal = result.states
    assert result.violations == 0.0
    assert result.goodput >= 0.8085
    # Heavy is never idle in a burst, and always in time when it is calm.
    assert burst.first_variant == pytest.approx(2 / 0.0429 / 180, abs=0.02)
    assert normal.first_variant > 0.999


def test_the_learnt_reserve_covers_varying_run_times() -> None:
    result = bursts(policy_options={"mix": "2/2"}, execution={"variation": 0.3})
    assert result.violations <= 0.001
    assert result.goodput >= 0.808


def test_routing_beats_every_baseline() -> None:
    ours = bursts(policy_options={"mix": "2/2"})
    light = bursts(policy_options={"mix": "0/1", "aware": False})
    heavy = bursts(policy_options={"mix": "1/0", "aware": False})
    queue = bursts(policy="single-queue", policy_options={"mix": "2/2"})
    assert light.goodput == pytest.approx(0.7769)
    assert heavy.states[0].violations > 0.3
    assert ours.goodput > max(light.goodput, heavy.goodput, queue.goodput)
    assert queue.violations == 0.0


def test_periodic_bursts_need_no_other_policy() -> None:
    scenario = edge(arrivals=periodic_bursts(), duration_s=560, policy_options={"mix": "2/2"})
    assert report_phases(scenario, simulate(scenario)).violations <= 0.003


def test_overload_is_dropped_on_arrival() -> None:
    # Capacity is 228 requests a second; a short run sees a few more or fewer of them.
    assert overload(60, 300) <= 0.26


@pytest.mark.parametrize("backend", [0, 1])
def test_a_lost_instance_is_made_up_for(backend: int) -> None:
    assert recovery_s(backend) <= 2.0
