"""Factors, addends and norms behind a convolution, folded into its weights.

Some exporters write a bias as a sum of its own, and a norm as product and sum. On a GPU each of
them reads and writes a whole picture.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CHANNELS_AT = {"Conv": 0, "ConvTranspose": 1}
"""Axis of the weights that counts what comes out, by operator."""


def fold_convolutions(graph: Any) -> None:
    """Fold what follows convolutions of 32-bit floats, where it is the same for a whole channel."""
    if any(each.HasField("g") or each.graphs for node in graph.node for each in node.attribute):
        # Inner graphs may read any value.
        return
    weights = {each.name: each for each in graph.initializer}
    for node in list(graph.node):
        if node.op_type in CHANNELS_AT and set(node.input[1:]) <= weights.keys():
            _fold_behind(graph, node, weights)
    read = {name for node in graph.node for name in node.input}
    read |= {each.name for each in graph.output}
    # Older files list weights among the inputs, too.
    for listed in (graph.initializer, graph.input):
        kept = [each for each in listed if each.name in read or each.name not in weights]
        del listed[:]
        listed.extend(kept)


def _fold_behind(graph: Any, node: Any, weights: dict[str, Any]) -> None:
    from onnx import numpy_helper

    kernel, *bias = (numpy_helper.to_array(weights[name]) for name in node.input[1:])
    axis = CHANNELS_AT[node.op_type]
    if kernel.dtype != np.float32 or (axis and _groups(node) > 1):
        return
    channels = kernel.shape[axis]
    scale, shift = np.ones(channels), np.zeros(channels)
    if bias:
        shift += bias[0]
    count = 0
    for after, factor, addend in _followers(graph, node, weights, channels, kernel.ndim):
        scale, shift = scale * factor, shift * factor + addend
        # Whoever reads the last result reads the convolution's now.
        node.output[0] = after.output[0]
        graph.node.remove(after)
        count += 1
    if not count:
        return
    wide = scale.reshape([-1 if at == axis else 1 for at in range(kernel.ndim)])
    del node.input[1:]
    for what, array in (("weight", kernel * wide), ("bias", shift)):
        name = _unused(graph, f"{node.output[0]}/{what}")
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        node.input.append(name)


def _unused(graph: Any, name: str) -> str:
    """A name, made longer where the graph has it already."""
    taken = {each.name for each in (*graph.initializer, *graph.input, *graph.output)}
    for node in graph.node:
        taken.update(node.input, node.output)
    while name in taken:
        name += "_"
    return name


def _groups(node: Any) -> int:
    return next((int(each.i) for each in node.attribute if each.name == "group"), 1)


def _followers(
    graph: Any, node: Any, weights: dict[str, Any], channels: int, axes: int
) -> Iterator[tuple[Any, Array, Array]]:
    """(node, factor, addend) of what follows a convolution; its caller removes each in turn."""
    given = {each.name for each in graph.output}
    while node.output[0] not in given:
        readers = [each for each in graph.node if node.output[0] in each.input]
        if len(readers) != 1 or len(readers[0].output) != 1:
            return
        found = _by_channel(readers[0], node.output[0], weights, channels, axes)
        if found is None:
            return
        yield readers[0], *found


def _by_channel(
    node: Any, value: str, weights: dict[str, Any], channels: int, axes: int
) -> tuple[Array, Array] | None:
    """The factor and the addend of each channel that a node stands for; None of any other node."""
    from onnx import numpy_helper

    others = [name for name in node.input if name != value]
    if not others or not set(others) <= weights.keys():
        return None
    arrays = [numpy_helper.to_array(weights[name]).astype(np.float64) for name in others]
    if node.op_type == "BatchNormalization" and node.input[0] == value and len(arrays) == 4:
        options = {each.name: each for each in node.attribute}
        if "training_mode" in options and options["training_mode"].i:
            return None
        epsilon = options["epsilon"].f if "epsilon" in options else 1e-5
        scale, bias, mean, variance = arrays
        factor = scale / np.sqrt(variance + epsilon)
        return factor, bias - mean * factor
    if node.op_type not in ("Add", "Mul", "Sub", "Div") or len(arrays) != 1:
        return None
    # Only as a second term: a constant less a value has another sign.
    if node.op_type in ("Sub", "Div") and node.input[0] != value:
        return None
    (array,) = arrays
    spread = array.reshape((1,) * max(0, axes - array.ndim) + array.shape)
    wanted = tuple(channels if at == 1 else 1 for at in range(axes))
    if spread.shape not in ((1,) * axes, wanted):
        return None
    each = spread.reshape(-1)
    if node.op_type in ("Add", "Sub"):
        return np.ones(1), each if node.op_type == "Add" else -each
    return each if node.op_type == "Mul" else 1.0 / each, np.zeros(1)
