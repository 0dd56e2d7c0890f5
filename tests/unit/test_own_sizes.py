"""One function or file for all input sizes: named with @SIZE, its weights held once."""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fermata.commands.main import app
from fermata.deployments.backend.models.loaders import load_runner, open_variant
from fermata.deployments.backend.models.measured_model import open_measured
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.backend.models.profiling import digest_of, is_lasting
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import model_specs
from fermata.deployments.config.served.registry import registry
from fermata.deployments.models.catalog import open_model, parse_name
from fermata.deployments.models.signatures import read_signature
from fermata.deployments.models.sizes import split_size
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.errors import ConfigError

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FUNCTIONS = '''
import numpy as np
made = []

def load(device):
    """For any size."""
    made.append(device)
    class Net:
        def __call__(self, batch):
            return {"boxes": batch.reshape(len(batch), -1)[:, :8].reshape(-1, 2, 4)}
    return Net()

def by_size(device, *, size):
    made.append(size)
    return lambda batch: batch.sum(axis=(1, 2, 3)) + 0 * size

def network(device):
    import torch
    from fermata.deployments.models.model import Card, TorchModel
    made.append("network")
    return TorchModel(Card("own", (3, -1, -1), "float32", (4,)), torch.nn.Conv2d(3, 4, 3))

def only_size(size=64):
    return lambda batch: batch.mean(axis=(1, 2, 3)) + size
'''


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "sized_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("sized_functions", None)
    yield __import__("sized_functions")
    sys.modules.pop("sized_functions", None)


