"""`fermata serve` takes a scenario, and options mean the same in both kinds of files."""

from pathlib import Path

import pytest
from scenarios import APPLICATION, SCENARIO, VARIANT
from test_scaling_options import AUTOSCALER, EPOCHS
from test_serving_file import EMULATED, RATED, write

from fermata.commands.files.workload import load_workload
from fermata.commands.serve import load_served
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.simulator.scenario.scenario import read_scenario


def test_a_scenario_is_served_on_emulated_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        **SCENARIO,
        "policy_options": {"drop_window": 0.5},
        "applications": [{**APPLICATION, "copies": 2, "weight": 3, "serving": "net"}],
    }
    config = load_served(write(tmp_path / "scenario.yaml", told))
    assert "is a scenario" in capsys.readouterr().err
    assert (config.backend.count, config.backend.device) == (2, "emulated")
    assert [each.name for each in config.applications] == ["app-0", "app-1"]
    assert [each.serving for each in config.applications] == ["app-0-net", "app-1-net"]
    again = read_config(config.model_dump())
    router = router_config(again, known_profiles(again))
    assert router.policy_options == {"hold": "deferred", "drop_window": 0.5}
    assert not router.fair_shares
    assert router.applications[0].variants[0].p50_ns[0] == ms(5)


def test_a_zoo_is_served_too(tmp_path: Path) -> None:
    told = {"backends": 4, "rate_rps": 10, "zoo": {"table": "symphony-table4"}}
    config = load_served(write(tmp_path / "scenario.yaml", told))
    again = read_config(config.model_dump())
    assert len(again.applications) == 2
    assert router_config(again, known_profiles(again)).applications[0].variants[0].p50_ns


def test_a_scenario_of_real_models_needs_them_all(tmp_path: Path) -> None:
    real = {**VARIANT, "model": "digits:small"}
    path = write(
        tmp_path / "s.yaml", {**SCENARIO, "applications": [{**APPLICATION, "variants": [real]}]}
    )
    assert load_served(path).backend.device == "auto"
    both = [real, {**VARIANT, "name": "other"}]
    write(path, {**SCENARIO, "applications": [{**APPLICATION, "variants": both}]})
    with pytest.raises(ConfigError, match=r"variant='other': needs `model:`"):
        load_served(path)


@pytest.mark.parametrize("autoscaler", [{}, AUTOSCALER])
@pytest.mark.parametrize("epochs", [{}, EPOCHS])
def test_a_control_loop_has_the_same_options_both_ways(
    tmp_path: Path, autoscaler: dict[str, object], epochs: dict[str, object]
) -> None:
    # An accuracy can be held by a policy that chooses, among variants of known accuracy.
    rated = [{**VARIANT, "accuracy": 0.8}]
    chosen = {**APPLICATION, "policy": "central-queue", "variants": rated}
    scaled = {"applications": [chosen], "autoscaler": autoscaler, "epochs": epochs}
    served = load_served(write(tmp_path / "s.yaml", {**SCENARIO, **scaled}))
    assert served.autoscaler is not None
    assert served.epochs is not None
    for simulated in (
        read_scenario({**SCENARIO, **scaled}),
        load_workload(write(tmp_path / "x.yaml", scaled), RATED),
    ):
        assert simulated.autoscaler == served.autoscaler.options()
        assert simulated.epochs == served.epochs.options(served.backend.memory_mb)


def test_the_smaller_limit_of_memory_holds(tmp_path: Path) -> None:
    told = {
        "applications": [APPLICATION],
        "backend": {"memory_mb": 512},
        "epochs": {"memory_mb": 256},
    }
    found = load_workload(write(tmp_path / "x.yaml", told), RATED)
    assert found.epochs is not None
    assert found.epochs.memory_bytes == 256 << 20


def test_options_for_simulations_alone_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**APPLICATION, "weight": 2, "clients": [{"count": 3}]}
    load_served(write(tmp_path / "x.yaml", {"applications": [row]}))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "fermata: application app: weight, clients are for simulations alone"
    load_served(EMULATED)
    assert capsys.readouterr().err == ""


def test_a_mistake_in_a_scenario_is_said_as_a_scenarios(tmp_path: Path) -> None:
    path = write(tmp_path / "s.yaml", {**SCENARIO, "bakends": 3})
    with pytest.raises(ConfigError, match="bakends=3: unknown key"):
        load_served(path)
