"""Commands that simulate take a serving file."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from scenarios import APPLICATION, SCENARIO, VARIANT
from test_profile_files import LARGE, SMALL, write_profiles
from typer.testing import CliRunner

from fermata.commands.files.workload import LoadOptions, is_scenario, is_serving_file, load_workload
from fermata.commands.main import app
from fermata.commands.serve import load_served
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds
from fermata.simulator.learning.system import read_system
from fermata.simulator.scenario.scenario import read_scenario

ROOT = Path(__file__).parents[2]
EMULATED = ROOT / "deployments/emulated.yaml"
RATED = LoadOptions(rate_rps=50.0, duration_s=1.0)
CHOOSING = {
    "name": "task",
    "slo_ms": 60,
    "policy": "ramsis",
    "variants": [
        {"name": "small", "model": "m:small", "alpha_ms": 1, "beta_ms": 4, "accuracy": 0.7},
        {"name": "large", "model": "m:large", "alpha_ms": 5, "beta_ms": 9, "accuracy": 0.9},
    ],
}


def write(path: Path, data: object) -> Path:
    path.write_text(yaml.safe_dump(data))
    return path


def fermata(*arguments: object) -> Any:
    """What a command prints as JSON."""
    found = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def refusal(*arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lasting(report: Any) -> Any:
    return {key: value for key, value in report.items() if "wall" not in key}


# Commands


def test_simulate_takes_a_serving_file_and_a_rate(tmp_path: Path) -> None:
    load = ("--rate-rps", 50, "--duration-s", 2)
    found = fermata("simulate", EMULATED, *load)
    by_hand = {
        "backends": 2,
        "rate_rps": 50,
        "duration_s": 2,
        "policy_options": {"hold": "auto"},
        "fair_shares": True,
        "applications": [
            {
                "name": "emulated",
                "slo_ms": 50,
                "variants": [
                    {"name": "emulated-1", "alpha_ms": 1, "beta_ms": 5, "batch_size_max": 64}
                ],
            }
        ],
    }
    assert lasting(found) == lasting(fermata("simulate", write(tmp_path / "s.yaml", by_hand)))
    assert 80 < found["requests"] < 120
    assert found["bad_rate"] == 0.0


def test_options_go_before_a_scenarios_own(tmp_path: Path) -> None:
    path = write(tmp_path / "scenario.yaml", {**SCENARIO, "duration_s": 9})
    load = LoadOptions(250.0, 5, 3.0, "{process: gamma, shape: 0.5}")
    found = load_workload(path, load)
    assert (found.rate_rps, found.backends, found.duration_ns) == (250.0, 5, seconds(3))
    assert (found.arrivals.process, found.arrivals.shape) == ("gamma", 0.5)
    plain = load_workload(path, LoadOptions())
    assert (plain.rate_rps, plain.backends, plain.duration_ns) == (100, 2, seconds(9))
    assert plain == read_scenario({**SCENARIO, "duration_s": 9})


def test_goodput_needs_no_rate() -> None:
    found = fermata("goodput", EMULATED, "--duration-s", 1, "--backends", 1)
    twice = fermata("goodput", EMULATED, "--duration-s", 1)
    assert 400 < found["goodput_rps"] < twice["goodput_rps"]


def test_plan_places_the_applications_of_a_serving_file(tmp_path: Path) -> None:
    rows = [
        {**APPLICATION, "name": name, "weight": weight, "variants": [{**VARIANT, "name": name}]}
        for name, weight in (("a", 3), ("b", 1), ("c", 1), ("d", 1))
    ]
    path = write(tmp_path / "serving.yaml", {"applications": rows})
    found = fermata("plan", path, "--rate-rps", 600, "--sub-clusters", 2)
    assert sorted(found["plan"].values()) == [["a"], ["b", "c", "d"]]
    assert found["rate_imbalance"] == pytest.approx(0.0)
    assert fermata("plan", EMULATED, "--rate-rps", 500)["backends"] == {"0": 1}
    assert "--rate-rps" in refusal("plan", path)
    variants = ROOT / "simulator/samples/variants.yaml"
    found = fermata("plan", variants, "--rate-rps", 100, "--accuracy", 0.77)
    assert found["backends"] == {"0": 4}
    assert "--accuracy=0.9" in refusal("plan", variants, "--rate-rps", 100, "--accuracy", 0.9)


def test_plan_knows_epochs_memory_and_clients(tmp_path: Path) -> None:
    write_profiles(tmp_path / "mine.json", {**SMALL, "static_mb": 600}, LARGE)
    rows = [
        {
            "name": name,
            "slo_ms": 50,
            "clients": [{"count": 4, "fps": 5}],
            "variants": [{"name": name, "model": "x", "profile": "mine.json#digits:small"}],
        }
        for name in ("a", "b")
    ]
    told = {"applications": rows, "backend": {"memory_mb": 1000}, "epochs": {"sub_clusters": 2}}
    path = write(tmp_path / "serving.yaml", told)
    assert len(fermata("plan", path, "--rate-rps", 10)["plan"]) == 2
    told.pop("epochs")
    # Both on one sub-cluster do not fit into a backend's memory.
    assert "hold 1,200 MB" in refusal("plan", write(path, told), "--rate-rps", 10)
    scenario = {"backends": 1, "arrivals": {"process": "periodic"}, "applications": rows}
    found = fermata("plan", write(tmp_path / "s.yaml", scenario), "--memory-mb", 2000)
    assert found["plan"] == {"0": ["a", "b"]}


def test_a_problem_says_its_own_load() -> None:
    path = ROOT / "tests/compat/files/plans/simple.yaml"
    assert "--rate-rps=5.0" in refusal("plan", path, "--rate-rps", 5)


def test_ramsis_plans_and_solves_for_a_serving_file(tmp_path: Path) -> None:
    path = write(tmp_path / "serving.yaml", {"applications": [CHOOSING], "backend": {"count": 3}})
    table = fermata("policy", "ramsis", "solve", path, "--load", 60, "--bins", 8)
    assert (table["workers"], table["variants"]) == (3, ["small", "large"])
    plan = ("policy", "ramsis", "plan", path, "--accuracy", 0.75, "--violation", 0.01)
    found = fermata(*plan, "--rate-rps", 60, "--bins", 8, "--by", "ramsis")
    assert found["plans"]["ramsis"]["workers"] >= 1
    assert "--load" in refusal(*plan, "--by", "ramsis")


def test_rl_trains_and_evaluates_for_a_serving_file(tmp_path: Path) -> None:
    files = ROOT / "tests/compat/files"
    scenario = yaml.safe_load((files / "scenarios/bursts-short.yaml").read_text())
    told = {
        "applications": scenario["applications"],
        "router": {
            "policy": "routing",
            "policy_options": scenario.get("policy_options", {}),
            "fair_shares": False,
        },
        "backend": {"count": scenario["backends"], "device": "emulated"},
    }
    path = write(tmp_path / "serving.yaml", told)
    evaluate = ("policy", "rl", "evaluate", files / "checkpoints/memoryless.json")
    arrivals = json.dumps(scenario["arrivals"])
    found = fermata(*evaluate, path, "--process", arrivals, "--duration-s", scenario["duration_s"])
    assert found == fermata(*evaluate, files / "scenarios/bursts-short.yaml")
    system = read_system(load_workload(path, LoadOptions(arrivals=arrivals)))
    assert system == read_system(read_scenario(scenario))


def test_what_a_serving_file_lacks_is_said_in_one_line(tmp_path: Path) -> None:
    message = refusal("simulate", EMULATED)
    assert "is a serving file" in message
    assert "--rate-rps" in message
    rows = [{"name": "s", "model": "digits:small"}, {"name": "l", "model": "digits:large"}]
    path = write(tmp_path / "x.yaml", {"applications": [{**APPLICATION, "variants": rows}]})
    for verb in ("simulate", "goodput", "plan"):
        message = refusal(verb, path)
        assert "no run times of s, l" in message
        assert "`fermata profile digits:small digits:large -o FILE`" in message
    assert "--arrivals='[1]'" in refusal("simulate", EMULATED, "--arrivals", "[1]")
    assert "--backends=0" in refusal("simulate", EMULATED, "--backends", 0)
    assert "--rate-rps" in refusal("simulate", EMULATED, "--rate-rps", 0)


def test_a_mistake_in_a_serving_file_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.yaml", {"applications": [{**APPLICATION, "slo": 3}]})
    message = refusal("simulate", path, "--rate-rps", 5)
    assert message.startswith(f"{path}: applications[0].slo=3: unknown key")
    path = write(tmp_path / "y.yaml", {"applications": [{**APPLICATION, "slo_ms": 3}]})
    message = refusal("simulate", path, "--rate-rps", 5)
    assert message.startswith(f"{path}: applications[0].slo_ms=3.0: no batch of 1 can meet it")


# Profiles of the command line


@pytest.fixture
def unmeasured(tmp_path: Path) -> Path:
    write_profiles(tmp_path / "mine.json", SMALL, LARGE)
    rows = [{"name": "s", "model": "digits:small"}, {"name": "large", "model": "digits:large"}]
    return write(tmp_path / "x.yaml", {"applications": [{**APPLICATION, "variants": rows}]})


def test_profiles_are_found_by_model_or_variant(unmeasured: Path) -> None:
    mine = f"{unmeasured.parent}/mine.json"
    (found,) = load_workload(unmeasured, replace(RATED, profiles=(mine,))).applications
    assert [each.latency_ns(4) for each in found.profiles] == [ms(5), ms(9)]
    assert [each.accuracy for each in found.variants] == [0.8, 0.9]
    parts = (f"{mine}#digits:small", f"large={mine}#digits:small")
    (found,) = load_workload(unmeasured, replace(RATED, profiles=parts)).applications
    assert [each.accuracy for each in found.variants] == [0.8, 0.8]
    config = load_served(unmeasured, (mine,))
    assert known_profiles(read_config(config.model_dump()))["s"].latency_ns(4) == ms(5)


def test_a_named_variant_gets_the_profile_in_any_case(tmp_path: Path) -> None:
    mine = write_profiles(tmp_path / "one.json", SMALL)
    given = LoadOptions(50.0, profiles=(f"emulated-1={mine}",))
    (found,) = load_workload(EMULATED, given).applications
    assert found.profiles[0].latency_ns(1) == ms(2)
    config = load_served(EMULATED, given.profiles)
    assert read_config(config.model_dump()).applications[0].profiles[0].latency_ns(1) == ms(2)


def test_a_profile_that_nobody_needs_is_refused(unmeasured: Path) -> None:
    other = write_profiles(unmeasured.parent / "other.json", {**SMALL, "name": "other"})
    message = refusal("simulate", unmeasured, "--rate-rps", 5, "--profile", other)
    assert "without run times (s, large)" in message


# What a serving file means in a simulation


def test_a_fleet_that_changes_is_simulated_as_it_is_configured(tmp_path: Path) -> None:
    told = {
        "applications": [APPLICATION],
        "backend": {"count": 3, "memory_mb": 512, "device": "emulated"},
        "autoscaler": {"maximum": 7, "idle": 0.1},
        "epochs": {"sub_clusters": 2, "every_s": 40},
    }
    found = load_workload(write(tmp_path / "x.yaml", told), RATED)
    assert found.autoscaler is not None
    assert (found.autoscaler.rule.maximum, found.autoscaler.rule.idle) == (7, 0.1)
    assert found.autoscaler.startup_ns == seconds(10)
    assert found.epochs is not None
    assert (found.epochs.sub_clusters, found.epochs.memory_bytes) == (2, 512 << 20)
    assert (found.backends, found.policy_options) == (3, {"hold": "deferred"})


@pytest.mark.parametrize(
    ("autoscaler", "hold"),
    [
        (None, "auto"),
        ({"maximum": 7}, "deferred"),
        ({"maximum": 7, "dry_run": False}, "deferred"),
        # It advises and changes nothing, the time of answers included.
        ({"maximum": 7, "dry_run": True}, "auto"),
    ],
)
def test_requests_are_held_for_a_fleet_that_is_scaled(
    tmp_path: Path, autoscaler: dict[str, object] | None, hold: str
) -> None:
    variant = {**VARIANT, "name": "own-net", "model": "emulated"}
    own = {**APPLICATION, "name": "own", "policy": "deferred", "variants": [variant]}
    told: dict[str, object] = {
        "applications": [{**APPLICATION, "variants": [{**VARIANT, "model": "emulated"}]}, own],
        "backend": {"count": 3, "device": "emulated"},
    }
    if autoscaler is not None:
        told["autoscaler"] = autoscaler
    simulated = load_workload(write(tmp_path / "x.yaml", told), RATED)
    config = read_config(told)
    served = router_config(config, known_profiles(config))
    for found in (simulated, served):
        assert found.policy_options == {"hold": hold}
        assert found.applications[-1].policy_options == {"hold": hold}


def test_versions_are_applications_of_their_own(tmp_path: Path) -> None:
    rows = [
        {**APPLICATION, "version": version, "variants": [{**VARIANT, "name": f"v{version}"}]}
        for version in (1, 2)
    ]
    found = load_workload(write(tmp_path / "x.yaml", {"applications": rows}), RATED)
    assert [each.name for each in found.applications] == ["app@1", "app@2"]
    assert found.shares == (0.5, 0.5)
    pasted = read_scenario({**SCENARIO, "applications": rows})
    assert [each.name for each in pasted.applications] == ["app@1", "app@2"]


def test_newest_needs_streams_to_mean_anything(tmp_path: Path) -> None:
    path = write(tmp_path / "x.yaml", {"applications": [{**APPLICATION, "newest": True}]})
    assert not load_workload(path, RATED).applications[0].newest
    row = {**APPLICATION, "newest": True, "clients": [{"count": 2, "fps": 30}]}
    path = write(tmp_path / "x.yaml", {"applications": [row]})
    assert load_workload(path, RATED).applications[0].newest
    # Cameras know their own rate.
    found = load_workload(path, LoadOptions(arrivals="periodic"))
    assert (found.rate_rps, found.knows_rate()) == (None, True)


def test_swapped_models_take_their_load_time_where_nothing_is_known(tmp_path: Path) -> None:
    write_profiles(tmp_path / "mine.json", SMALL)
    row = {**APPLICATION, "variants": [{"name": "s", "profile": "mine.json"}]}
    told = {"applications": [row], "backend": {"swap": True, "device": "emulated"}}
    path = write(tmp_path / "x.yaml", told)
    (application,) = load_workload(path, RATED).applications
    assert application.variants[0].swap_in_ns == ms(30)
    assert fermata("simulate", path, "--rate-rps", 20, "--duration-s", 1)["bad_rate"] == 0.0


@pytest.mark.parametrize("swap_in", [{}, {"swap_in_ms": 0}, {"swap_in_ms": 3}])
def test_models_that_are_swapped_are_served_whatever_is_known(
    tmp_path: Path, swap_in: dict[str, object]
) -> None:
    row = {**APPLICATION, "variants": [{**VARIANT, **swap_in}]}
    told = {"applications": [row], "backend": {"swap": True, "device": "emulated"}}
    served = write(tmp_path / "x.yaml", told)
    scenario = write(tmp_path / "s.yaml", {**SCENARIO, "swap": True, "applications": [row]})
    for path in (served, scenario):
        load = ("--rate-rps", 20, "--duration-s", 1)
        assert fermata("simulate", path, *load)["bad_rate"] == 0.0
    config = read_config(told)
    (application,) = router_config(config, known_profiles(config)).applications
    assert application.variants[0].swap_in_ns


def test_functions_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "own_penalty.py").write_text("def late(share):\n    return share\n")
    row = {**CHOOSING, "policy": "sneakpeek", "policy_options": {"penalty": "own_penalty:late"}}
    path = write(tmp_path / "x.yaml", {"applications": [row]})
    for _ in range(2):
        assert fermata("simulate", path, "--rate-rps", 20, "--duration-s", 1)["requests"] > 0
    assert sys.path.count(str(tmp_path)) == 1


def test_a_sneakpeek_file_votes_in_simulations(tmp_path: Path) -> None:
    files = ROOT / "tests/compat/files"
    recall = [0.9, 0.7, 0.65]
    variant = {**VARIANT, "accuracy": 0.7, "recall": recall}
    classes = {"sneakpeek": str(files / "sneakpeek/three-classes.npz")}
    given = {"dtype": "FP32", "shape": [4]}
    row = {**APPLICATION, "classes": classes, "variants": [variant], "input": given}
    (found,) = load_workload(
        write(tmp_path / "x.yaml", {"applications": [row]}), RATED
    ).applications
    assert found.classes is not None
    assert found.classes.peek is not None
    assert len(found.classes.peek.confusion) == 3
    assert found.content is not None
    assert found.content.votes > 0
    with pytest.raises(ConfigError, match="read by `fermata` commands alone"):
        read_scenario({**SCENARIO, "applications": [row]})


# Kinds of files


@pytest.mark.parametrize(
    ("data", "serving", "scenario"),
    [
        ({"applications": []}, True, False),
        ({"applications": [], "backend": {}}, True, False),
        ({"applications": [], "autoscaler": {}, "epochs": {}}, True, False),
        ({"applications": [], "router": {}, "backend": {}, "policy": "eager"}, True, False),
        ({"applications": [], "backends": 2}, False, True),
        ({"applications": [], "backend": 2, "seed": 1, "rate_rps": 5}, False, True),
        ({"zoo": {"table": "x"}, "rate_rps": 3}, False, True),
        ({"applications": [], "backens": 2}, False, False),
        (None, False, False),
        ([1], False, False),
    ],
)
def test_files_are_told_apart_by_their_keys(data: object, serving: bool, scenario: bool) -> None:
    assert (is_serving_file(data), is_scenario(data)) == (serving, scenario)
