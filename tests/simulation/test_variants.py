"""Claims about choosing variants, on a small family and fixed seeds."""

from dataclasses import replace

import pytest

from fermata.router.policies.central.accuracy_hull import concave_hull, fluid_accuracy, reachable
from fermata.router.policies.ramsis.chain.solve import solve
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario, read_scenario
from fermata.simulator.sustained_load import sustained_rps
from fermata.simulator.worker_plan import (
    WorkerGoal,
    fewest_workers,
    only_application,
    options_for,
    promised_fleet,
    simulated_fleet,
    worker_problem,
)

WORKERS = 12
SLO_MS = 150
VARIANTS = [
    {"name": "small", "alpha_ms": 9, "beta_ms": 12, "accuracy": 0.60},
    {"name": "medium", "alpha_ms": 16, "beta_ms": 15, "accuracy": 0.73},
    {"name": "large", "alpha_ms": 35, "beta_ms": 20, "accuracy": 0.80},
    {"name": "huge", "alpha_ms": 70, "beta_ms": 45, "accuracy": 0.84},
]


def scenario(policy: str, rate_rps: float, **values: object) -> Scenario:
    application = {
        "name": "classifier",
        "slo_ms": SLO_MS,
        "hard_limit_ms": values.pop("hard_limit_ms", SLO_MS),
        "variants": VARIANTS,
    }
    return read_scenario(
        {
            "seed": 5,
            "duration_s": 15,
            "warmup_s": 3,
            "backends": WORKERS,
            "policy": policy,
            "rate_rps": rate_rps,
            "applications": [application],
            **values,
        }
    )


def run(policy: str, rate_rps: float, **values: object) -> RunReport:
    one = scenario(policy, rate_rps, **values)
    return report(one, simulate(one))


def fluid(rate_rps: float) -> float:
    tables = [
        [0, *(int(1e6 * (each["alpha_ms"] * size + each["beta_ms"])) for size in range(1, 16))]
        for each in VARIANTS
    ]
    accuracy = [float(each["accuracy"]) for each in VARIANTS]
    points = reachable(tables, accuracy, SLO_MS * 10**6, rate_rps)
    bound = fluid_accuracy(concave_hull(points), WORKERS * 1e9 / rate_rps)
    assert bound is not None
    return bound


@pytest.mark.parametrize("rate_rps", [100, 300, 500, 700])
def test_the_central_queue_comes_near_the_fluid_bound(rate_rps: float) -> None:
    result = run("central-queue", rate_rps)
    assert result.bad_rate <= 0.0005
    assert result.accuracy is not None
    assert result.accuracy > fluid(rate_rps) - 0.02


@pytest.mark.parametrize("rate_rps", [300, 450])
def test_the_central_queue_is_more_accurate_than_tables_and_loads(rate_rps: float) -> None:
    best = run("central-queue", rate_rps).accuracy or 0.0
    tables = run("ramsis", rate_rps, hard_limit_ms=10 * SLO_MS).accuracy or 0.0
    by_load = run("jellyfish-plus", rate_rps, hard_limit_ms=10 * SLO_MS).accuracy or 0.0
    assert best > tables > by_load


@pytest.mark.parametrize(
    ("rate_rps", "dispatch_ms"), [(100, 0), (300, 0), (450, 0), (300, 10), (450, 20)]
)
def test_ramsis_keeps_its_promises(rate_rps: float, dispatch_ms: float) -> None:
    known = scenario(
        "ramsis",
        rate_rps,
        hard_limit_ms=10 * SLO_MS,
        policy_options={"load_rps": rate_rps},
        dispatch_ms=dispatch_ms,
    )
    problem, _ = worker_problem(known, WORKERS, rate_rps, RamsisOptions())
    promise = solve(problem)
    result = report(known, simulate(known))
    # Both are on the safe side: accuracy at least, violations at most.
    assert result.accuracy == pytest.approx(promise.accuracy, abs=0.01)
    assert result.bad_rate <= promise.violation + 0.001


