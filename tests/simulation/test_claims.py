"""The README's claims at reduced size; `benchmarks/` measures them in full."""

import pytest

from benchmarks.goodput import burst_ratio, goodput, hold_latency, recovery_s, worst_camera
from benchmarks.workloads import RESNET50, fig10, table4, zoo
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario


def figures(scenario: Scenario) -> RunReport:
    return report(scenario, simulate(scenario))


def test_table_4_beats_the_published_scheduler() -> None:
    offered = {"rate_rps": 5_400, "duration_s": 10}
    ours = figures(table4(RESNET50, 25.0, **offered))
    published = figures(table4(RESNET50, 25.0, policy="published", **offered))
    assert ours.bad_rate < 0.01 < published.bad_rate


def test_the_zoo_is_served_at_the_goal_rate() -> None:
    assert figures(zoo("symphony-1080ti", "lt2", rate_rps=3_900, duration_s=10)).bad_rate < 0.01


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_idle_fraction_tells_the_spare_capacity(share: float) -> None:
    result = figures(fig10(rate_rps=share * 10_650, duration_s=4))
    assert abs(result.idle_fraction - (1 - share)) <= 0.03


def test_goodput_stays_flat_at_twice_the_load() -> None:
    assert figures(fig10(rate_rps=2 * 10_650, duration_s=4)).good_rps >= 0.98 * 10_650


def test_margins_are_learnt_when_jitter_rises() -> None:
    assert recovery_s() <= 10


def test_holds_auto_answers_as_fast_as_eager_when_idle() -> None:
    assert hold_latency(0.1, seconds=3) <= 1.2


@pytest.mark.long
def test_bursts_are_served_as_well_as_by_a_work_conserving_scheduler() -> None:
    assert burst_ratio(50, seconds=3) >= 0.97


@pytest.mark.parametrize("phase", ["locked", "random"])
def test_no_camera_starves(phase: str) -> None:
    assert worst_camera(phase, seconds=15) >= 0.8


def test_goodput_search_is_repeatable_and_brackets_the_limit() -> None:
    first = goodput(lambda: table4(RESNET50, 25.0, duration_s=3))
    assert first == goodput(lambda: table4(RESNET50, 25.0, duration_s=3))
    assert figures(table4(RESNET50, 25.0, rate_rps=1.05 * first, duration_s=3)).bad_rate > 0.01


def test_a_crash_costs_only_what_it_must() -> None:
    fault = {"at_s": 2, "backend": 0, "kind": "crash", "for_s": 2}
    result = figures(table4(RESNET50, 25.0, rate_rps=4_000, duration_s=6, faults=[fault]))
    assert result.bad_rate < 0.005


def test_a_slow_backend_is_planned_with_its_own_factor() -> None:
    fault = {"at_s": 1, "backend": 3, "kind": "slow", "factor": 1.3}
    result = figures(table4(RESNET50, 25.0, rate_rps=4_000, duration_s=8, faults=[fault]))
    assert result.bad_rate < 0.01
