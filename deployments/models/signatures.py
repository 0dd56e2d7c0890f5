"""Signatures that models tell of themselves: ONNX files, exported programs, TorchScript and
transformers.

`python -m ...signatures MODEL` prints one. Frontends ask in that way: they need no torch, and a
broken file ends nobody else's process.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from fermata.deployments.models.cache import cache_folder, cached
from fermata.deployments.models.sizes import check_sides, split_size
from fermata.deployments.specs.served_model import OUTPUT, Signature, TensorSpec
from fermata.foundation.errors import ConfigError

SCRIPT_ENDS = (".pt", ".ts", ".torchscript")
EXPORT_ENDS = (".pt2",)
ONNX_ENDS = (".onnx",)
FAMILY = "transformers:"
VERSION = 1
"""Part of the cache's key: raise it when reading itself changes."""
READ_S_MAX = 300.0
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float": "FP32",
    "float32": "FP32",
    "double": "FP64",
    "float64": "FP64",
    "string": "BYTES",
}
"""Types of the Open Inference Protocol, by the names of torch and onnxruntime."""


def is_file(model: str) -> bool:
    """Whether a model's name is that of a file, with or without a size."""
    end = Path(split_size(model)[0]).suffix.lower()
    return end in (*SCRIPT_ENDS, *EXPORT_ENDS, *ONNX_ENDS)


def read_signature(model: str) -> Signature | None:
    """The signature of a model, read once; None where none is told."""
    if model.startswith(FAMILY):
        return _known(model, "")
    name, size = split_size(model)
    path = Path(name)
    if not is_file(model) or not path.is_file():
        return None
    found = path.stat()
    own = _known(str(path.resolve()), f"{found.st_mtime_ns} {found.st_size}")
    return own if size is None else _at_size(model, own, size)


def _at_size(model: str, own: Signature, size: int) -> Signature:
    """The signature with pictures of this side as the first input."""
    first, *others = own.inputs
    if len(first.shape) != 3:
        raise ConfigError(f"{model}: {first} is no picture and has no side; leave out @{size}")
    check_sides(model, first.shape, size)
    return replace(own, inputs=(replace(first, shape=(first.shape[0], size, size)), *others))


@cache
def _known(model: str, stamp: str) -> Signature:
    """Read here what a backend will load anyway, and elsewhere by a process aside."""
    return own_signature(model) if "torch" in sys.modules else asked(model, stamp)


def asked(model: str, stamp: str) -> Signature:
    """Ask a process aside, or the cache on disk if it has the answer."""
    key = hashlib.sha256(f"{VERSION} {model} {stamp}".encode()).hexdigest()[:16]
    path = cache_folder(os.environ) / f"signature-{key}.json"
    # The weights of an architecture may come into its cache at any time.
    if not stamp:
        return _parsed(_ask(model))
    try:
        cached(path, partial(_write, model))
        return _parsed(path.read_text())
    except OSError:
        # The folder is not writable.
        return _parsed(_ask(model))


def _write(model: str, path: Path) -> None:
    path.write_text(_ask(model))


def _ask(model: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, model]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=READ_S_MAX
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{model}: its signature takes too long to read; give inputs") from None
    said = (done.stdout.splitlines() or [""])[-1]
    if done.returncode:
        reason = said or f"reading it ended with {done.returncode}"
        raise ConfigError(reason)
    return said


def _parsed(text: str) -> Signature:
    told = json.loads(text)
    return Signature(*(tuple(map(_spec_of, told[side])) for side in ("inputs", "outputs")))


def _spec_of(told: Any) -> TensorSpec:
    return TensorSpec(**{**told, "shape": tuple(told["shape"])})


def own_signature(model: str) -> Signature:
    """The signature of a model, read here."""
    if model.startswith(FAMILY):
        from fermata.deployments.models.network import transformers_signature

        name, _, length = model.removeprefix(FAMILY).partition("@")
        return transformers_signature(name, int(length) if length else None)
    end = Path(model).suffix.lower()
    if end in ONNX_ENDS:
        return onnx_signature(open_onnx(model, model, ["CPUExecutionProvider"]))
    if end in EXPORT_ENDS:
        return export_signature(model, open_export(model, model))
    return script_signature(model, open_script(model, model))


def open_onnx(name: str, path: str, providers: list[str]) -> Any:
    """A session of onnxruntime; ConfigError for a broken file."""
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError(f"{name}: ONNX files need pip install 'fermata[onnx]'") from None
    wanted = [each for each in providers if each in onnxruntime.get_available_providers()]
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    # Errors alone: a file that was trained further brings a warning for each weight left over.
    options.log_severity_level = 3
    return _opened(name, path, "ONNX file", lambda: runtime.InferenceSession(path, options, wanted))


