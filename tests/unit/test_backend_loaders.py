"""Whatever the configuration may name, loaded on the CPU: it runs as it does by itself."""

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend.execution.out_of_memory import NoRoomError
from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.execution.tensors import Array, InputError
from fermata.deployments.backend.models.loaders import load_runner, pick_device
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.errors import ConfigError, ModelLoadError

torch = pytest.importorskip("torch")
# torch itself warns that TorchScript, which users still have files of, is not its future.
# Its reader of exported programs warns of its own read-only buffers.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The given buffer is not writable"),
]


class Net(torch.nn.Module):  # type: ignore[name-defined,misc]
    """Three numbers from four."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, batch: Any) -> Any:
        return self.linear(batch).relu()


@pytest.fixture
def network() -> Any:
    return Net().eval()


def spec(model: str, **more: Any) -> ModelSpec:
    given: dict[str, Any] = {"batch_size_max": 4, "input_shape": (4,), "input_dtype": "FP32"}
    return ModelSpec("v", model, **{**given, **more})


def load(given: ModelSpec, budget: MemoryBudget | None = None) -> Runner:
    return load_runner(given, "cpu", budget or MemoryBudget())


def run(runner: Runner, batch: Array) -> Any:
    for item in batch:
        runner.check(item)
    return runner.run(runner.stage(list(batch)))


def batch(size: int = 3) -> Array:
    return np.random.default_rng(0).standard_normal((size, 4), dtype=np.float32)


def wanted(network: Any) -> Array:
    with torch.inference_mode():
        answers: Array = network(torch.from_numpy(batch())).numpy()
    return answers


def script(network: Any, path: Path) -> None:
    torch.jit.trace(network, torch.zeros(2, 4)).save(str(path))


def export(network: Any, path: Path) -> None:
    size = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(network, (torch.zeros(2, 4),), dynamic_shapes=({0: size},))
    torch.export.save(program, path)


def onnx_file(network: Any, path: Path) -> None:
    """Written by hand: torch's own exporter needs packages that serving does not."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    held = {
        "w": network.linear.weight.detach().numpy(),
        "b": network.linear.bias.detach().numpy(),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1),
            helper.make_node("Relu", ["y"], ["scores"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", float32, ["n", 4])],
        [helper.make_tensor_value_info("scores", float32, ["n", 3])],
        [onnx.numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


@pytest.mark.parametrize("end", [".pt", ".ts", ".torchscript"])
def test_torchscript_files_run_as_the_network_does(network: Any, tmp_path: Path, end: str) -> None:
    path = tmp_path / f"net{end}"
    script(network, path)
    np.testing.assert_allclose(run(load(spec(str(path))), batch()), wanted(network), atol=1e-6)


def test_exported_programs_run_as_the_network_does(network: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    export(network, path)
    np.testing.assert_allclose(run(load(spec(str(path))), batch()), wanted(network), atol=1e-6)


def test_onnx_files_run_and_keep_the_names_of_their_outputs(network: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx_file(network, path)
    found = run(load(spec(str(path))), batch())
    assert list(found) == ["scores"]
    np.testing.assert_allclose(found["scores"], wanted(network), atol=1e-6)


@pytest.mark.parametrize(
    ("end", "kind"), [(".pt", "TorchScript"), (".pt2", "exported program"), (".onnx", "ONNX")]
)
@pytest.mark.filterwarnings("ignore")
def test_a_file_that_is_no_model_is_refused_in_one_line(
    tmp_path: Path, end: str, kind: str
) -> None:
    if end == ".onnx":
        pytest.importorskip("onnxruntime")
    path = tmp_path / f"notes{end}"
    path.write_bytes(b"These are notes, not weights.\n" * 20)
    with pytest.raises(ConfigError, match=f"v: .*notes{end} is no {kind}") as caught:
        load(spec(str(path)))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"v: there is no file /nowhere/net\.pt"):
        load(spec("/nowhere/net.pt"))


def test_a_file_needs_to_be_told_its_input(network: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    script(network, path)
    with pytest.raises(ConfigError, match="give input_shape"):
        load(spec(str(path), input_shape=None))


def test_torchvision_by_name_takes_pixels_or_floats() -> None:
    pytest.importorskip("torchvision")
    shape = (3, 64, 64)
    pixels = load(spec("torchvision:resnet18@64", input_shape=shape, input_dtype="UINT8"))
    given = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    answers = np.asarray(run(pixels, given))
    assert answers.shape == (2, 1000)
    assert np.isfinite(answers).all()
    with pytest.raises(InputError, match="takes uint8"):
        pixels.check(given[0].astype(np.float32))
    with pytest.raises(ConfigError, match="resnet1"):
        load(spec("torchvision:resnet1"))


def test_transformers_by_name_takes_token_ids_whatever_they_are() -> None:
    pytest.importorskip("transformers")
    runner = load(spec("transformers:distilbert@8", input_shape=(8,), input_dtype="INT64"))
    ids = np.array([[101, 7592, 102, 0, 0, 0, 0, 0], [10**12, -5, 3, 4, 5, 6, 7, 8]])
    answers = np.asarray(run(runner, ids))
    assert answers.shape == (2, 2)
    assert np.isfinite(answers).all()
    with pytest.raises(ConfigError, match="length must be 1 to 512"):
        load(spec("transformers:distilbert@600"))
    with pytest.raises(ConfigError, match="is no folder, name in its cache, or architecture"):
        load(spec("transformers:no-such-model"))


def test_a_function_by_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_own")
    module.load = lambda: lambda batch: {"twice": 2 * batch}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)
    found = run(load(spec("users_own:load")), batch())
    np.testing.assert_array_equal(found["twice"], 2 * batch())


def similarity(batch: Array) -> Array:
    found: Array = batch @ batch.T
    return found


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            similarity,
            "v: rows of output 'output' have shape [4] in a batch of 4 and [1] in one of 1; leave "
            "the batch out of their shape, or set batch_size_max: 1",
        ),
        (
            lambda batch: {"near": batch, "pairs": np.zeros((len(batch), 2, len(batch)))},
            "v: rows of output 'pairs' have shape [2, 4] in a batch of 4 and [2, 1] in one of 1; "
            "leave the batch out of their shape, or set batch_size_max: 1",
        ),
        (
            lambda batch: batch.mean(axis=0, keepdims=True),
            "v: output 'output' has 1 rows for a batch of 4; the model must return a row for each "
            "request, in order",
        ),
        (
            lambda batch: {"sum": batch.sum()},
            "v: output 'sum' is one value for a batch of 1; the model must return a row for each "
            "request, in order",
        ),
        (
            lambda batch: None,
            "v: output 'output' is one value for a batch of 1; the model must return a row for "
            "each request, in order",
        ),
    ],
)
def test_outputs_that_are_not_of_single_requests_are_refused_at_load(
    monkeypatch: pytest.MonkeyPatch, model: Any, said: str
) -> None:
    module = types.ModuleType("users_own")
    module.load = lambda: model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)
    with pytest.raises(ConfigError) as refusal:
        load(spec("users_own:load"))
    assert str(refusal.value) == said


