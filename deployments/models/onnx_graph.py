"""A small ONNX graph as a torch module: any batch and image size, on any device torch has.

The file's own runtime would fix the shapes that it was exported with, and would need a second
CUDA library beside torch's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch


def load_graph(path: Path) -> "torch.nn.Module":
    """The graph in a file: one input, and a tuple of its outputs in the file's order."""
    import torch

    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError:
        raise ConfigError(f"{path.name} needs pip install onnx") from None
    graph = onnx.load(path).graph
    root = torch.nn.Module()
    traced = torch.fx.Graph()
    weights: dict[str, str] = {}
    for weight in graph.initializer:
        # Names in the file hold dots, which part a module's path.
        name = f"w_{len(weights)}"
        root.register_buffer(name, torch.from_numpy(numpy_helper.to_array(weight).copy()))
        weights[weight.name] = name
    values: dict[str, torch.fx.Node | str] = {**weights}
    for given in graph.input:
        if given.name not in weights:
            values[given.name] = traced.placeholder("batch")
    for node in graph.node:
        # Only weights that a node reads become fetches: exporters leave counters behind.
        inputs = [
            traced.get_attr(weights[name]) if name in weights else values[name]
            for name in node.input
        ]
        options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type not in _OPERATORS:
            raise ConfigError(f"{path.name}: operator {node.op_type} is not among {_known()}")
        values[node.output[0]] = traced.call_function(
            _OPERATORS[node.op_type], tuple(inputs), options
        )
    traced.output(tuple(values[each.name] for each in graph.output))
    return torch.fx.GraphModule(root, traced)


def _known() -> str:
    return ", ".join(_OPERATORS)


def _conv(
    value: "torch.Tensor",
    weight: "torch.Tensor",
    bias: "torch.Tensor | None" = None,
    *,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    group: int,
    kernel_shape: list[int],
) -> "torch.Tensor":
    import torch

    # ONNX pads each side by itself, torch both ends of an axis alike.
    assert pads[:2] == pads[2:], pads
    return torch.nn.functional.conv2d(value, weight, bias, strides, pads[:2], dilations, group)


def _conv_transpose(
    value: "torch.Tensor",
    weight: "torch.Tensor",
    bias: "torch.Tensor | None" = None,
    *,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    group: int,
    kernel_shape: list[int],
) -> "torch.Tensor":
    import torch

    assert pads[:2] == pads[2:], pads
    return torch.nn.functional.conv_transpose2d(
        value, weight, bias, strides, pads[:2], groups=group, dilation=dilations
    )


def _batch_norm(
    value: "torch.Tensor",
    scale: "torch.Tensor",
    bias: "torch.Tensor",
    mean: "torch.Tensor",
    variance: "torch.Tensor",
    *,
    epsilon: float,
    momentum: float,
) -> "torch.Tensor":
    import torch

    return torch.nn.functional.batch_norm(value, mean, variance, scale, bias, eps=epsilon)


def _relu(value: "torch.Tensor") -> "torch.Tensor":
    return value.relu()


def _sigmoid(value: "torch.Tensor") -> "torch.Tensor":
    return value.sigmoid()


def _add(left: "torch.Tensor", right: "torch.Tensor") -> "torch.Tensor":
    return left + right


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_norm,
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Add": _add,
}
