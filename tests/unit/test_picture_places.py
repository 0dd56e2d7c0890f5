"""Where JPEGs are decoded with `backend.device: auto`: one outcome for all processes."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fermata.deployments.config.deployment import DeploymentConfig, load_config, read_config
from fermata.deployments.config.resolve import model_specs
from fermata.deployments.config.served.picture_places import with_decoding
from fermata.deployments.config.served.registry import registry

FOLDER = Path(__file__).parents[2] / "deployments"
pytestmark = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")


def deployment(
    backend: dict[str, Any] | None = None,
    model: str = "torchvision:resnet50",
    backends: list[dict[str, Any]] | None = None,
    **more: Any,
) -> DeploymentConfig:
    given = {"dtype": "UINT8", "shape": [3, 224, 224], "image": True, **more}
    variant = {"name": "v", "model": model, "alpha_ms": 1, "beta_ms": 1}
    application = {"name": "a", "slo_ms": 50, "input": given, "variants": [variant]}
    told = {"applications": [application], "backend": backend or {}, "backends": backends or []}
    return read_config(told)


def decoded_later(config: DeploymentConfig) -> dict[str, bool]:
    """Whether backends decode the JPEGs of each application, by what all processes have of it."""
    told = read_config(config.model_dump())
    pictures = {spec.name: spec.picture for spec in model_specs(told, {})}
    found: dict[str, bool] = {}
    for each in told.applications:
        model, _ = registry(told).known(each.name)
        found[each.name] = model.decoded_later
        for variant in each.variants:
            assert (pictures[variant.name] is not None) == model.decoded_later
    return found


@pytest.mark.parametrize("name", ["words", "objects", "cascade"])
def test_samples_decode_on_the_gpu_of_a_machine_that_has_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cascade's function lies beside its file.
    monkeypatch.syspath_prepend(FOLDER)
    config = load_config(FOLDER / f"{name}.yaml")
    assert config.backend.device == "auto"
    assert all(decoded_later(with_decoding(config, 1)).values())
    assert not any(decoded_later(with_decoding(config, 0)).values())


@pytest.mark.parametrize("name", ["words", "objects", "cascade", "local", "emulated"])
def test_nothing_changes_without_a_gpu(name: str) -> None:
    config = load_config(FOLDER / f"{name}.yaml")
    assert with_decoding(config, 0) == config


@pytest.mark.parametrize(
    "config",
    [
        deployment(decode="cpu"),
        deployment({"swap": True}),
        deployment({"device": "cpu"}),
        deployment({"count": 3}),
        deployment(model="emulated"),
        deployment(model="my_models:load"),
        deployment(image=False),
        deployment(sized=True, fit="whole", image=True),
        deployment(backends=[{"count": 1}, {"count": 1, "device": "cpu"}]),
        deployment({"device": "cuda"}),
        deployment(decode="gpu"),
    ],
    ids=["CPU is wanted", "swap", "CPU", "too few GPUs", "emulated", "function", "no picture",
         "sized", "one group without", "GPU is named", "GPU is wanted"],
)  # fmt: skip
def test_what_the_file_says_stays(config: DeploymentConfig) -> None:
    assert with_decoding(config, 2) == config


def test_files_of_networks_follow_the_device() -> None:
    for model in ("torchvision:resnet50", "own.onnx", "own.pt2", "own.ts"):
        assert with_decoding(deployment(model=model), 1) == deployment(model=model, decode="gpu")


def test_groups_decode_where_each_has_a_gpu() -> None:
    groups = deployment(backends=[{"count": 1}, {"count": 1, "device": "cuda"}])
    assert decoded_later(groups) == {"a": False}
    assert decoded_later(with_decoding(groups, 2)) == {"a": True}


def test_an_input_that_a_model_knows_stays_as_it_is_otherwise() -> None:
    config = load_config(FOLDER / "words.yaml")
    before, after = registry(config), registry(with_decoding(config, 1))
    for name in ("detect", "orient", "read"):
        one, other = before.known(name)[0], after.known(name)[0]
        assert (one.input, one.image, one.outputs) == (other.input, other.image, other.outputs)


def bound(node: Any) -> list[Any]:
    """All deployments of a Serve application."""
    found = [node]
    for each in (*node._bound_deployment.init_args, *node._bound_deployment.init_kwargs.values()):
        for inner in each if isinstance(each, list) else [each]:
            if hasattr(inner, "_bound_deployment"):
                found += bound(inner)
    return found


# Serve's own modules warn when they are imported.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gpus", [0, 1])
def test_all_processes_are_told_the_same(gpus: int) -> None:
    app = import_module("fermata.deployments.app")
    deployments = bound(app.application_of(load_config(FOLDER / "objects.yaml"), gpus))
    told = {each._bound_deployment.name: each._bound_deployment for each in deployments}
    assert sorted(told) == ["Backend", "ControlPlane", "Frontend"]
    for each in told.values():
        config = read_config(each.init_args[0])
        assert set(decoded_later(config).values()) == {gpus == 1}
    assert told["Backend"].ray_actor_options["num_gpus"] == gpus
    assert len({each.version for each in told.values()}) == 1
