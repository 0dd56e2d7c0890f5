"""Loads models by the names of the configuration; imports torch only where needed."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.emulated import EmulatedGpu, EmulatedModel
from fermata.deployments.backend.execution.out_of_memory import (
    NoRoomError,
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.runner import FittingRunner, PlainRunner, Runner
from fermata.deployments.backend.execution.tensors import Array, Outputs, numpy_dtype
from fermata.deployments.models.catalog import open_model
from fermata.deployments.models.model import Card, Model, TorchModel
from fermata.deployments.models.picture import centre_square, whole_frame
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.errors import ConfigError

EMULATED = "emulated"
SCRIPT_ENDS = (".pt", ".ts", ".torchscript")
EXPORT_ENDS = (".pt2",)
ONNX_ENDS = (".onnx",)


class MemoryBudget:
    """Memory that the models of one accelerator may take together."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.bytes_max = bytes_max
        self.held: dict[str, int] = {}

    def take(self, name: str, size: int) -> None:
        """Allocate memory for a model; ConfigError if too little is left."""
        others = sum(self.held.values())
        if self.bytes_max is not None and others + size > self.bytes_max:
            raise ConfigError(
                f"{name} takes {size >> 20} MB beside {others >> 20} MB held by "
                f"{', '.join(sorted(self.held)) or 'nothing'}; memory_mb is "
                f"{self.bytes_max >> 20}: raise it or serve fewer models here"
            )
        self.held[name] = size

    def release(self, name: str) -> None:
        self.held.pop(name, None)


def pick_device(device: str) -> str:
    """`cuda` or `cpu`; for `auto` the GPU if there is one."""
    if device in ("cpu", EMULATED):
        return "cpu"
    try:
        found = bool(_torch().cuda.is_available())
    except ImportError:
        found = False
    if device == "cuda" and not found:
        raise ConfigError("device=cuda, but torch sees no GPU here; use auto or cpu")
    return "cuda" if found else "cpu"


def load_runner(spec: ModelSpec, device: str, budget: MemoryBudget, warm: bool = True) -> Runner:
    """A variant loaded, warmed up and within the budget; `device` as `pick_device` gives it."""
    if spec.model == EMULATED:
        if not spec.table_ns:
            raise ConfigError(f"{spec.name}: an emulated model needs run times; give a profile")
        model = EmulatedModel(EmulatedGpu(spec.gpu_lock), spec.table_ns)
        plain = PlainRunner(model, min(spec.batch_size_max, len(spec.table_ns)))
        return _fitting(spec, plain, spec.input_shape or (3, 1, 1))
    try:
        return _load(spec, device, budget, warm)
    # Every library has an error of its own for a lack of memory.
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        drop_references(error)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    budget.release(spec.name)
    release_memory()
    raise NoRoomError(
        f"{spec.name} does not fit the memory that is left ({reason}): serve fewer models here, or "
        "look for other processes on the accelerator"
    )


def _load(spec: ModelSpec, device: str, budget: MemoryBudget, warm: bool) -> Runner:
    before = _device_bytes(device)
    opened = _open(spec, device)
    runner = _make_runner(spec, opened, device)
    held = spec.static_bytes or _device_bytes(device) - before
    if isinstance(opened, TorchModel):
        held = max(held, opened.static_bytes())
    try:
        budget.take(spec.name, held)
    except ConfigError:
        runner.close()
        raise
    if warm:
        _warm_up(spec, opened.card, runner)
    return _fitting(spec, runner, opened.card.input_shape)


def _fitting(spec: ModelSpec, runner: Runner, shape: tuple[int, ...]) -> Runner:
    if not spec.fit:
        return runner
    how = centre_square if spec.fit == "centre" else whole_frame
    return FittingRunner(runner, lambda frame: how(frame, shape[1]))


def _device_bytes(device: str) -> int:
    if device == "cpu":
        return 0
    return int(_torch().cuda.memory_reserved())


def _torch() -> Any:
    """torch, imported for the first model: that takes seconds and hundreds of megabytes."""
    return import_module("torch")


