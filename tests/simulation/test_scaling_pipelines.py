"""The autoscaler with pipelines: queries count, not the requests that their stages make."""

from typing import Any

import pytest

from fermata.foundation.errors import ConfigError
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import RunLog, simulate
from fermata.simulator.scenario.scenario import Scenario, read_scenario

DURATION_S = 120
BAD_RATE_MAX = 0.01
CHANGES_MAX = 3


def scene(backends: int, *rates_rps: float, **changes: Any) -> dict[str, Any]:
    """Detect, then classify five crops each, at these rates for equal parts of the time."""
    return {
        "seed": 3,
        "backends": backends,
        "duration_s": DURATION_S,
        "warmup_s": 0,
        "arrivals": {
            "process": "trace",
            "step_s": DURATION_S / len(rates_rps),
            "rps": list(rates_rps),
        },
        "execution": {"jitter": 0.03},
        "applications": [
            {
                "name": "detect",
                "slo_ms": 150,
                "variants": [{"name": "d", "alpha_ms": 4, "beta_ms": 10}],
            },
            {
                "name": "classify",
                "slo_ms": 150,
                "variants": [{"name": "c", "alpha_ms": 0.8, "beta_ms": 5}],
            },
        ],
        "pipelines": [
            {
                "name": "objects",
                "slo_ms": 150,
                "stages": [
                    {"application": "detect"},
                    {"application": "classify", "fan_out": {"mean": 5}},
                ],
            }
        ],
        "autoscaler": {"window_s": 5, "startup_s": 3, "maximum": 32},
        **changes,
    }


def played(*given: Any, **changes: Any) -> tuple[RunReport, RunLog]:
    scenario = read_scenario(scene(*given, **changes))
    log = simulate(scenario)
    return report(scenario, log), log


def targets(log: RunLog) -> list[int]:
    return [each.advice.target for each in log.windows]


def changes(log: RunLog) -> int:
    return sum(each.advice.change != 0 for each in log.windows)


@pytest.mark.parametrize("backends", [2, 3, 8])
def test_a_constant_load_settles_and_is_served(backends: int) -> None:
    told, log = played(backends, 150.0)
    assert told.worst_bad_rate <= BAD_RATE_MAX
    assert changes(log) <= CHANGES_MAX
    # From wherever it begins, as many are found.
    assert targets(log)[-1] == 3


def test_an_overload_is_seen_though_the_door_refuses_it() -> None:
    told, log = played(1, 200.0)
    # Half of the queries were refused, and stages were busy for the others alone.
    assert targets(log)[0] == 3
    assert changes(log) == 1
    assert told.worst_bad_rate <= 0.05


def test_stages_that_choose_variants_settle_too() -> None:
    pairs = (("d", 4, 10, 0.9), ("d-quick", 2, 6, 0.8)), (("c", 0.8, 5, 0.9), ("c-q", 0.4, 3, 0.8))
    given = scene(6, 150.0)
    for application, pair in zip(given["applications"], pairs, strict=True):
        application["variants"] = [
            {"name": name, "alpha_ms": alpha, "beta_ms": beta, "accuracy": accuracy}
            for name, alpha, beta, accuracy in pair
        ]
    scenario = read_scenario(given)
    log = simulate(scenario)
    assert report(scenario, log).worst_bad_rate <= BAD_RATE_MAX
    assert changes(log) <= CHANGES_MAX
    assert targets(log)[-1] < 6


def test_a_load_that_doubles_and_falls_again_is_followed() -> None:
    _, log = played(3, 100.0, 200.0, 25.0)
    found = targets(log)
    third = len(found) // 3
    low, high, last = found[third - 1], found[2 * third - 1], found[-1]
    assert low < high
    assert last < low


def test_queries_that_the_door_refuses_count_as_bad() -> None:
    _, log = played(1, 300.0, duration_s=5, autoscaler={"window_s": 5, "startup_s": 60})
    (window,) = [each.window for each in log.windows][:1]
    queries = len(log.arrivals.at_ns)
    assert 0.8 * queries <= window.requests <= queries
    assert window.bad_rate > 0.4


def test_each_query_counts_once() -> None:
    _, log = played(8, 100.0, duration_s=10)
    ended = sum(each.window.requests for each in log.windows)
    assert 0.9 * len(log.arrivals.at_ns) <= ended <= len(log.arrivals.at_ns)


def test_direct_requests_of_a_stage_count_beside_queries() -> None:
    given = scene(8, 100.0, duration_s=10)
    given["applications"][1]["weight"] = 1.0
    scenario: Scenario = read_scenario(given)
    log = simulate(scenario)
    (last,) = {len(each.window.ended.requests) for each in log.windows}
    assert last == 3
    ended = sum(each.window.requests for each in log.windows)
    assert 0.9 * len(log.arrivals.at_ns) <= ended <= len(log.arrivals.at_ns)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": {"sub_clusters": 2}}, "does not go with pipelines"),
        ({"pipeline_rule": "inferline"}, "gives stages backends of their own"),
    ],
)
def test_what_cannot_be_scaled_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_scenario(scene(4, 100.0, **changes))