@pytest.mark.parametrize(
    ("model", "size_max"),
    [
        (similarity, 1),
        (lambda batch: [np.zeros((len(batch), 4))] * len(batch), 4),
        (lambda batch: [np.zeros(place) for place in range(len(batch))], 4),
        (lambda batch: np.zeros((len(batch), 4)), 4),
    ],
)
def test_rows_may_have_any_shape_that_no_batch_changes(
    monkeypatch: pytest.MonkeyPatch, model: Any, size_max: int
) -> None:
    module = types.ModuleType("users_own")
    module.load = lambda: model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)
    assert load(spec("users_own:load", batch_size_max=size_max)).batch_size_max == size_max


def test_a_model_without_room_is_refused_by_name_and_one_with_little_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = 0
    seen: list[int] = []

    def model(batch: Array) -> Array:
        seen.append(len(batch))
        if len(batch) > room:
            raise MemoryError("no room")
        return 2 * batch

    module = types.ModuleType("users_own")
    module.load = lambda: model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)
    budget = MemoryBudget()
    with pytest.raises(NoRoomError, match=r"v does not fit the memory that is left \(no room\)"):
        load(spec("users_own:load"), budget)
    assert not budget.held
    room = 2
    seen.clear()
    np.testing.assert_array_equal(run(load(spec("users_own:load")), batch(2)), 2 * batch(2))
    assert seen == [1, 4, 2], "warm-ups, then the batch"


