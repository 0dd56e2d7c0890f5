"""Checks by hand the estimate of what any rule could serve where queries come at random."""

from dataclasses import replace
from math import pi, sqrt
from typing import Any

import pytest

from fermata.router.core.queries.rooms import load_of
from fermata.simulator.pipelines.attainable import attainable_rps
from fermata.simulator.pipelines.bound import bound_rps
from fermata.simulator.scenario.scenario import Scenario, read_scenario

LOST = 0.01


def scenario(
    *times: tuple[float, float], slo_ms: float = 50, backends: int = 4, fan_out: Any = 1
) -> Scenario:
    """A chain of stages, by what one request more costs and what a batch costs, in milliseconds."""
    applications = [
        {
            "name": f"stage-{number}",
            "slo_ms": slo_ms,
            "variants": [{"name": f"model-{number}", "alpha_ms": alpha_ms, "beta_ms": beta_ms}],
        }
        for number, (alpha_ms, beta_ms) in enumerate(times)
    ]
    stages: list[dict[str, Any]] = [{"application": each["name"]} for each in applications]
    for stage in stages[1:]:
        stage["fan_out"] = fan_out
    return read_scenario(
        {
            "seed": 1,
            "duration_s": 1,
            "rate_rps": 1,
            "backends": backends,
            "applications": applications,
            "pipelines": [{"name": "chain", "slo_ms": slo_ms, "stages": stages}],
        }
    )


def part(found: Scenario, lost: float = LOST) -> float:
    """Over the bound."""
    return attainable_rps(found, lost) / bound_rps(found)


def test_queries_that_come_at_random_wait_for_each_other() -> None:
    """Batches save nothing. Four backends have 10 ms of work done in 2.5 ms, and after its own run
    a query has 40 ms to wait: for 16 others."""
    found = scenario((10.0, 0.0))
    assert bound_rps(found) == pytest.approx(400.0)
    assert attainable_rps(found, LOST) == pytest.approx(400.0 * load_of(16.0, LOST), rel=5e-3)


def test_jitter_takes_time_of_backends() -> None:
    """A deviation of 0.1 makes half-normal runs 8 % longer, so that fewer can be done, and wait."""
    found = replace(scenario((10.0, 0.0)), jitter=((0, 0.1),))
    assert bound_rps(found) == pytest.approx(400.0)
    slower = 1.0 + 0.1 * sqrt(2.0 / pi)
    lumps = 4.0 * (50.0 - 10.0 * slower) / (10.0 * slower)
    expected = 400.0 / slower * load_of(lumps, LOST)
    assert attainable_rps(found, LOST) == pytest.approx(expected, rel=5e-3)


def test_batches_take_time_to_fill() -> None:
    """A batch of n takes 9 + n ms. The bound has 11, 550 a second. But at 250 a second 3 fill in 8
    ms, and end after 20; more would end late, and fewer cost more. What waits leaves still less."""
    found = scenario((1.0, 9.0), slo_ms=20, backends=1)
    assert bound_rps(found) == pytest.approx(550.0)
    assert 0.0 < attainable_rps(found, LOST) < 250.0


def test_more_backends_and_more_losses_leave_less_to_chance() -> None:
    few, many = (scenario((1.0, 5.0), (1.0, 5.0), backends=each) for each in (4, 40))
    assert part(few) < part(few, lost=0.1) < part(many, lost=0.1) <= 1.0
    assert part(few) < part(many)


def test_fan_outs_that_differ_leave_less() -> None:
    fixed, drawn = (
        scenario((1.0, 5.0), (1.0, 5.0), fan_out={"mean": 4, "law": law})
        for law in ("fixed", "geometric")
    )
    assert bound_rps(fixed) == bound_rps(drawn)
    assert part(drawn) < 0.95 * part(fixed)


def test_nothing_is_attainable_where_no_batch_ends_in_time() -> None:
    assert attainable_rps(scenario((1.0, 30.0), (1.0, 30.0)), LOST) == 0.0