def onnx_file(folder: Path, *sides: object) -> Path:
    """A network that answers with its pixels, of sides that vary unless they are numbers."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    shape = ["n", 3, *(sides or ("h", "w"))]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["pixels"], ["same"])],
        "own",
        [helper.make_tensor_value_info("pixels", kind, shape)],
        [helper.make_tensor_value_info("same", kind, shape)],
    )
    file = folder / "own.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, file)
    return file


def script_file(folder: Path) -> Path:
    file = folder / "own.pt"
    torch.jit.script(torch.nn.Conv2d(3, 4, 3)).save(str(file))
    return file


def profiled(*arguments: str) -> list[dict[str, Any]]:
    options = ["--batches", "1,2", "--budget-ms", "20", "--device", "cpu", "--json"]
    ran = CliRunner().invoke(app, ["profile", *arguments, *options])
    assert ran.exit_code == 0, ran.output
    rows: list[dict[str, Any]] = json.loads(ran.stdout)["profiles"]
    return rows


def test_a_size_stands_after_the_last_at() -> None:
    assert split_size("my:load@160") == ("my:load", 160)
    assert split_size("/data@v2/own.onnx@0320") == ("/data@v2/own.onnx", 320)
    for plain in ("my:load", "own@v2.onnx", "own.onnx@0", "own.onnx@", "@160", "a:b@1234567"):
        assert split_size(plain) == (plain, None)
    assert parse_name("own.onnx@160").size == 160


def test_profile_takes_functions_and_files_at_sizes(functions: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "own.json")
    for model in ("sized_functions:load", "own.onnx", "own.pt"):
        onnx_file(tmp_path)
        script_file(tmp_path)
        rows = profiled(model, "--input-sizes", "160,320", "-o", out)
        assert [row["name"] for row in rows] == [f"{model}@160", f"{model}@320"]
        assert [row["input"] for row in rows] == ["3x160", "3x320"]


def test_a_function_may_take_its_size(functions: Any) -> None:
    model = open_model("sized_functions:by_size@8")
    assert functions.made == [8]
    assert model.card.input_shape == (3, 8, 8)
    assert model(np.ones((1, 3, 8, 8), np.float32)).tolist() == [192]
    assert open_model("sized_functions:only_size@7")(np.zeros((1, 3, 7, 7), np.float32)) == 7
    with pytest.raises(ConfigError, match="takes a size; name it, as in sized_functions:by_size@"):
        open_model("sized_functions:by_size")
    with pytest.raises(ConfigError, match="its pictures are 9x9, not 8x8"):
        open_model("sized_functions:load@8", "cpu", (3, 9, 9))


def test_sizes_share_their_weights(functions: Any, tmp_path: Path) -> None:
    small, large = (open_model(f"sized_functions:load@{side}") for side in (32, 64))
    assert functions.made == ["cpu"]
    assert small.card.input_shape != large.card.input_shape
    del small, large
    gc.collect()
    # Nobody holds it any more.
    open_model("sized_functions:load@32")
    assert len(functions.made) == 2
    first, second = (open_model(f"sized_functions:network@{side}") for side in (32, 64))
    assert functions.made[2:] == ["network"]
    assert first.module is second.module
    for file, attribute in ((onnx_file(tmp_path), "session"), (script_file(tmp_path), "module")):
        one, other = (
            open_variant(
                ModelSpec(f"v{side}", f"{file}@{side}", input_shape=(3, side, side)), "cpu"
            )
            for side in (16, 24)
        )
        assert getattr(one, attribute) is getattr(other, attribute)


def test_variants_of_another_precision_have_weights_of_their_own(tmp_path: Path) -> None:
    file = script_file(tmp_path)
    runners = {
        precision: load_runner(
            ModelSpec(precision, str(file), 2, (3, 8, 8), precision=precision),
            "cpu",
            MemoryBudget(),
        )
        for precision in ("fp32", "bf16")
    }
    frame = np.random.default_rng(0).standard_normal((3, 8, 8), dtype=np.float32)
    exact, rounded = (each.run(each.stage([frame]))[0] for each in runners.values())
    assert 0 < np.abs(np.asarray(exact) - np.asarray(rounded)).max() < 0.1


def test_shared_weights_count_once(tmp_path: Path) -> None:
    file = script_file(tmp_path)
    budget = MemoryBudget()
    runners = [
        load_runner(ModelSpec(f"v{side}", f"{file}@{side}", 2, (3, side, side)), "cpu", budget)
        for side in (16, 24)
    ]
    # Four kernels of 3 x 3 x 3, and four biases.
    weights = 4 * (4 * 27 + 4)
    assert budget.total() == weights
    budget.release("v16")
    assert budget.total() == weights
    budget.release("v24")
    assert budget.total() == 0
    assert len(runners) == 2


def test_a_file_of_one_size_is_refused_at_another(tmp_path: Path) -> None:
    file = onnx_file(tmp_path, 64, 64)
    with pytest.raises(ConfigError, match="its pictures are 64x64, not 32x32; export it"):
        open_variant(ModelSpec("v", f"{file}@32", input_shape=(3, 32, 32)), "cpu")
    found = read_signature(f"{file}@64")
    assert found is not None
    assert found.inputs[0].shape == (3, 64, 64)
    with pytest.raises(ConfigError, match="not 32x32"):
        read_signature(f"{file}@32")
    with pytest.raises(ConfigError, match="takes inputs of any size; give --input-sizes"):
        open_measured(str(onnx_file(tmp_path)), "cpu")


def sized(file: Path, **given: object) -> Any:
    options = {"shape": [3, 64, 64], "image": True, "fit": "whole", "sized": True, **given}
    variants = [{"name": f"v{side}", "model": f"{file}@{side}"} for side in (32, 64)]
    return read_config(
        {"applications": [{"name": "own", "slo_ms": 99, "input": options, "variants": variants}]}
    )


def test_frames_are_fitted_and_normalised_for_each_size(tmp_path: Path) -> None:
    config = sized(onnx_file(tmp_path), mean=[0.5, 0, 0], std=[0.5, 1, 1], dtype="FP32")
    (served, _), *_ = registry(config).every()
    assert served.sides == {"v32": 32, "v64": 64}
    frame = np.full((30, 60, 3), 255, np.uint8)
    for spec, side in zip(model_specs(config, {}), (32, 64), strict=True):
        runner = load_runner(spec, "cpu", MemoryBudget())
        runner.check(frame)
        (same,) = runner.run(runner.stage([frame]))["same"]
        assert same.shape == (3, side, side)
        assert same.dtype == np.float32
        # White is (1 - 0.5) / 0.5, and 1; what is below the frame is black, -1 and 0.
        assert same[:, 0, 0].tolist() == pytest.approx([1, 1, 1])
        assert same[:, -1, 0].tolist() == pytest.approx([-1, 0, 0])


def test_sized_inputs_of_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs image: true, dtype: UINT8 or floating-point"):
        model_specs(sized(onnx_file(tmp_path), dtype="INT32"), {})


def test_run_times_of_a_sized_file_are_kept_until_it_changes(tmp_path: Path) -> None:
    file = onnx_file(tmp_path)
    spec = ModelSpec("v", f"{file}@32", input_shape=(3, 32, 32))
    assert is_lasting(spec)
    before = digest_of(spec, "cpu")
    file.write_bytes(file.read_bytes() + b"\0")
    assert digest_of(spec, "cpu") != before
