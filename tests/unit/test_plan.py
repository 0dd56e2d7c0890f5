"""From a configuration to what frontends offer and backends load."""

from pathlib import Path
from typing import Any

import pytest

from fermata.deployments.config.deployment import BackendConfig, load_config, read_config
from fermata.deployments.config.resolve import (
    check_cpus,
    check_gpus,
    gpus_each,
    model_specs,
)
from fermata.deployments.config.served.inputs import input_of
from fermata.deployments.config.served.registry import registry
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"
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


def with_cpus(**top: Any) -> Any:
    application = {"name": "d", "slo_ms": 9, "variants": [DIGITS]}
    frontend = {"processes": 1, **top.pop("frontend", {})}
    return read_config({"applications": [application], "frontend": frontend, **top})


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"backend": {"count": 2}},
            "2 backends, frontends and routers ask Ray for 2.2 CPU cores, and there are 2 here; "
            "set backend.cpus=0.9 or less, or a smaller count",
        ),
        ({"backend": {"cpus": 1.9}}, "for 2.1 CPU cores.*; set backend.cpus=1.8 or less"),
        ({"router": {"cpus": 0.5, "standby": True}}, "for 2.2 CPU cores"),
        (
            {"frontend": {"cpus": 3}},
            "for 4.1 .*set backend.cpus=0, and less for frontend.cpus and router.cpus",
        ),
    ],
)
def test_cpu_cores_that_are_not_there_are_said_to_be_missing(top: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_cpus(with_cpus(**top), 2.0)


def test_as_many_cpu_cores_as_there_are_do() -> None:
    check_cpus(with_cpus(backend={"count": 2, "cpus": 0.9}), 2.0)
    check_cpus(with_cpus(backend={"count": 18, "cpus": 0.1}), 2.0)
    check_cpus(with_cpus(), 2.0)


@pytest.mark.parametrize("file", sorted(DEPLOYMENTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_two_cpu_cores_suffice_for_each_deployment_that_comes_along(file: Path) -> None:
    check_cpus(load_config(file), 2.0)
