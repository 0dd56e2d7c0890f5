"""An ONNX graph as a torch module: any batch and image size, on any device torch has.

The file's own runtime would fix the shapes that it was exported with, and would need a second
CUDA library beside torch's. Operators are converted here, or by onnx2torch where a file has more
than these.
"""

from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fermata.deployments.models.onnx_files.folding import fold_convolutions
from fermata.deployments.models.onnx_files.same_padding import put_same_padding, take_same_padding
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

KEYWORD_ONLY = Parameter.KEYWORD_ONLY


def load_graph(path: Path) -> "torch.nn.Module":
    """The graph in a file: inputs in the file's order, and a tuple of its outputs in theirs.

    Raises ConfigError where an operator cannot be converted.
    """
    try:
        import onnx
    except ImportError:
        raise ConfigError(f"{path.name} needs pip install onnx") from None
    model = onnx.load(path)
    _fold_constants(model.graph)
    fold_convolutions(model.graph)
    if all(_is_own(node) for node in model.graph.node):
        return _own_graph(path, model.graph)
    return _converted(path, model)


def _is_own(node: Any) -> bool:
    """Whether a node is one of the operators below, with just the options that they take."""
    from onnx import helper

    if (operator := _OPERATORS.get(node.op_type)) is None:
        return False
    options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    pads = options.get("pads", [])
    # ONNX pads each end of an axis by itself, torch both alike.
    is_even = pads[: len(pads) // 2] == pads[len(pads) // 2 :] and len(pads) in (0, 4)
    taken = signature(operator).parameters.values()
    return is_even and options.keys() == {each.name for each in taken if each.kind == KEYWORD_ONLY}


def _fold_constants(graph: Any) -> None:
    """Make weights of constants, and have copies by Identity read where they come from.

    Exporters share weights so; in torch each copy would be made.
    """
    from onnx import numpy_helper

    weights = {weight.name for weight in graph.initializer}
    given = {each.name for each in graph.output}
    copies: dict[str, str] = {}
    kept = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = copies.get(name, name)
        made = node.output[0] if node.output else ""
        options = [each.name for each in node.attribute]
        if node.op_type == "Identity" and made not in given:
            copies[made] = node.input[0]
        elif node.op_type == "Constant" and options == ["value"] and made not in given:
            array = numpy_helper.to_array(node.attribute[0].t)
            graph.initializer.append(numpy_helper.from_array(array, made))
            weights.add(made)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    _name_axes(graph)


def _name_axes(graph: Any) -> None:
    """Give reductions their axes as an attribute, as they had them before version 18."""
    from onnx import helper, numpy_helper

    weights = {weight.name: weight for weight in graph.initializer}
    for node in graph.node:
        if node.op_type in _BY_AXES and len(node.input) == 2 and node.input[1] in weights:
            axes = numpy_helper.to_array(weights[node.input[1]]).tolist()
            node.attribute.append(helper.make_attribute("axes", axes))
            del node.input[1:]


def _converted(path: Path, model: Any) -> "torch.nn.Module":
    """The graph by onnx2torch."""
    import torch

    try:
        convert = import_module("onnx2torch").convert
    except ImportError:
        raise ConfigError(f"{path.name} needs pip install onnx2torch to run in torch") from None
    try:
        model = _spelt_out(model)
        _adopt_newer_operators(model)
        paddings = take_same_padding(model.graph)
        network = convert(model)
        put_same_padding(network, paddings)
    # It raises errors of many kinds for what it does not know.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise ConfigError(f"{path.name}: onnx2torch cannot convert it: {reason}") from None
    several = len(model.graph.output) > 1

    class Outputs(torch.nn.Module):
        """The network, whose outputs are a tuple even of one."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *batch: "torch.Tensor") -> "tuple[torch.Tensor, ...]":
            returned = self.network(*batch)
            return tuple(returned) if several else (returned,)

    return Outputs().eval()


def _spelt_out(model: Any) -> Any:
    """The model with operators that onnx2torch has no version of written out in simpler ones, as
    far as ONNX itself says how."""
    from onnx import defs, inliner, shape_inference

    registry: Any = import_module("onnx2torch.node_converters.registry")
    known = {each.operation_type for each in registry._CONVERTER_REGISTRY}
    before: set[str] = set()
    # What an operator is written out in may have to be written out, too.
    while strange := {node.op_type for node in model.graph.node if not node.domain} - known:
        wanted = [("", each) for each in sorted(strange) if defs.has(each)]
        if strange == before or not wanted:
            break
        before = strange
        # Some are written out by the types of their inputs.
        typed = shape_inference.infer_shapes(model)
        model = inliner.inline_selected_functions(typed, wanted, inline_schema_functions=True)
    _fold_constants(model.graph)
    return model


def _adopt_newer_operators(model: Any) -> None:
    """Let onnx2torch convert newer versions of operators that this file uses like older ones.

    Most versions only add types. The answers are compared with onnxruntime's in any case.
    """
    from onnx import defs

    registry: Any = import_module("onnx2torch.node_converters.registry")
    (version,) = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    for name in {node.op_type for node in model.graph.node if not node.domain}:
        nodes = [node for node in model.graph.node if node.op_type == name]
        wanted = defs.get_schema(name, version).since_version
        for since in range(wanted, 0, -1):
            if not defs.has(name, max_inclusive_version=since):
                break
            schema = defs.get_schema(name, since)
            if schema.since_version != since:
                continue
            if since != wanted and not all(_is_within(node, schema) for node in nodes):
                break
            try:
                converter = registry.get_converter(name, since)
            except NotImplementedError:
                continue
            if since != wanted:
                registry.add_converter(name, wanted)(converter)
            break


def _is_within(node: Any, schema: Any) -> bool:
    """Whether a node has no more inputs and attributes than a version of its operator."""
    named = {each.name for each in node.attribute} <= {*schema.attributes}
    return named and len(node.input) <= max(schema.max_input, len(schema.inputs))


def _own_graph(path: Path, graph: Any) -> "torch.nn.Module":
    """The graph by the operators below."""
    import torch
    from onnx import helper, numpy_helper

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
        values[node.output[0]] = traced.call_function(
            _OPERATORS[node.op_type], tuple(inputs), options
        )
    traced.output(tuple(values[each.name] for each in graph.output))
    return torch.fx.GraphModule(root, traced)


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
_BY_AXES = frozenset(
    f"Reduce{each}" for each in ("L1", "L2", "LogSum", "Max", "Mean", "Min", "Prod", "SumSquare")
)