def test_measured_loads_serve_about_as_well_as_known_ones() -> None:
    known = run("ramsis", 300, policy_options={"load_rps": 300})
    seen = run("ramsis", 300)
    assert seen.accuracy == pytest.approx(known.accuracy, abs=0.01)
    assert seen.bad_rate < 0.01


def test_a_burst_of_load_is_survived() -> None:
    steps = {"process": "trace", "rps": [100, 600, 100], "step_s": 5}
    result = run("central-queue", 0.001 + 800 / 3, arrivals=steps)
    assert result.bad_rate < 0.005


def test_overload_sheds_no_more_than_it_must() -> None:
    # The small variant does at most 15 requests in 147 ms on each backend: 1,224 a second.
    result = run("central-queue", 1500)
    assert result.good_rps > 0.88 * 1224


def test_model_switching_profiles_with_its_own_queue() -> None:
    start = replace(scenario("jellyfish-plus", 100), duration_ns=4 * 10**9)
    sustained = sustained_rps(start, 800.0, step_rps=100.0)
    assert sustained == sorted(sustained, reverse=True)
    assert sustained[0] >= 600.0
    chosen = run("model-switching", 300, policy_options={"sustained_rps": sustained})
    assert chosen.bad_rate < 0.02


def test_the_planner_finds_the_smallest_fleet() -> None:
    wish = WorkerGoal(300.0, 0.75, 0.001)
    start = only_application(scenario("central-queue", 300))
    for attempt in (promised_fleet(start, wish, RamsisOptions()), simulated_fleet(start, wish)):
        fleet = fewest_workers(attempt, wish, 64)
        assert fleet is not None
        assert fleet.meets(wish)
        assert not attempt(fleet.workers - 1).meets(wish)
    assert fewest_workers(promised_fleet(start, wish, RamsisOptions()), wish, 2) is None


def test_the_planner_keeps_every_slo_of_an_application() -> None:
    wish = WorkerGoal(300.0, 0.7, 0.001)
    start = only_application(scenario("ramsis", 300))
    tight = RamsisOptions(bins=20, slos_ms=(150.0, 75.0), slo_shares=(1.0, 2.0))
    attempt = promised_fleet(start, wish, tight)
    fleet = fewest_workers(attempt, wish, 64)
    assert fleet is not None
    assert not attempt(fleet.workers - 1).meets(wish)
    assert not attempt(1).meets(wish), "a class has no backend"
    # Two thirds of the load and of the workers are the tight SLO's, which promises less.
    own = round(fleet.workers * 2 / 3)
    alone = solve(worker_problem(start, own, 200.0, RamsisOptions(bins=20), 75 * 10**6)[0])
    assert fleet.accuracy == pytest.approx(alone.accuracy, abs=0.02)
    loose = fewest_workers(promised_fleet(start, wish, RamsisOptions(bins=20)), wish, 64)
    assert loose is not None
    assert loose.workers < fleet.workers


def test_the_planner_compares_what_it_says_whatever_serves_now() -> None:
    wish = WorkerGoal(300.0, 0.75, 0.001)
    start = only_application(scenario("central-queue", 300))
    (application,) = start.applications
    planned = simulated_fleet(start, wish)(8)
    fixed = replace(application, policy="jellyfish-plus", policy_options={"load_rps": 300.0})
    for other in (
        replace(start, applications=(fixed,)),
        replace(start, policy="ramsis", policy_options={"bins": 20}),
        scenario("deferred", 300, autoscaler={"window_s": 5}),
    ):
        assert simulated_fleet(other, wish)(8) == planned
    held = replace(application, policy="central-queue", policy_options={"hold": "eager"})
    assert simulated_fleet(replace(start, applications=(held,)), wish)(8) != planned


def test_each_policy_is_planned_with_its_own_options() -> None:
    start = only_application(scenario("ramsis", 300, policy_options={"bins": 20}))
    assert options_for(start, "ramsis") == {"bins": 20}
    assert options_for(start, "central-queue") == {}
    (application,) = start.applications
    own = replace(application, policy="central-queue", policy_options={"calm": 0.2})
    start = replace(start, applications=(own,))
    assert options_for(start, "ramsis") == {}
    assert options_for(start, "central-queue") == {"calm": 0.2}
