"""ONNX files as torch networks: converted, and compared with onnxruntime before they serve."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torchvision
from onnx import TensorProto, helper, numpy_helper

from fermata.deployments.backend.execution.cuda.recording import record
from fermata.deployments.backend.execution.onnx_models import OnnxModel, on_device, open_onnx_model
from fermata.deployments.backend.execution.runners.runner import innermost
from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.models.detector import _weights_path
from fermata.deployments.models.model import Card, TorchModel
from fermata.deployments.models.named_network import NamedNetwork
from fermata.deployments.models.onnx_files.folding import fold_convolutions
from fermata.deployments.models.onnx_files.graph import load_graph
from fermata.deployments.models.signatures import open_onnx
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")


def session_of(path: Path) -> Any:
    runtime: Any = onnxruntime
    return runtime.InferenceSession(str(path), None, ["CPUExecutionProvider"])


def exported(folder: Path, name: str, side: int = 64) -> Path:
    torch.manual_seed(1)
    network = torchvision.models.get_model(name, weights=None).eval()
    path = folder / f"{name}.onnx"
    axes = {"x": {0: "rows"}, "y": {0: "rows"}}
    names: Any = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
    torch.onnx.export(network, (torch.randn(2, 3, side, side),), str(path), dynamo=False, **names)
    return path


def spec_of(path: Path, shape: tuple[int, ...] = (3, 64, 64), **more: Any) -> ModelSpec:
    return ModelSpec("net", str(path), 4, shape, "FP32", **more)


def converted(path: Path, spec: ModelSpec) -> TorchModel | NamedNetwork:
    card = Card("net", spec.input_shape or (), "float32", (-1,))
    return on_device(spec, card, path, session_of(path), "cpu")


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5"])
def test_exports_of_torchvision_agree_with_onnxruntime(tmp_path: Path, name: str) -> None:
    path = exported(tmp_path, name)
    model = converted(path, spec_of(path))
    assert isinstance(model, TorchModel)
    assert model.runs_in == "torch on cpu"
    # Another number of rows than the one that was compared at the start.
    batch = np.random.default_rng(2).standard_normal((3, 3, 64, 64), np.float32)
    answers: Any = model(batch)
    (wanted,) = session_of(path).run(None, {"x": batch})
    assert list(answers) == ["y"]
    assert np.abs(answers["y"] - wanted).max() <= 1e-3


def test_the_face_detector_agrees_with_onnxruntime() -> None:
    path = _weights_path()
    session = session_of(path)
    shape = session.get_inputs()[0].shape
    model = converted(path, spec_of(path, tuple(shape[1:])))
    assert isinstance(model, NamedNetwork)
    assert {each.name for each in session.get_outputs()} == set(
        model({model.inputs[0].name: np.zeros(shape, np.float32)})
    )


def small(
    path: Path,
    *nodes: Any,
    weights: Any = (),
    outputs: tuple[str, ...] = ("y",),
    shape: tuple[str | int, ...] = ("rows", 4),
    version: int = 17,
) -> Path:
    """A file of these nodes, from `x` of a shape."""
    made = [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in outputs]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(list(nodes), "g", given, made, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


def test_weights_that_exporters_share_are_found(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    value = numpy_helper.from_array(np.arange(4, dtype=np.float32), "value")
    path = small(
        tmp_path / "shared.onnx",
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Constant", [], ["bias"], value=value),
        helper.make_node("Gemm", ["x", "same", "bias"], ["y"]),
        weights=[weight],
    )
    (answer,) = load_graph(path)(torch.ones(3, 4))
    assert answer.tolist() == [[1.0, 2.0, 3.0, 4.0]] * 3


def test_copies_of_values_are_not_made(tmp_path: Path) -> None:
    path = small(
        tmp_path / "copies.onnx",
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Relu", ["same"], ["up"]),
        helper.make_node("Identity", ["up"], ["again"]),
        helper.make_node("Sigmoid", ["again"], ["z"]),
        helper.make_node("Identity", ["again"], ["y"]),
        outputs=("y", "z"),
    )
    batch = torch.tensor([[-1.0, 1.0, 0.0, 2.0]])
    recorded = record(load_graph(path), [batch])
    found = [str(node.target) for node in recorded.graph.nodes if node.op == "call_function"]
    # The last one is an output of its own.
    assert found.count("aten.clone.default") <= 1
    assert recorded(batch)[0].tolist() == [[0.0, 1.0, 0.0, 2.0]]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_operators_that_are_functions_of_others_are_written_out(
    tmp_path: Path, approximate: str
) -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], approximate=approximate)
    path = small(tmp_path / "gelu.onnx", node, version=20)
    batch = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float32)
    (wanted,) = session_of(path).run(None, {"x": batch})
    (found,) = load_graph(path)(torch.from_numpy(batch))
    assert np.abs(found.numpy() - wanted).max() <= 1e-6


KERNEL = numpy_helper.from_array(
    np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32), "kernel"
)
PICTURES = ("rows", 3, "height", "width")


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_automatic_padding_agrees_at_any_size(tmp_path: Path, auto_pad: str, stride: int) -> None:
    options: Any = {"auto_pad": auto_pad, "strides": [stride, stride]}
    path = small(
        tmp_path / "padded.onnx",
        helper.make_node("Conv", ["x", "kernel"], ["conv"], **options),
        helper.make_node("MaxPool", ["conv"], ["y"], kernel_shape=[3, 3], **options),
        weights=[KERNEL],
        shape=PICTURES,
    )
    session, network = session_of(path), load_graph(path)
    for sides in ((16, 16), (17, 20), (21, 18), (25, 31)):
        batch = np.random.default_rng(3).standard_normal((2, 3, *sides)).astype(np.float32)
        (wanted,) = session.run(None, {"x": batch})
        (found,) = network(torch.from_numpy(batch))
        assert found.shape == wanted.shape
        assert np.abs(found.detach().numpy() - wanted).max() <= 1e-4


def test_a_convolution_without_its_defaults_written_down_is_converted(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "kernel"], ["y"], pads=[0, 1, 2, 3])
    path = small(tmp_path / "bare.onnx", node, weights=[KERNEL], shape=PICTURES)
    assert converted(path, spec_of(path, (3, 16, 16))).runs_in == "torch on cpu"


def constant(name: str, *shape: int) -> Any:
    rng = np.random.default_rng(sum(map(ord, name)))
    return numpy_helper.from_array(rng.uniform(0.5, 2.0, shape).astype(np.float32), name)


FOLLOWERS: dict[str, tuple[tuple[str, list[str]], ...]] = {
    "bias": (("Add", ["a", "by_channel"]),),
    "either way": (("Mul", ["one", "a"]), ("Add", ["by_channel", "b"])),
    "less": (("Sub", ["a", "by_channel"]), ("Div", ["b", "one"])),
    "norm": (("BatchNormalization", ["a", "s", "o", "m", "v"]), ("Relu", ["b"])),
}
LEFT: dict[str, tuple[tuple[str, list[str]], ...]] = {
    "not a second term": (("Sub", ["by_channel", "a"]),),
    "by place": (("Add", ["a", "by_place"]),),
    "read twice": (("Mul", ["a", "one"]), ("Add", ["b", "a"])),
}


def behind_a_convolution(folder: Path, kind: str, followers: Any) -> Path:
    kernel = constant("kernel", 3, 4, 3, 3) if kind == "ConvTranspose" else KERNEL
    names = "abcy"
    nodes = [helper.make_node(kind, ["x", "kernel"], ["a"])]
    for place, (operator, inputs) in enumerate(followers, 1):
        made = "y" if place == len(followers) else names[place]
        nodes.append(helper.make_node(operator, inputs, [made]))
    weights = [kernel, constant("by_channel", 1, 4, 1, 1), constant("one"), constant("by_place", 8)]
    weights += [constant(each, 4) for each in "somv"]
    shape = ("rows", 3, 6, 6) if kind == "ConvTranspose" else ("rows", 3, 10, 10)
    return small(folder / "behind.onnx", *nodes, weights=weights, shape=shape)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("name", [*FOLLOWERS, *LEFT])
def test_what_follows_a_convolution_is_folded(tmp_path: Path, kind: str, name: str) -> None:
    path = behind_a_convolution(tmp_path, kind, (FOLLOWERS | LEFT)[name])
    graph = onnx.load(path).graph
    fold_convolutions(graph)
    left = [node.op_type for node in graph.node]
    wanted = [kind, "Relu"] if name == "norm" else [kind]
    assert (left == wanted) is (name in FOLLOWERS)
    side = 6 if kind == "ConvTranspose" else 10
    batch = np.random.default_rng(5).standard_normal((2, 3, side, side)).astype(np.float32)
    (expected,) = session_of(path).run(None, {"x": batch})
    (found,) = load_graph(path)(torch.from_numpy(batch))
    assert np.abs(found.detach().numpy() - expected).max() <= 1e-4


def test_folded_weights_take_no_name_that_is_in_use(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["a"]),
        helper.make_node("Add", ["a", "by_channel"], ["b"]),
        helper.make_node("Conv", ["x", "b/weight"], ["b/bias"]),
        helper.make_node("Mul", ["b", "b/bias"], ["y"]),
    ]
    other = constant("b/weight", *KERNEL.dims)
    weights = [KERNEL, constant("by_channel", 1, 4, 1, 1), other]
    path = small(tmp_path / "named.onnx", *nodes, weights=weights, shape=("rows", 3, 10, 10))
    batch = np.random.default_rng(5).standard_normal((2, 3, 10, 10)).astype(np.float32)
    (expected,) = session_of(path).run(None, {"x": batch})
    (found,) = load_graph(path)(torch.from_numpy(batch))
    assert np.abs(found.detach().numpy() - expected).max() <= 1e-3


def test_several_outputs_keep_their_names(tmp_path: Path) -> None:
    path = small(
        tmp_path / "two.onnx",
        helper.make_node("Relu", ["x"], ["up"]),
        helper.make_node("Softmax", ["x"], ["shares"]),
        outputs=("up", "shares"),
    )
    model = converted(path, spec_of(path, (4,), inputs=(TensorSpec("x", "FP32", (4,)),)))
    assert isinstance(model, NamedNetwork)
    answers = model({"x": np.array([[-1.0, 1.0, 0.0, 0.0]], np.float32)})
    assert answers["up"].tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert answers["shares"].sum() == pytest.approx(1.0)


def test_what_cannot_be_converted_names_the_operator(tmp_path: Path) -> None:
    path = small(tmp_path / "odd.onnx", helper.make_node("Hardmax", ["x"], ["y"]))
    with pytest.raises(ConfigError, match="Hardmax") as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)


def test_a_network_that_differs_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path / "relu.onnx", helper.make_node("Relu", ["x"], ["y"]))
    monkeypatch.setattr(
        "fermata.deployments.models.onnx_files.graph._OPERATORS",
        {"Relu": lambda value: value + 0.002},
    )
    with pytest.raises(ConfigError, match=r"differs by .* from onnxruntime, above 0\.001"):
        converted(path, spec_of(path, (4,)))


def test_a_file_that_fails_in_torch_runs_in_onnxruntime(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = small(tmp_path / "odd.onnx", helper.make_node("Hardmax", ["x"], ["y"]))
    card = Card("net", (4,), "float32", (-1,))
    with caplog.at_level("WARNING"):
        model = open_onnx_model(spec_of(path, (4,)), card, path, "cuda")
    assert isinstance(model, OnnxModel)
    assert model.runs_in == "onnxruntime on CPU"
    (record,) = caplog.records
    assert record.getMessage() == "an ONNX file is not converted to torch"


def test_weights_left_over_in_a_file_are_no_news(capfd: pytest.CaptureFixture[str]) -> None:
    path = Path(_weights_path())
    session_of(path)
    assert "W:onnxruntime" in capfd.readouterr().err, "it has some"
    open_onnx("faces", str(path), ["CPUExecutionProvider"])
    assert capfd.readouterr().err == ""


def test_on_a_cpu_onnxruntime_runs_it(tmp_path: Path) -> None:
    path = small(tmp_path / "relu.onnx", helper.make_node("Relu", ["x"], ["y"]))
    runner = load_runner(spec_of(path, (4,)), "cpu", MemoryBudget())
    assert innermost(runner).model.runs_in == "onnxruntime on CPU"
