"""Scenario files: defaults, copies, the zoo, and options of policies."""

from pathlib import Path

import pytest
from scenarios import APPLICATION, SCENARIO, with_application, with_top

from fermata.foundation.units import ms, seconds
from fermata.router.policies.catalog import POLICIES, read_options
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario, load_scenario, read_scenario


def test_defaults() -> None:
    scenario = read_scenario(SCENARIO)
    assert isinstance(scenario, Scenario)
    assert (scenario.seed, scenario.policy, scenario.dispatch_ns) == (0, "auto", 0)
    assert (scenario.duration_ns, scenario.warmup_ns) == (seconds(30), seconds(2))
    assert scenario.jitter == ((0, 0.0),)
    assert scenario.arrivals.process == "poisson"
    assert scenario.shares == (1.0,)
    assert scenario.faults == ()
    (application,) = scenario.applications
    assert (application.slo_ns, application.hard_limit_ns) == (ms(50), ms(50))
    assert (application.weight, application.newest, application.clients) == (1, False, ())
    assert application.profiles[0].linear_ns == (ms(1), ms(4))


def test_equal_files_give_equal_scenarios() -> None:
    assert read_scenario(with_top(seed=1)) == read_scenario(with_top(seed=1))
    assert read_scenario(with_top(seed=1)) != read_scenario(with_top(seed=2))


def test_copies_are_applications_of_their_own() -> None:
    scenario = read_scenario(with_application(copies=3))
    assert [application.name for application in scenario.applications] == [
        "app-0",
        "app-1",
        "app-2",
    ]
    assert scenario.shares == pytest.approx((1 / 3,) * 3)
    assert [each.name for each in read_scenario(with_application(copies=1)).applications] == ["app"]


def test_popularity() -> None:
    rows = [
        {**APPLICATION, "name": name, "weight": weight} for name, weight in (("a", 1), ("b", 3))
    ]
    assert read_scenario(with_top(applications=rows)).shares == (0.25, 0.75)
    assert read_scenario(with_top(applications=rows, popularity="weights")).shares == (0.25, 0.75)
    some = [{**APPLICATION, "name": "a"}, {**APPLICATION, "name": "b", "weight": 0}]
    assert read_scenario(with_top(applications=some)).shares == (1.0, 0.0)
    plain = [{**APPLICATION, "name": "a"}, {**APPLICATION, "name": "b"}]
    assert read_scenario(with_top(applications=plain, popularity="equal")).shares == (0.5, 0.5)
    zipf = read_scenario(with_top(applications=plain, popularity={"zipf": 2})).shares
    # 1 against 1/4.
    assert zipf == pytest.approx((0.8, 0.2))


@pytest.mark.parametrize(
    ("weights", "popularity", "shares"),
    [
        ((3, 3), "equal", (0.5, 0.5)),
        ((1, 1), {"zipf": 1}, (2 / 3, 1 / 3)),
        ((4, 1), {"zipf": 2}, (0.8, 0.2)),
    ],
)
def test_weights_that_agree_with_the_popularity_are_accepted(
    weights: tuple[float, float], popularity: object, shares: tuple[float, float]
) -> None:
    rows = [
        {**APPLICATION, "name": name, "weight": weight}
        for name, weight in zip("ab", weights, strict=True)
    ]
    found = read_scenario(with_top(applications=rows, popularity=popularity)).shares
    assert found == pytest.approx(shares)


def test_clients_may_have_slos_of_their_own() -> None:
    clients = [{"count": 3, "fps": 10}, {"slo_ms": 80, "priority": 1, "weight": 2}]
    (application,) = read_scenario(with_application(clients=clients, newest=True)).applications
    first, second = application.clients
    assert (first.count, first.slo_ns, first.fps, first.priority) == (3, ms(50), 10, 0)
    assert (second.count, second.slo_ns, second.fps, second.weight) == (1, ms(80), None, 2)
    assert application.slo_ns_max == ms(80)


def test_hard_limit_bounds_the_largest_slo() -> None:
    (application,) = read_scenario(with_application(hard_limit_ms=70)).applications
    assert (application.hard_limit_ns, application.slo_ns_max) == (ms(70), ms(70))


def test_variant_by_table_or_by_profile() -> None:
    rows = [
        {"name": "table", "latency_ms": [5, 6.5], "accuracy": 0.7, "swap_in_ms": 12},
        {"profile": "symphony-1080ti/ResNet50", "name": "mine"},
    ]
    (application,) = read_scenario(with_application(variants=rows)).applications
    table, profile = application.profiles
    assert table.table_ns(8) == [ms(5), ms(6.5)]
    assert (table.accuracy, table.swap_in_ns) == (0.7, ms(12))
    assert (profile.name, profile.latency_ns(1)) == ("mine", ms(2.05 + 5.378))


