"""Features of a served ONNX model's own early layers: a tensor inside it, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse

Array = NDArray[Any]
SUFFIX = ".onnx"
NAMED = 8
"""Tensors that a refusal names."""
FLOAT = "tensor(float)"


def is_of_onnx(embedding: str) -> bool:
    """Whether an embedding is written `FILE.onnx:TENSOR`."""
    return embedding.rpartition(":")[0].endswith(SUFFIX)


def early_layers(embedding: str) -> Callable[[Array], Array]:
    """The tensor of each sample; what lies behind it in the model is not run.

    Maps are averaged over their places, so that features are as many as channels.
    """
    file, _, tensor = embedding.rpartition(":")
    session = _session(embedding, Path(file), tensor)
    (given,) = session.get_inputs()

    def features(samples: Array) -> Array:
        if given.type == FLOAT:
            pixels = samples.dtype == np.uint8
            samples = samples.astype(np.float32) / (255 if pixels else 1)
        (found,) = session.run([tensor], {given.name: samples})
        made: Array = found.mean(axis=tuple(range(2, found.ndim))) if found.ndim > 2 else found
        return made

    return features


def _session(embedding: str, file: Path, tensor: str) -> Any:
    """The model as far as the tensor, on one core."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ConfigError(f"embedding {embedding} needs {error.name}; run make models") from None
    try:
        model = onnx.load(file)
    # The parser of protobuf has errors of its own.
    except Exception as error:
        refuse("embedding", embedding, f"{file} cannot be read ({error})")
    graph = model.graph
    inside = [name for node in graph.node for name in node.output]
    if tensor not in inside:
        some = ", ".join(inside[:NAMED])
        refuse("embedding", embedding, f"{file} has no tensor {tensor!r}; the first are {some}")
    needed = _cut(graph, tensor)
    weights = {each.name for each in graph.initializer}
    inputs = [each for each in graph.input if each.name in needed - weights]
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs) or "no input"
        refuse("embedding", embedding, f"{tensor} is made of {names}, and a look sees one")
    del graph.input[:], graph.output[:]
    graph.input.extend(inputs)
    graph.output.append(onnx.helper.make_empty_tensor_value_info(tensor))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)


def _cut(graph: Any, tensor: str) -> set[str]:
    """Leave what the tensor is made of alone in a graph; returns the names of all of that."""
    needed, kept = {tensor}, []
    # Nodes stand in the order in which they run.
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    return needed
