"""Signatures that files and transformers tell of themselves, and models that run by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import model_specs
from fermata.deployments.config.served.registry import registry
from fermata.deployments.models.signatures import asked, own_signature, read_signature
from fermata.deployments.specs.served_model import Signature, TensorSpec
from fermata.foundation.errors import ConfigError

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The given buffer is not writable"),
]


class Fusion(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A score of a sentence and four numbers, and how long the sentence is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(10, 4)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, ids: Any, numbers: Any) -> Any:
        words = self.table(ids).mean(1)
        return (words * self.linear(numbers)).sum(1, keepdim=True), (ids > 0).sum(1, keepdim=True)


IDS, NUMBERS = TensorSpec("ids", "INT64", (-1,)), TensorSpec("numbers", "FP32", (4,))


@pytest.fixture
def network() -> Any:
    return Fusion().eval()


def inputs(rows: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "ids": rng.integers(0, 10, (rows, 5)),
        "numbers": rng.standard_normal((rows, 4), dtype=np.float32),
    }


def offline(network: Any) -> list[Any]:
    with torch.inference_mode():
        return [each.numpy() for each in network(*map(torch.from_numpy, inputs().values()))]


def saved(network: Any, path: Path) -> Path:
    example = tuple(map(torch.from_numpy, inputs(2).values()))
    batch = torch.export.Dim("batch", max=4096)
    length = torch.export.Dim("length", max=4096)
    sizes = ({0: batch, 1: length}, {0: batch})
    if path.suffix == ".pt":
        torch.jit.save(torch.jit.trace(network, example), path)
    elif path.suffix == ".pt2":
        torch.export.save(torch.export.export(network, example, dynamic_shapes=sizes), path)
    else:
        _write_onnx(network, path)
    return path


def _write_onnx(network: Any, path: Path) -> None:
    """The same sums by hand: exporters need packages of their own."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    weights = {
        "table": network.table.weight,
        "weight": network.linear.weight.T.contiguous(),
        "bias": network.linear.bias,
    }
    constants = [
        numpy_helper.from_array(each.detach().numpy(), name) for name, each in weights.items()
    ]
    constants.append(numpy_helper.from_array(np.array([1]), "axis"))
    constants.append(numpy_helper.from_array(np.array(0), "nought"))
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("ReduceMean", ["words", "axis"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["numbers", "weight"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["linear"]),
        helper.make_node("Mul", ["mean", "linear"], ["both"]),
        helper.make_node("ReduceSum", ["both", "axis"], ["output_0"], keepdims=1),
        helper.make_node("Greater", ["ids", "nought"], ["there"]),
        helper.make_node("Cast", ["there"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones", "axis"], ["output_1"], keepdims=1),
    ]
    given = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", "n"]),
        helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["b", 4]),
    ]
    found = [
        helper.make_tensor_value_info("output_0", TensorProto.FLOAT, ["b", 1]),
        helper.make_tensor_value_info("output_1", TensorProto.INT64, ["b", 1]),
    ]
    graph = helper.make_graph(nodes, "fusion", given, found, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)


def config(model: str, **more: Any) -> Any:
    variant = {"name": "v", "model": model, "batch_size_max": 4, "latency_ms": [1, 2, 3, 4]}
    return read_config(
        {"applications": [{"name": "own", "slo_ms": 99, "variants": [variant], **more}]}
    )


def load(given: Any) -> Runner:
    (spec,) = model_specs(given, {})
    return load_runner(spec, "cpu", MemoryBudget())


def run(runner: Runner, batch: dict[str, Any]) -> dict[str, Any]:
    rows = len(next(iter(batch.values())))
    items = [{name: each[row] for name, each in batch.items()} for row in range(rows)]
    for item in items:
        runner.check(item)
    return dict(runner.run(runner.stage(items)))


@pytest.mark.parametrize("end", [".onnx", ".pt2", ".pt"])
def test_a_file_of_several_inputs_needs_no_line_of_configuration(
    network: Any, end: str, tmp_path: Path
) -> None:
    path = saved(network, tmp_path / f"fusion{end}")
    given = config(str(path))
    model, _ = registry(given).find("own")
    assert model.inputs == (IDS, NUMBERS)
    assert [each.name for each in model.outputs] == ["output_0", "output_1"]
    found = run(load(given), inputs())
    for name, wanted in zip(("output_0", "output_1"), offline(network), strict=True):
        assert np.allclose(found[name], wanted, atol=1e-5), name
        assert found[name].dtype == wanted.dtype


@pytest.mark.parametrize("end", [".onnx", ".pt2", ".pt"])
def test_inputs_that_a_file_does_not_have_are_refused(
    network: Any, end: str, tmp_path: Path
) -> None:
    path = saved(network, tmp_path / f"fusion{end}")
    wrong = [{"name": "ids", "dtype": "INT64", "shape": [-1]}, {"name": "other", "shape": [4]}]
    with pytest.raises(ConfigError, match="inputs are ids, numbers, and the file says ids, other"):
        load(config(str(path), inputs=wrong))


def test_script_that_tells_nothing_asks_for_its_inputs(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, a: Any, b: Any) -> Any:
            return a + b

    path = tmp_path / "sum.pt"
    torch.jit.save(torch.jit.trace(Sum(), (torch.ones(1, 2), torch.ones(1, 2))), path)
    with pytest.raises(ConfigError, match="type and shape of input 'a'; give inputs"):
        own_signature(str(path))
    both = [{"name": "a", "shape": [2]}, {"name": "b", "shape": [2]}]
    runner = load(config(str(path), inputs=both))
    ones = np.ones((3, 2), np.float32)
    assert run(runner, {"a": ones, "b": ones})["output"].tolist() == [[2.0, 2.0]] * 3


def test_a_broken_file_is_refused_in_one_line(tmp_path: Path) -> None:
    for end, kind in ((".onnx", "ONNX"), (".pt2", "exported program"), (".pt", "TorchScript")):
        path = tmp_path / f"broken{end}"
        path.write_bytes(b"nonsense")
        with pytest.raises(ConfigError, match=kind) as caught:
            own_signature(str(path))
        assert "\n" not in str(caught.value)
    assert read_signature(str(tmp_path / "absent.onnx")) is None
    assert read_signature("digits:small") is None


def test_a_file_of_one_input_keeps_its_name(tmp_path: Path) -> None:
    torch.manual_seed(1)
    path = tmp_path / "one.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Conv2d(3, 2, 3).eval(), torch.ones(1, 3, 8, 8)), path)
    given = config(str(path))
    model, _ = registry(given).find("own")
    assert model.inputs == (TensorSpec("input", "FP32", (3, -1, -1)),)
    runner = load(given)
    assert np.asarray(runner.run(runner.stage([np.ones((3, 8, 8), np.float32)]))).shape[1] == 2


def test_transformers_take_what_their_tokenizers_make() -> None:
    pytest.importorskip("transformers")
    told = own_signature("transformers:bert")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert [each.name for each in told.inputs] == names
    assert [each.optional for each in told.inputs] == [False, True, True]
    assert told.outputs == (TensorSpec("logits", "FP32", (2,)),)
    assert {each.size_max for each in told.inputs} == {512}
    assert isinstance(told, Signature)


def test_variants_that_differ_in_their_inputs_are_refused(network: Any, tmp_path: Path) -> None:
    first = saved(network, tmp_path / "fusion.pt")
    other = tmp_path / "one.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(4, 2).eval(), torch.ones(1, 4)), other)
    variants = [
        {"name": each.stem, "model": str(each), "latency_ms": [1]} for each in (first, other)
    ]
    given = read_config({"applications": [{"name": "own", "slo_ms": 9, "variants": variants}]})
    with pytest.raises(ConfigError, match=r"one takes input FP32.*fusion of own takes ids INT64"):
        registry(given)


def test_a_process_aside_tells_what_is_told_here(
    network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = str(saved(network, tmp_path / "fusion.pt"))
    told = asked(path, "stamp")
    assert told == own_signature(path)
    # Nobody asks twice, even where the file is gone by then.
    Path(path).unlink()
    assert asked(path, "stamp") == told
    with pytest.raises(ConfigError, match="is no TorchScript file"):
        asked(path, "another")
