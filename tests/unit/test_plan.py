"""From a configuration to what frontends offer and backends load."""

from typing import Any

import pytest

from fermata.deployments.config.deployment import BackendConfig, read_config
from fermata.deployments.config.resolve import check_gpus, gpus_each, model_specs
from fermata.deployments.config.served.inputs import input_of
from fermata.deployments.config.served.registry import registry
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError

DIGITS = {"name": "small", "model": "digits:small"}


def config(*applications: dict[str, Any]) -> Any:
    return read_config({"applications": list(applications)})


def test_an_embedded_model_knows_its_input_outputs_and_labels() -> None:
    given = config({"name": "digits", "slo_ms": 100, "variants": [DIGITS]})
    model, _ = registry(given).find("digits")
    assert model.input == TensorSpec("input", "FP32", (64,))
    assert model.outputs == (TensorSpec("output", "FP32", (10,)),)
    assert model.labels == tuple("0123456789")
    assert not model.takes_bytes
    (spec,) = model_specs(given, {})
    assert (spec.input_shape, spec.input_dtype) == ((64,), "FP32")


def test_what_the_configuration_says_goes_before_what_the_model_says() -> None:
    given = config(
        {
            "name": "digits",
            "slo_ms": 100,
            "input": {"name": "ink", "shape": [64]},
            "labels": ["nought"],
            "variants": [DIGITS],
        }
    )
    model, _ = registry(given).find("digits")
    assert model.input.name == "ink"
    assert model.labels == ("nought",)


def test_a_variant_that_takes_another_input_is_refused() -> None:
    given = config({"name": "d", "slo_ms": 9, "input": {"shape": [8, 8]}, "variants": [DIGITS]})
    with pytest.raises(ConfigError, match=r"small takes inputs of \[64\], d gives it \[8, 8\]"):
        model_specs(given, {})


@pytest.mark.parametrize(
    ("device", "in_cluster", "gpus"),
    [("cuda", 0, 1), ("auto", 2, 1), ("auto", 1, 0), ("cpu", 8, 0), ("emulated", 8, 0)],
)
def test_a_gpu_is_asked_for_where_each_backend_can_have_one(
    device: str, in_cluster: float, gpus: int
) -> None:
    given = BackendConfig.model_validate({"device": device, "count": 2})
    assert gpus_each(given, in_cluster) == gpus


def test_the_serving_variant_says_what_the_input_is() -> None:
    own = {"name": "own", "model": "my_models:load"}
    variants = [own, DIGITS]
    first = config({"name": "d", "slo_ms": 9, "variants": variants})
    assert input_of(first.applications[0]).shape == (1,)
    chosen = config({"name": "d", "slo_ms": 9, "variants": variants, "serving": "small"})
    assert input_of(chosen.applications[0]).shape == (64,)


@pytest.mark.parametrize(("device", "there"), [("cuda", 0.0), ("cuda", 1.0)])
def test_gpus_that_are_not_there_are_said_to_be_missing(device: str, there: float) -> None:
    backend = BackendConfig.model_validate({"device": device, "count": 2})
    with pytest.raises(ConfigError, match=f"needs 2 GPUs, and there are {there:g} here"):
        check_gpus([backend], there)


def test_who_asks_for_no_gpu_needs_none() -> None:
    for device in ("auto", "cpu", "emulated"):
        check_gpus([BackendConfig.model_validate({"device": device, "count": 2})], 1.0)
    check_gpus([BackendConfig.model_validate({"device": "cuda", "count": 2})], 2.0)
