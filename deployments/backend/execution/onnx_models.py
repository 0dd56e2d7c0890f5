"""ONNX files as they are served: on a GPU as torch networks, where these agree with onnxruntime."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.runners.named import sample_items
from fermata.deployments.backend.execution.tensors import Array, Item
from fermata.deployments.models.model import Card, Model, TorchModel
from fermata.deployments.models.named_network import NamedNetwork, Tensors
from fermata.deployments.models.onnx_files.graph import load_graph
from fermata.deployments.models.signatures import onnx_signature, open_onnx
from fermata.deployments.models.sizes import check_sides, shared_file, split_size
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import Signature, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.logs import LOG, fields

DIFFERENCE_MAX = 1e-3
"""Answers of the converted network may differ by so much from those of onnxruntime, relative to
the largest where that is above 1."""
ON_GPU = ("half", "single", "exact")
"""Floats to try, fastest first: of 16 bits, of 32 bits as torch rounds them, and not rounded."""
ROWS = 2
"""Rows of the batch that they are compared on, unless the file has a size of its own."""
VARYING = 64


class OnnxModel:
    """An ONNX file in onnxruntime; its outputs keep their names."""

    def __init__(self, card: Card, session: Any) -> None:
        self.card = card
        self.session = session
        self.input = session.get_inputs()[0].name
        self.outputs = [output.name for output in session.get_outputs()]

    @property
    def runs_in(self) -> str:
        """The library that runs it, and where."""
        provider = self.session.get_providers()[0].removesuffix("ExecutionProvider")
        return f"onnxruntime on {provider}"

    def __call__(self, batch: Item) -> Any:
        given = batch if isinstance(batch, Mapping) else {self.input: batch}
        return dict(zip(self.outputs, self.session.run(None, dict(given)), strict=True))


def open_onnx_model(spec: ModelSpec, card: Card, path: Path, device: str) -> Model:
    """The model of a file; on a GPU a torch network where it can be, with CUDA graphs then."""
    session = _checked_session(spec, path, "cpu")
    if device != "cuda":
        return OnnxModel(card, session)
    try:
        model = on_device(spec, card, path, session, device)
    except ConfigError as error:
        found = OnnxModel(card, _checked_session(spec, path, device))
        about = fields(variant=spec.name, runs_in=found.runs_in, reason=str(error))
        LOG.warning("an ONNX file is not converted to torch", extra=about)
        return found
    LOG.info("an ONNX file runs in torch", extra=fields(variant=spec.name, runs_in=model.runs_in))
    return model


def _checked_session(spec: ModelSpec, path: Path, device: str) -> Any:
    """The file in onnxruntime, which its sizes share. Raises ConfigError for other inputs."""
    wanted = ["CPUExecutionProvider"]
    if device == "cuda":
        wanted.insert(0, "CUDAExecutionProvider")
    session = shared_file(path, device, lambda: open_onnx(spec.name, str(path), wanted))
    check_sides(spec.name, tuple(session.get_inputs()[0].shape), split_size(spec.model)[1])
    own = [each.name for each in session.get_inputs()]
    given = [each.name for each in spec.inputs]
    if given and set(given) != set(own):
        raise ConfigError(
            f"{spec.name}: its inputs are {', '.join(own)}, and the file says {', '.join(given)}; "
            "give these, or leave inputs out"
        )
    return session


def on_device(
    spec: ModelSpec, card: Card, path: Path, session: Any, device: str
) -> TorchModel | NamedNetwork:
    """The file as a torch network on a device, with the fastest floats that agree.

    Raises ConfigError where it cannot be converted, or differs from onnxruntime.
    """
    signature = onnx_signature(session)
    sample = _sample(spec, signature, session)
    expected = dict(zip(_names(signature.outputs), session.run(None, sample), strict=True))
    reason = ""
    for floats in ON_GPU if device == "cuda" and spec.precision == "auto" else ON_GPU[1:]:
        # Weights that were made 16-bit floats have lost the rest: each try has its own.
        use = device, floats, spec.precision
        network = shared_file(path, use, lambda: load_graph(path))
        model = _with_names(spec, card, network, signature, expected)
        if floats == "exact":
            model.around = _whole_floats
        model.to(device, "float16" if floats == "half" else "")
        try:
            worst = difference(model, sample, expected)
        # A converted network may fail in any way on inputs that it was not traced with.
        except Exception as error:
            reason = "it fails in torch: " + (str(error).splitlines() or [repr(error)])[0]
            continue
        if worst <= DIFFERENCE_MAX:
            model.exact = floats != "half"
            model.computes_shapes = True
            model.runs_in = f"torch on {device}"
            return model
        reason = f"it differs by {worst:.2g} from onnxruntime, above {DIFFERENCE_MAX:g}"
    raise ConfigError(f"{spec.name}: {reason}")


def difference(
    model: TorchModel | NamedNetwork, sample: Mapping[str, Array], expected: Mapping[str, Array]
) -> float:
    """The largest difference of a network's answers to those expected."""
    given: Item = sample if isinstance(model, NamedNetwork) else next(iter(sample.values()))
    found: Any = model(given)
    return largest_difference(found, expected)


