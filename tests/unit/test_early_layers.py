"""Looks by the early layers of a model of one's own."""

from pathlib import Path

import numpy as np
import pytest

from fermata.deployments.sneakpeek.embedding import open_embedding
from fermata.foundation.errors import ConfigError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

helper, numpy_helper, FLOAT = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
COLOURS = np.float32([[1, 0, 0], [0, 1, 0]])[:, :, None, None]
"""Two channels: how red, and how green."""


def saved(path: Path, inputs: int = 1) -> Path:
    nodes = [
        helper.make_node("Conv", ["input", "colours"], ["early"]),
        helper.make_node("Relu", ["early"], ["bent"]),
        *(helper.make_node("Add", [name, "other"], ["both"]) for name in ("input",)[: inputs - 1]),
        # No such operator: what lies behind the early layers is not even loaded.
        helper.make_node("Nothing", ["bent"], ["output"], domain="of.nobody"),
    ]
    given = [
        helper.make_tensor_value_info(name, FLOAT, ["b", 3, 4, 4])
        for name in ("input", "other")[:inputs]
    ]
    found = [helper.make_tensor_value_info("output", FLOAT, ["b", 2])]
    weights = [numpy_helper.from_array(COLOURS, "colours")]
    graph = helper.make_graph(nodes, "own", given, found, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("of.nobody", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.parametrize("inputs", [1, 2])
def test_a_tensor_inside_a_model_is_an_embedding(tmp_path: Path, inputs: int) -> None:
    embedding = open_embedding(f"{saved(tmp_path / 'own.onnx', inputs)}:bent")
    pixels = np.zeros((2, 3, 4, 4), np.uint8)
    pixels[0, 0], pixels[1, 1] = 255, 51
    # Maps are averaged, and pixels are from 0 to 1.
    assert embedding(pixels) == pytest.approx(np.float32([[1, 0], [0, 0.2]]))
    assert embedding(pixels / np.float32(255)) == pytest.approx(embedding(pixels))


@pytest.mark.parametrize(
    ("tensor", "inputs", "told"),
    [
        ("beyond", 1, r"has no tensor 'beyond'; the first are early, bent, output"),
        ("both", 2, r"both is made of input, other, and a look sees one"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_by_name(
    tmp_path: Path, tensor: str, inputs: int, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        open_embedding(f"{saved(tmp_path / 'own.onnx', inputs)}:{tensor}")


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "own.onnx").write_text("no model")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_embedding(f"{tmp_path / 'own.onnx'}:early")