def _open(spec: ModelSpec, device: str) -> Model:
    path = Path(spec.model)
    end = path.suffix.lower()
    openers: dict[str, Callable[[ModelSpec, Path, str], Model]] = {
        **dict.fromkeys(SCRIPT_ENDS, _open_script),
        **dict.fromkeys(EXPORT_ENDS, _open_export),
        **dict.fromkeys(ONNX_ENDS, _open_onnx),
    }
    opener = openers.get(end)
    if opener is None:
        return open_model(spec.model, device, spec.input_shape)
    if not path.is_file():
        raise ConfigError(f"{spec.name}: there is no file {path}")
    return opener(spec, path, device)


def _card(spec: ModelSpec) -> Card:
    if spec.input_shape is None:
        raise ConfigError(f"{spec.name}: a file does not describe its input; give input_shape")
    dtype = numpy_dtype(spec.input_dtype or "FP32")
    return Card(spec.name, spec.input_shape, dtype, (-1,))


def _as_network(spec: ModelSpec, network: Any, device: str) -> TorchModel:
    """A torch network whose floating-point inputs follow its weights' type."""

    def forward(batch: Any) -> Any:
        first = next(iter(network.parameters()), None)
        if first is not None and batch.is_floating_point():
            batch = batch.to(first.dtype)
        return network(batch)

    # An exported program cannot be switched to evaluation: its mode was fixed by the export.
    if hasattr(network, "graph_module") or type(network).__name__ == "GraphModule":
        network.eval = lambda: network
    return TorchModel(_card(spec), network, forward).to(device)


def _open_script(spec: ModelSpec, path: Path, device: str) -> Model:
    try:
        network = _torch().jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{spec.name}: {path} is no TorchScript file: {reason}") from None
    return _as_network(spec, network, device)


def _open_export(spec: ModelSpec, path: Path, device: str) -> Model:
    try:
        network = _torch().export.load(path).module()
    # The reader of exported programs has no error of its own for a broken file.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{spec.name}: {path} is no exported program: {reason}") from None
    return _as_network(spec, network, device)


class OnnxModel:
    """An ONNX file in onnxruntime; its outputs keep their names."""

    def __init__(self, card: Card, session: Any) -> None:
        self.card = card
        self.session = session
        self.input = session.get_inputs()[0].name
        self.outputs = [output.name for output in session.get_outputs()]

    def __call__(self, batch: Array) -> Any:
        return dict(zip(self.outputs, self.session.run(None, {self.input: batch}), strict=True))


def _open_onnx(spec: ModelSpec, path: Path, device: str) -> Model:
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        raise ConfigError(f"{spec.name}: ONNX files need pip install 'fermata[onnx]'") from None
    wanted = ["CPUExecutionProvider"]
    if device == "cuda":
        wanted.insert(0, "CUDAExecutionProvider")
    providers = [each for each in wanted if each in onnxruntime.get_available_providers()]
    try:
        session = onnxruntime.InferenceSession(str(path), providers=providers)
    # onnxruntime has exceptions of its own for every kind of broken file, without a common base.
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{spec.name}: {path} is no ONNX file: {reason}") from None
    return OnnxModel(_card(spec), session)


def _make_runner(spec: ModelSpec, model: Model, device: str) -> Runner:
    card = model.card
    dtype = numpy_dtype(spec.input_dtype) if spec.input_dtype else ""
    if device == "cuda" and isinstance(model, TorchModel):
        from fermata.deployments.backend.execution.graphs import GraphRunner

        if spec.half:
            model.to(device, half=True)
        return GraphRunner(model, spec.batch_size_max, dtype)
    shape = None if -1 in card.input_shape else card.input_shape
    return PlainRunner(model, spec.batch_size_max, shape, dtype)


def _warm_up(spec: ModelSpec, card: Card, runner: Runner) -> None:
    """Run batches for warm-up: the first ones pay for allocations and kernels."""
    dtype = numpy_dtype(spec.input_dtype) if spec.input_dtype else card.input_dtype
    for size in sorted({1, min(4, runner.batch_size_max), runner.batch_size_max}):
        batch = card.make_batch(size).astype(np.dtype(dtype), copy=False)
        try:
            outputs: Outputs = runner.run(runner.stage(list(batch)))
            del outputs
        except Exception as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            # Such batches will be halved; smaller ones fit.
            drop_references(error)