def test_runs_may_be_held_up_and_inputs_take_their_time() -> None:
    scenario = read_scenario(with_top(execution={"slow_share": 0.02}, fetch_ms=0.07))
    assert (scenario.slow_share, scenario.slow_factor) == (0.02, 2.5)
    assert scenario.fetch_ns == 70_000


def test_jitter_is_a_number_or_steps() -> None:
    assert read_scenario(with_top(execution={"jitter": 0.02})).jitter == ((0, 0.02),)
    steps = [{"jitter": 0.01}, {"from_s": 5, "jitter": 0.1}]
    scenario = read_scenario(with_top(execution={"jitter": steps}))
    assert scenario.jitter == ((0, 0.01), (seconds(5), 0.1))


def test_faults_are_sorted_by_time() -> None:
    rows = [
        {"at_s": 5, "backend": 1, "kind": "crash", "for_s": 2},
        {"at_s": 1, "backend": 0, "kind": "slow", "factor": 3},
    ]
    first, second = read_scenario(with_top(faults=rows)).faults
    assert (first.at_ns, first.kind, first.factor, first.for_ns) == (seconds(1), "slow", 3, None)
    assert (second.backend, second.for_ns) == (1, seconds(2))


@pytest.mark.parametrize(("setting", "count"), [("all", 35), ("gt2", None), ("lt2", None)])
def test_zoo_settings_part_the_table(setting: str, count: int | None) -> None:
    data = {"backends": 64, "rate_rps": 100, "zoo": {"table": "symphony-1080ti"}}
    everyone = read_scenario(data).applications
    data["zoo"] = {"table": "symphony-1080ti", "setting": setting}
    chosen = read_scenario(data).applications
    assert count is None or len(chosen) == count
    for application in everyone:
        alpha_ns, beta_ns = application.profiles[0].linear_ns or (1, 0)
        strong = beta_ns > 2 * alpha_ns
        assert (application in chosen) == (setting == "all" or strong == (setting == "gt2"))
    assert chosen[0].slo_ns == chosen[0].profiles[0].slo_ns


def test_at_rate_and_lasting_change_one_thing() -> None:
    scenario = read_scenario(SCENARIO)
    assert scenario.at_rate(5.0).rate_rps == 5.0
    assert scenario.lasting(seconds(3)).duration_ns == seconds(3)
    assert scenario.at_rate(100.0) == scenario


@pytest.mark.parametrize("name", ["cameras", "resnet50", "zoo"])
def test_samples_are_valid(name: str) -> None:
    path = Path(__file__).parents[2] / "simulator" / "samples" / f"{name}.yaml"
    assert load_scenario(path).duration_ns > 0


def test_accuracy_of_zero_overrides_the_profiles() -> None:
    rows = [{"profile": "h200-graph/resnet50", "accuracy": 0.0}]
    (application,) = read_scenario(with_application(variants=rows)).applications
    assert application.variants[0].accuracy == 0.0


def test_backend_that_hangs_for_ever_keeps_its_requests() -> None:
    hang = [{"at_s": 0.1, "backend": 0, "kind": "hang"}]
    data = with_top(backends=1, duration_s=0.3, warmup_s=0, faults=hang)
    scenario = read_scenario(data)
    result = report(scenario, simulate(scenario))
    # Nobody who waits there for ever has been served in time.
    assert result.bad_rate > 0.5


# Options of policies


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_takes_its_own_options_back(policy: str) -> None:
    entry = POLICIES[policy]
    needed = {name: getattr(entry.defaults, name) for name in entry.needed}
    assert read_options(policy, needed) == entry.defaults


def test_options_in_milliseconds_become_nanoseconds() -> None:
    assert read_options("deferred", {"hold_ms_max": 2.5}).hold_ns_max == ms(2.5)
    assert read_options("timeout", {"wait_ms": 3}).wait_ns == ms(3)
    assert read_options("timeout", {"max_batch_size": 8}).max_batch_size == 8
    assert read_options("partitioned", {"epoch_ms": 500}).epoch_ns == ms(500)
    assert read_options("batch-queues", {"size_weight_ms": 1}).size_weight_ns == ms(1)
    assert read_options("deferred", {"hold": "auto", "auto_load": 1}).auto_load == 1.0
