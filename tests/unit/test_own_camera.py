"""The way of docs/network.md from an own ONNX detector to an adaptive camera."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fermata.commands.main import app
from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.config.deployment import load_config
from fermata.deployments.config.resolve import known_profiles, model_specs, router_config
from fermata.deployments.config.served.registry import registry

onnx = pytest.importorskip("onnx")
PAGE = Path(__file__).parents[2] / "docs/network.md"


def detector(path: Path) -> None:
    """Finds one box in every picture."""
    helper, numpy_helper, kind = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
    constants = {
        "box": np.array([8, 16, 40, 64], np.float32).reshape(1, 1, 4),
        "sure": np.array(0.9, np.float32),
        "zero": np.array(0, np.float32),
        "three": np.array([0, 1, 1], np.int64),
        "two": np.array([0, 1], np.int64),
    }
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Reshape", ["nothing", "three"], ["rows"]),
        helper.make_node("Add", ["rows", "box"], ["boxes"]),
        helper.make_node("Reshape", ["nothing", "two"], ["row"]),
        helper.make_node("Add", ["row", "sure"], ["scores"]),
    ]
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "own",
        [tensor("pixels", kind, ["n", 3, "h", "w"])],
        [tensor("boxes", kind, ["n", 1, 4]), tensor("scores", kind, ["n", 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)


def test_the_page_leads_to_an_adaptive_camera(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.read_text().split("## A detector of your own\n")[1].split("\n## ")[0]
    commands, entry = re.findall(r"```(?:bash|yaml)\n(.*?)```", section, re.S)
    steps = [line for line in commands.replace("\\\n", "").splitlines() if line]
    assert len(steps) <= 4
    monkeypatch.chdir(tmp_path)
    detector(tmp_path / "own.onnx")
    (tmp_path / "gate.yaml").write_text(entry)
    measure = steps[0].replace("gate.mp4", "carphone_pristine").split()[1:]
    quick = ["--batches", "1,2", "--budget-ms", "5", "--device", "cpu", "--frames", "2"]
    ran = CliRunner().invoke(app, [*measure, *quick])
    assert ran.exit_code == 0, ran.output
    config = load_config(tmp_path / "gate.yaml")
    profiles = known_profiles(config)
    (application,) = router_config(config, profiles).applications
    assert [each.input_size for each in application.variants] == [160, 320, 480]
    assert all(each.accuracy is not None for each in application.variants)
    ((served, _),) = registry(config).every()
    assert served.boxes is not None
    assert [each.name for each in served.outputs] == ["boxes", "scores"]
    runner = load_runner(model_specs(config, profiles)[0], "cpu", MemoryBudget())
    outputs = runner.run(runner.stage([np.zeros((90, 160, 3), np.uint8)]))
    assert outputs["boxes"].tolist() == [[[8, 16, 40, 64]]]
