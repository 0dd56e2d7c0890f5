"""Promises of RAMSIS beside its solver at the very load, and beside what is served."""

import pytest

from fermata.profiles.store import load_table
from fermata.router.policies.ramsis.chain.solve import solve
from fermata.router.policies.ramsis.source import Ramsis
from fermata.simulator.reports.report import report
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import Scenario, read_scenario

RESNETS = {"resnet18": 0.6976, "resnet50": 0.7613, "resnet152": 0.7831}
TOLERANCE = 0.005
Tables = dict[str, tuple[list[float], float]]


def resnets(size_max: int) -> Tables:
    """Medians of an H200: flat at first, then linear."""
    profiles = {each.name: each for each in load_table("h200-graph").profiles}
    return {
        name: ([run_ns / 1e6 for run_ns in profiles[name].table_ns(size_max)], accuracy)
        for name, accuracy in RESNETS.items()
    }


CPU: Tables = {
    "small": ([8.0 + 14.0 * size for size in range(1, 17)], 0.58),
    "medium": ([16.0 + 17.0 * size for size in range(1, 17)], 0.73),
    "large": ([25.0 + 45.0 * size for size in range(1, 17)], 0.80),
}
"""About as steep as the paper's image models."""


def scenario_of(
    tables: Tables, slo_ms: float, backends: int, rate_rps: float, **options: object
) -> Scenario:
    variants = [
        {"name": name, "latency_ms": table, "accuracy": accuracy}
        for name, (table, accuracy) in tables.items()
    ]
    return read_scenario(
        {
            "seed": 7,
            "backends": backends,
            "policy": "ramsis",
            "policy_options": options,
            "rate_rps": rate_rps,
            "warmup_s": 1,
            "duration_s": max(2.0, min(20.0, 30_000 / rate_rps)),
            "applications": [{"name": "task", "slo_ms": slo_ms, "variants": variants}],
        }
    )


@pytest.mark.parametrize(
    ("tables", "slo_ms", "backends", "loads"),
    [
        (resnets(64), 25.0, 1, (3000, 8000, 13000, 30000, 40000)),
        (resnets(64), 5.0, 1, (6000, 20000)),
        (resnets(8), 25.0, 2, (10000, 28000, 34000)),
        (resnets(4), 100.0, 1, (3000, 8500, 10000)),
        pytest.param(CPU, 150.0, 8, (150, 300), marks=pytest.mark.long),
        (CPU, 300.0, 8, (200, 450)),
    ],
)
def test_promise_is_what_the_solver_says_and_what_is_seen(
    tables: Tables, slo_ms: float, backends: int, loads: tuple[float, ...]
) -> None:
    for rate_rps in loads:
        scenario = scenario_of(tables, slo_ms, backends, rate_rps)
        driver = Driver(scenario)
        seen = report(scenario, driver.run())
        source = driver.engine.sources[0]
        assert isinstance(source, Ramsis)
        made = source.made[0]
        # Beyond the limit, the luck of the draw counts in full.
        came_rps = seen.offered_rps
        promised = made.ladder.promise(came_rps)
        solved = solve(made.job.problem.at_rate(came_rps))
        where = f"{rate_rps} req/s"
        assert promised.accuracy == pytest.approx(solved.accuracy, abs=TOLERANCE), where
        assert promised.violation == pytest.approx(solved.violation, abs=TOLERANCE), where
        assert promised.accuracy == pytest.approx(seen.accuracy, abs=TOLERANCE), where
        assert promised.violation == pytest.approx(seen.bad_rate, abs=TOLERANCE), where


@pytest.mark.parametrize("reward", ["query", "decision"])
def test_lost_requests_are_counted_one_by_one(reward: str) -> None:
    for rate_rps in (400.0, 470.0, 520.0, 600.0):
        scenario = scenario_of(CPU, 150.0, 8, rate_rps, load_rps=rate_rps, reward=reward)
        driver = Driver(scenario)
        seen = report(scenario, driver.run())
        told = driver.engine.sources[0].figures()
        assert told["promised_accuracy"] == pytest.approx(seen.accuracy, abs=0.01)
        assert told["promised_violation"] == pytest.approx(seen.bad_rate, abs=0.01)


@pytest.mark.parametrize("known", [True, False])
def test_few_are_lost_up_to_the_limit(known: bool) -> None:
    # Batches of four in half the SLO: 8 backends carry 8 * 4 / 64 ms, 500 a second.
    for rate_rps, lost_max in ((400.0, 0.005), (450.0, 0.02), (600.0, 0.2)):
        options = {"load_rps": rate_rps} if known else {}
        scenario = scenario_of(CPU, 150.0, 8, rate_rps, **options)
        assert report(scenario, Driver(scenario).run()).bad_rate < lost_max