def test_an_emulated_model_needs_run_times() -> None:
    with pytest.raises(ConfigError, match="needs run times"):
        load(spec("emulated"))
    runner = load(spec("emulated", table_ns=(1000, 2000)))
    assert runner.batch_size_max == 2
    assert np.asarray(run(runner, batch(2))).shape == (2, 1)


def test_an_emulated_model_takes_the_memory_of_its_profile() -> None:
    budget, given = MemoryBudget(4 << 20), spec("emulated", table_ns=(1000,), static_bytes=3 << 20)
    load(given, budget)
    assert budget.held == {"v": 3 << 20}
    with pytest.raises(ConfigError, match="w takes 3 MB beside 3 MB held by v; memory_mb is 4"):
        load(replace(given, name="w"), budget)
    budget.release("v")
    # Buckets of a variant run one model.
    for bucket in (16, 32):
        load(replace(given, name=f"w[{bucket}]", bucket=bucket), budget)
    assert budget.total() == 3 << 20


def test_what_does_not_fit_is_refused_by_name(network: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.jit.trace(torch.nn.Linear(4, 300_000).eval(), torch.zeros(2, 4)).save(str(path))
    budget = MemoryBudget(4 << 20)
    budget.take("other", 1 << 20)
    with pytest.raises(ConfigError, match="v takes 5 MB beside 1 MB held by other; memory_mb is 4"):
        load(spec(str(path)), budget)
    budget.release("other")
    assert budget.held == {}


@pytest.mark.parametrize(
    ("precision", "floats"),
    [
        ("auto", torch.float32),
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_weights_have_the_precision_that_is_asked_for(
    precision: str, floats: Any, network: Any, tmp_path: Path
) -> None:
    script(network, path := tmp_path / "net.pt")
    runner: Any = load(spec(str(path), precision=precision))
    assert {each.dtype for each in runner.model.module.parameters()} == {floats}
    answers = run(runner, batch())
    assert answers.dtype == np.float32
    off = np.abs(answers - wanted(network)).max()
    assert off <= (0.02 if floats != torch.float32 else 1e-6)
    assert (off > 1e-6) == (floats != torch.float32)


def test_a_model_that_is_no_network_keeps_its_precision() -> None:
    given = spec(f"{__name__}:make_doubling", precision="bf16")
    with pytest.raises(ConfigError, match=r"precision=bf16, but .* leave precision out"):
        load(given)


def make_doubling(device: str) -> Any:
    return lambda batch: 2 * batch


def test_devices_are_found_or_refused_by_name() -> None:
    assert pick_device("cpu") == pick_device("emulated") == "cpu"
    if not torch.cuda.is_available():
        assert pick_device("auto") == "cpu"
        with pytest.raises(ConfigError, match="torch sees no GPU"):
            pick_device("cuda")


def test_what_a_model_raises_as_it_is_loaded_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load_broken() -> Any:
        raise RuntimeError("no weights in /data\nlook again")

    mine = types.ModuleType("broken_models")
    mine.load = load_broken  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broken_models", mine)
    told = r"v: broken_models:load failed as it was loaded: RuntimeError: no weights in /data$"
    with pytest.raises(ModelLoadError, match=told):
        load(spec("broken_models:load"))