def largest_difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference of answers to those expected, relative to the largest above 1."""
    return max(_differences(found, expected), default=0.0)


def _differences(found: Mapping[str, Array], expected: Mapping[str, Array]) -> Iterator[float]:
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape:
            yield float("inf")
        elif wanted.size:
            pair = found[name].astype(np.float64), wanted.astype(np.float64)
            scale = max(1.0, float(np.abs(pair[1]).max()))
            largest = float(np.abs(pair[0] - pair[1]).max()) / scale
            # Not a number differs from everything.
            yield largest if largest == largest else float("inf")


def _names(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    return tuple(each.name for each in specs)


def _with_names(
    spec: ModelSpec,
    card: Card,
    network: Any,
    signature: Signature,
    expected: Mapping[str, Array],
) -> TorchModel | NamedNetwork:
    """The converted file: with one input and one output of floats, as CUDA graphs can hold it."""
    inputs, outputs = _names(signature.inputs), _names(signature.outputs)
    floats = [each.dtype.kind == "f" for each in expected.values()]
    if not spec.inputs and len(inputs) == 1 and floats == [True]:

        def forward(batch: Any) -> Any:
            first = next((each for each in network.buffers() if each.is_floating_point()), None)
            weight = next(iter(network.parameters()), first)
            if weight is not None and batch.is_floating_point():
                batch = batch.to(weight.dtype)
            return network(batch)[0]

        def finish(output: Array) -> Any:
            return {outputs[0]: output}

        return TorchModel(card, network, forward, finish)

    def forward_named(given: Tensors) -> Any:
        return network(*(given[name] for name in inputs))

    own = spec.inputs or signature.inputs
    return NamedNetwork(card, network, own, forward_named, outputs)


def _whole_floats() -> AbstractContextManager[Any]:
    """Convolutions of whole 32-bit floats, which torch rounds on a GPU."""
    import torch

    cudnn: Any = torch.backends.cudnn
    flags: AbstractContextManager[Any] = cudnn.flags(True, cudnn.benchmark, allow_tf32=False)
    return flags


def _sample(spec: ModelSpec, signature: Signature, session: Any) -> dict[str, Array]:
    """A batch that the file takes, with sizes of its own where it has some."""
    first = session.get_inputs()[0].shape[0]
    rows = first if isinstance(first, int) and first > 0 else ROWS
    inputs = signature.inputs
    if not spec.inputs and spec.input_shape is not None and len(inputs) == 1:
        shape = inputs[0].shape
        if len(shape) == len(spec.input_shape):
            sides = zip(shape, spec.input_shape, strict=True)
            own = tuple(given if side < 0 else side for side, given in sides)
            inputs = (TensorSpec(inputs[0].name, inputs[0].datatype, own),)
    items = sample_items(inputs, rows, spec.bucket or VARYING)
    return {each.name: np.stack([item[each.name] for item in items]) for each in inputs}
