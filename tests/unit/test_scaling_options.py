"""The autoscaler's and the epochs' options: the same in a deployment's file and a scenario's."""

from typing import Any

import pytest

pytest.importorskip("pydantic")
from fermata.autoscaler.options import AutoscalerOptions, EpochOptions
from fermata.autoscaler.rule import RuleOptions
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.scaling import AutoscalerConfig, EpochsConfig
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, seconds
from fermata.simulator.scenario.scaling_spec import AUTOSCALER_KEYS, EPOCH_KEYS
from fermata.simulator.scenario.scenario import Scenario, read_scenario

APPLICATION = {
    "name": "a",
    "slo_ms": 100,
    "policy": "central-queue",
    "variants": [{"name": "a-1", "alpha_ms": 1, "beta_ms": 5, "accuracy": 0.8}],
}
AUTOSCALER: dict[str, object] = {
    "minimum": 3,
    "maximum": 7,
    "window_s": 2.5,
    "startup_s": 120,
    "dry_run": True,
    "to_zero": True,
    "zero_after": 4,
    "bad_rate_max": 0.02,
    "idle": 0.1,
    "idle_max": 0.6,
    "idle_taught": 0.05,
    "forget": 0.9,
    "release_band": 0.1,
    "release_after": 5,
    "cool_down": 0,
    "lead": 3.5,
    "rising": 0.2,
    "accuracy": 0.75,
    "price_per_hour": 2.5,
}
EPOCHS: dict[str, object] = {
    "sub_clusters": 4,
    "every_s": 0.5,
    "rate_max_rps": 5000,
    "memory_mb": 1.5,
    "load_cost_max_ms": 0,
    "memory_weight": 0.5,
    "solve_s": 0.25,
    "move_s": 30,
    "imbalance": 0,
    "plan_file": "plan.json",
}


def deployment(**sections: object) -> DeploymentConfig:
    return read_config({"applications": [APPLICATION], **sections})


def scenario(**sections: object) -> Scenario:
    return read_scenario(
        {"applications": [APPLICATION], "backends": 1, "rate_rps": 1, **sections},
    )


def autoscalers(given: object) -> list[AutoscalerOptions]:
    live, simulated = deployment(autoscaler=given).autoscaler, scenario(autoscaler=given).autoscaler
    assert live is not None
    assert simulated is not None
    return [live.options(), simulated]


def epochs(given: object) -> list[EpochOptions]:
    live, simulated = deployment(epochs=given).epochs, scenario(epochs=given).epochs
    assert live is not None
    assert simulated is not None
    return [live.options(), simulated]


def test_both_files_have_the_same_options() -> None:
    assert set(AutoscalerConfig.model_fields) == set(AUTOSCALER_KEYS) == set(AUTOSCALER)
    assert set(EpochsConfig.model_fields) == set(EPOCH_KEYS) == set(EPOCHS)


def test_both_files_have_the_same_defaults() -> None:
    # A window of ten seconds, and ten to start: a rise is foreseen two windows ahead.
    assert autoscalers({}) == [AutoscalerOptions(RuleOptions(lead=2.0))] * 2
    assert epochs({}) == [EpochOptions()] * 2


@pytest.mark.parametrize("name", AUTOSCALER)
def test_an_option_of_the_autoscaler_means_the_same_in_both(name: str) -> None:
    live, simulated = autoscalers({name: AUTOSCALER[name]})
    assert live == simulated != autoscalers({})[0]


@pytest.mark.parametrize("name", EPOCHS)
def test_an_option_of_epochs_means_the_same_in_both(name: str) -> None:
    live, simulated = epochs({name: EPOCHS[name]})
    assert live == simulated != EpochOptions()


def test_units_are_turned_once() -> None:
    (live, _), (placed, _) = autoscalers(AUTOSCALER), epochs(EPOCHS)
    assert (live.window_ns, live.startup_ns, live.rule.lead) == (seconds(2.5), 120 * SECOND, 3.5)
    assert (placed.every_ns, placed.memory_bytes) == (SECOND // 2, 3 * 2**19)


def test_a_start_up_is_foreseen_unless_a_lead_is_given() -> None:
    for each in autoscalers({"window_s": 5, "startup_s": 20}):
        assert each.rule.lead == 5.0


@pytest.mark.parametrize("null", ["lead", "accuracy"])
def test_an_absent_lead_may_be_written_down(null: str) -> None:
    assert autoscalers({null: None}) == autoscalers({})


@pytest.mark.parametrize("null", ["memory_mb", "load_cost_max_ms"])
def test_an_absent_limit_may_be_written_down(null: str) -> None:
    assert epochs({null: None}) == epochs({})


@pytest.mark.parametrize(
    "given",
    [
        {"minimum": 9, "maximum": 8},
        {"minimum": 0},
        {"minimum": -1},
        {"minimum": 1.5},
        {"maximum": 0},
        {"idle": 0.6},
        {"idle_max": 1},
        {"idle": -0.1},
        {"forget": 1.1},
        {"window_s": 0},
        {"window_s": 1e-9},
        {"window_s": float("inf")},
        {"startup_s": -1},
        {"startup_s": float("nan")},
        {"accuracy": 77},
        {"accuracy": 0.81},
        {"zero_after": 0},
        {"release_after": 0},
        {"cool_down": -1},
        {"lead": -1},
        {"price_per_hour": -1},
        {"dry_run": "perhaps"},
        {"patience": 3},
    ],
)
def test_both_files_refuse_the_same_autoscalers(given: dict[str, Any]) -> None:
    (name,) = [key for key in given if key != "maximum"] or ["maximum"]
    for read in (deployment, scenario):
        with pytest.raises(ConfigError, match=name):
            read(autoscaler=given)


@pytest.mark.parametrize(
    "given",
    [
        {"sub_clusters": 0},
        {"every_s": 0},
        {"every_s": 1e-9},
        {"rate_max_rps": 0},
        {"memory_mb": 0},
        {"memory_mb": -1},
        {"load_cost_max_ms": -1},
        {"memory_weight": -1},
        {"solve_s": 0},
        {"move_s": 0},
        {"imbalance": 1.5},
        {"plan_file": 3},
        {"often": True},
    ],
)
def test_both_files_refuse_the_same_epochs(given: dict[str, Any]) -> None:
    (name,) = given
    for read in (deployment, scenario):
        with pytest.raises(ConfigError, match=name):
            read(epochs=given)


def test_placement_keeps_to_the_smaller_budget() -> None:
    spec = deployment(epochs={"memory_mb": 3}).epochs
    assert spec is not None
    assert spec.options().memory_bytes == 3 * 2**20
    assert spec.options(backend_memory_mb=2).memory_bytes == 2 * 2**20
    assert spec.options(backend_memory_mb=4).memory_bytes == 3 * 2**20