def open_export(name: str, path: str) -> Any:
    """An exported program; ConfigError for a broken file."""
    import torch

    return _opened(name, path, "exported program", lambda: torch.export.load(path))


def open_script(name: str, path: str, device: str = "cpu") -> Any:
    """A TorchScript module; ConfigError for a broken file."""
    import torch

    jit: Any = torch.jit
    return _opened(name, path, "TorchScript file", lambda: jit.load(path, device))


def _opened(name: str, path: str, kind: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    # Each library has exceptions of its own for every kind of broken file, without a common base.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{name}: {path} is no {kind}: {reason}") from None


def onnx_signature(session: Any) -> Signature:
    """Inputs and outputs of an ONNX file; its first dimension is the batch."""

    def spec(given: Any) -> TensorSpec:
        kind = given.type.removeprefix("tensor(").removesuffix(")")
        return _tensor_spec(given.name, kind, given.shape)

    return Signature(
        tuple(map(spec, session.get_inputs())), tuple(map(spec, session.get_outputs()))
    )


def export_signature(name: str, program: Any) -> Signature:
    """Inputs and outputs of an exported program."""
    nodes = {node.name: node for node in program.graph.nodes}

    def spec(shown: str, node: Any) -> TensorSpec:
        value = nodes[node].meta.get("val") if isinstance(node, str) else node
        if not hasattr(value, "dtype"):
            raise ConfigError(f"{name}: {shown!r} is no tensor; export a program of tensors alone")
        return _tensor_spec(shown, str(value.dtype).removeprefix("torch."), value.shape)

    told = program.graph_signature
    names = output_names(program.call_spec.out_spec, len(told.user_outputs))
    return Signature(
        tuple(spec(str(each), each) for each in told.user_inputs),
        tuple(spec(*pair) for pair in zip(names, told.user_outputs, strict=True)),
    )


def output_names(structure: Any, count: int) -> list[str]:
    """Names of outputs: the keys of a mapping, `output` of one, else `output_0` and so on."""
    if structure is not None and structure.type is dict and len(structure.context) == count:
        return [str(key) for key in structure.context]
    return numbered(count)


def numbered(count: int) -> list[str]:
    return [OUTPUT] if count == 1 else [f"{OUTPUT}_{index}" for index in range(count)]


def _tensor_spec(name: str, kind: str, shape: Sequence[Any]) -> TensorSpec:
    if kind not in DATATYPES:
        raise ConfigError(f"{name!r} is {kind}, which no request can carry")
    if not shape:
        raise ConfigError(f"{name!r} has no dimensions; its first one must be the batch")
    sizes = tuple(each if type(each) is int and each >= 0 else -1 for each in shape[1:])
    return TensorSpec(name, DATATYPES[kind], sizes)


def script_signature(name: str, network: Any) -> Signature:
    """Inputs of a TorchScript module. Their types are those that its first operator on each takes;
    ConfigError where that does not show."""
    names = script_inputs(network)
    import torch

    frozen: Any = torch.jit.freeze(network.eval())
    values = list(frozen.graph.inputs())[1:]
    inputs = tuple(_by_first_use(name, *pair, frozen) for pair in zip(names, values, strict=True))
    count = script_outputs(network)
    outputs = tuple(TensorSpec(each, "FP32", (-1,)) for each in numbered(count)) if count else ()
    return Signature(inputs, outputs)


def script_inputs(network: Any) -> list[str]:
    """Names of the inputs of a TorchScript module, in order."""
    return [each.name for each in network.forward.schema.arguments[1:]]


def script_outputs(network: Any) -> int:
    """How many tensors a TorchScript module returns; 0 where a mapping does not tell."""
    kind = network.forward.schema.returns[0].type
    if kind.kind() == "TensorType":
        return 1
    return len(kind.elements()) if kind.kind() == "TupleType" else 0


def _by_first_use(file: str, name: str, value: Any, frozen: Any) -> TensorSpec:
    for use in value.uses():
        node = use.user
        weight = next((each.toIValue() for each in node.inputs() if _is_weight(each)), None)
        kind = node.kind()
        if weight is None:
            continue
        if kind == "aten::embedding":
            return TensorSpec(name, "INT64", (-1,))
        if kind == "aten::linear":
            return TensorSpec(name, "FP32", (int(weight.shape[1]),))
        if kind in ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::_convolution"):
            return TensorSpec(name, "FP32", (int(weight.shape[1]), *(-1,) * (weight.dim() - 2)))
    raise ConfigError(
        f"{file}: TorchScript does not tell type and shape of input {name!r}; give inputs"
    )


def _is_weight(value: Any) -> bool:
    kinds = value.type().kind(), value.node().kind()
    return kinds == ("TensorType", "prim::Constant")


def main(model: str) -> int:
    """Print the signature of a model, or the reason why it has none."""
    try:
        print(json.dumps(asdict(own_signature(model))))
    except ConfigError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
