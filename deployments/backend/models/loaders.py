"""Loads models by the names of the configuration; imports torch only where needed."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.emulated import EmulatedModel
from fermata.deployments.backend.execution.emulated_gpu import EmulatedGpu
from fermata.deployments.backend.execution.onnx_models import open_onnx_model
from fermata.deployments.backend.execution.out_of_memory import (
    NoRoomError,
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.pace import Pace
from fermata.deployments.backend.execution.runners.named import NamedRunner, sample_items
from fermata.deployments.backend.execution.runners.padding import PaddingRunner, find_cuts
from fermata.deployments.backend.execution.runners.runner import FittingRunner, PlainRunner, Runner
from fermata.deployments.backend.execution.runners.sequences import SequenceRunner
from fermata.deployments.backend.execution.tensors import Array, Item, Outputs, held_as
from fermata.deployments.backend.execution.warm_outputs import (
    RowShapes,
    check_row_shapes,
    row_shapes,
)
from fermata.deployments.backend.isolation.model import IsolatedModel
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.backend.pictures.decoding import DeviceDecoder
from fermata.deployments.backend.pictures.kept_frames import KeptFrames
from fermata.deployments.backend.pictures.picture_runner import PictureRunner
from fermata.deployments.models.catalog import FAMILIES, open_model, parse_name
from fermata.deployments.models.model import Card, Model, TorchModel
from fermata.deployments.models.named_network import NamedNetwork, Tensors
from fermata.deployments.models.pictures.decoding import fit, write
from fermata.deployments.models.signatures import (
    EXPORT_ENDS,
    ONNX_ENDS,
    SCRIPT_ENDS,
    export_signature,
    open_export,
    open_script,
    script_inputs,
    script_outputs,
)
from fermata.deployments.models.sizes import shared, shared_file, split_size
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import ImageSpec, TensorSpec
from fermata.foundation.errors import ConfigError, ModelLoadError, ServingError
from fermata.foundation.logs import LOG, fields

EMULATED = "emulated"
FLOATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""torch's names of types, by those of the option `precision`."""


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


def load_runner(
    spec: ModelSpec,
    device: str,
    budget: MemoryBudget,
    warm: bool = True,
    pace: Pace | None = None,
    opened: Model | None = None,
) -> Runner:
    """A variant loaded, warmed up and within the budget; `device` as `pick_device` gives it.

    `opened` is its model, where `open_on_host` has read that already.
    """
    if spec.model == EMULATED:
        if not spec.table_ns:
            raise ConfigError(f"{spec.name}: an emulated model needs run times; give a profile")
        # Buckets of a variant run one model.
        budget.take(spec.name, spec.static_bytes, hash(spec.whole().name) if spec.bucket else 0)
        model = EmulatedModel(EmulatedGpu(spec.gpu_lock), spec.table_ns, spec.outputs)
        size_max = min(spec.batch_size_max, len(spec.table_ns))
        if spec.inputs:
            named = SequenceRunner if spec.keeps_state else NamedRunner
            return _padding(spec, named(model, size_max, spec.at_bucket().inputs), None)
        plain = PlainRunner(model, size_max)
        return _padding(spec, _fitting(spec, plain, spec.input_shape or (3, 1, 1)), None)
    try:
        return _load(spec, device, budget, warm, pace, opened)
    # Every library has an error of its own for a lack of memory.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if not is_out_of_memory(error):
            if isinstance(error, ServingError):
                raise
            told = f"{spec.name}: {spec.model} failed as it was loaded"
            raise ModelLoadError(f"{told}: {type(error).__name__}: {reason}") from error
        drop_references(error)
    budget.release(spec.name)
    release_memory()
    raise NoRoomError(
        f"{spec.name} does not fit the memory that is left ({reason}): serve fewer models here, or "
        "look for other processes on the accelerator"
    )


def open_on_host(spec: ModelSpec, device: str) -> Model | None:
    """The model of a variant in host memory, with all that it imports, for `load_runner` to move to
    the device later; None where it cannot be moved, and has to be read again."""
    if spec.model == EMULATED or spec.environment:
        return None
    if device == "cuda":
        _torch()
        if spec.picture is not None:
            with suppress(ImportError):
                import_module("torchvision.io")
    family = parse_name(spec.model).family
    if family not in FAMILIES:
        # A file of another library, or a user's function, may want the device at once.
        if family:
            import_module(family)
        return None
    opened = _open_bucket(spec, "cpu")
    if device != "cpu":
        if not isinstance(opened, TorchModel | NamedNetwork):
            return None
        opened.to("cpu", _floats(spec, opened, device))
    return opened


def open_network(spec: ModelSpec, device: str) -> TorchModel | NamedNetwork:
    """A variant's torch network as a runner has it, without a runner."""
    inner = spec.at_bucket() if spec.pad else spec
    model = _with_shape(_open_bucket(spec, device), inner)
    if not isinstance(model, TorchModel | NamedNetwork):
        raise ConfigError(f"{spec.name}: {spec.model} is no torch network")
    model.to(device, _floats(inner, model, device))
    return model


def _load(
    spec: ModelSpec,
    device: str,
    budget: MemoryBudget,
    warm: bool,
    pace: Pace | None,
    opened: Model | None,
) -> Runner:
    before = _device_bytes(device)
    opened = opened or _open_bucket(spec, device)
    # Padded inputs have one shape, which graphs can be captured for.
    inner = spec.at_bucket() if spec.pad else spec
    runner = _make_runner(inner, _with_shape(opened, inner), device, pace)
    held = spec.static_bytes or _device_bytes(device) - before
    if isinstance(opened, TorchModel | NamedNetwork | IsolatedModel):
        held = max(held, opened.static_bytes())
    try:
        budget.take(spec.name, held, id(getattr(opened, "module", opened)))
        if warm:
            _warm_up(spec.at_bucket(), opened.card, runner)
    except Exception:
        runner.close()
        raise
    if spec.bucket:
        return _padding(spec, runner, opened)
    if spec.picture is not None:
        return _decoding(spec, spec.picture, runner, opened.card, warm, budget.frames)
    return _fitting(spec, runner, opened.card.input_shape)


def _open_bucket(spec: ModelSpec, device: str) -> Model:
    """The model of a variant, which all of its buckets share."""
    if not spec.bucket:
        return open_variant(spec, device)
    return shared((spec.whole(), device), lambda: open_variant(spec, device))


def _with_shape(model: Model, spec: ModelSpec) -> Model:
    """The model as it runs a bucket, whose inputs have one shape; its weights are the same."""
    shape = spec.input_shape
    if not spec.bucket or not isinstance(model, TorchModel) or shape is None:
        return model
    return model.with_card(replace(model.card, input_shape=shape))


def _padding(spec: ModelSpec, runner: Runner, model: Model | None) -> Runner:
    """The runner of a bucket; without a model, answers have no size of their own."""
    if not spec.pad:
        return runner
    return PaddingRunner(runner, spec, None if model is None else find_cuts(spec, model))


def _decoding(
    spec: ModelSpec,
    picture: ImageSpec,
    runner: Runner,
    card: Card,
    warm: bool,
    frames: KeptFrames,
) -> Runner:
    dtype = held_as(spec.input_dtype) if spec.input_dtype else card.input_dtype
    decoder = None
    if hasattr(runner, "stage_by"):
        try:
            decoder = DeviceDecoder(_torch(), picture, "cuda", frames)
        except ImportError:
            about = fields(variant=spec.name, reason="torchvision is not installed")
            LOG.warning("pictures are decoded on the CPU", extra=about)
    decoding = PictureRunner(runner, picture, card.input_shape, dtype, decoder, frames)
    if warm:
        decoding.warm_up()
    return decoding


def _fitting(spec: ModelSpec, runner: Runner, shape: tuple[int, ...]) -> Runner:
    if spec.frames is None:
        return runner
    image = replace(spec.frames, height=shape[1], width=shape[1])
    dtype = np.dtype(held_as(spec.input_dtype or "UINT8"))

    def fitted(frame: Array) -> Array:
        out: Array = np.empty((3, image.height, image.width), dtype)
        write(fit(frame, image), image, out)
        return out

    return FittingRunner(runner, fitted)


def _device_bytes(device: str) -> int:
    if device == "cpu":
        return 0
    return int(_torch().cuda.memory_reserved())


def _torch() -> Any:
    """torch, imported for the first model: that takes seconds and hundreds of megabytes."""
    return import_module("torch")


def open_variant(spec: ModelSpec, device: str) -> Model:
    """The model of a variant on a device, as yet without a runner."""
    if spec.environment:
        return IsolatedModel(spec, device)
    path = Path(split_size(spec.model)[0])
    end = path.suffix.lower()
    openers: dict[str, Callable[[ModelSpec, Path, str], Model]] = {
        **dict.fromkeys(SCRIPT_ENDS, _open_script),
        **dict.fromkeys(EXPORT_ENDS, _open_export),
        **dict.fromkeys(ONNX_ENDS, _open_onnx),
    }
    opener = openers.get(end)
    if opener is None:
        named = bool(spec.inputs)
        return open_model(spec.model, device, spec.input_shape, named)
    if not path.is_file():
        raise ConfigError(f"{spec.name}: there is no file {path}")
    return opener(spec, path, device)


def _card(spec: ModelSpec) -> Card:
    if spec.inputs:
        return Card(spec.name, spec.inputs[0].shape, "", (-1,))
    if spec.input_shape is None:
        raise ConfigError(f"{spec.name}: a file does not describe its input; give input_shape")
    dtype = held_as(spec.input_dtype or "FP32")
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
    use = device, spec.precision
    network = shared_file(path, use, lambda: open_script(spec.name, str(path), device))
    names, outputs = script_inputs(network), script_outputs(network)
    if not spec.inputs and len(names) == outputs == 1:
        return _as_network(spec, network, device)
    inputs = _named_inputs(spec, names[0])
    _check_names(spec, inputs, names)

    def forward(given: Tensors) -> Any:
        return network(**given)

    return NamedNetwork(_card(spec), network.eval(), inputs, forward).to(device)


def _open_export(spec: ModelSpec, path: Path, device: str) -> Model:
    program = open_export(spec.name, str(path))
    own = export_signature(spec.name, program)
    network = program.module()
    if not spec.inputs and len(own.inputs) == len(own.outputs) == 1:
        return _as_network(spec, network, device)
    names = [each.name for each in own.inputs]
    inputs = _named_inputs(spec, names[0])
    _check_names(spec, inputs, names)
    positional = len(program.call_spec.in_spec.child(0).children())

    def forward(given: Tensors) -> Any:
        by_name = {name: given[name] for name in names[positional:]}
        return network(*(given[name] for name in names[:positional]), **by_name)

    outputs = tuple(each.name for each in own.outputs)
    return NamedNetwork(_card(spec), network, inputs, forward, outputs).to(device)


def _named_inputs(spec: ModelSpec, name: str) -> tuple[TensorSpec, ...]:
    """The inputs of a network that takes them by name, also where requests give one array."""
    if spec.inputs:
        return spec.inputs
    return (TensorSpec(name, spec.input_dtype or "FP32", spec.input_shape or (-1,)),)


def _check_names(spec: ModelSpec, inputs: tuple[TensorSpec, ...], own: list[str]) -> None:
    """Refuse inputs that the file does not have, or does without."""
    given = [each.name for each in inputs]
    if set(given) != set(own):
        raise ConfigError(
            f"{spec.name}: its inputs are {', '.join(own)}, and the file says {', '.join(given)}; "
            "give these, or leave inputs out"
        )


def _open_onnx(spec: ModelSpec, path: Path, device: str) -> Model:
    return open_onnx_model(spec, _card(spec), path, device)


def _make_runner(spec: ModelSpec, model: Model, device: str, pace: Pace | None) -> Runner:
    card = model.card
    if isinstance(model, TorchModel | NamedNetwork):
        model.to(device, _floats(spec, model, device))
    elif spec.precision != "auto":
        raise ConfigError(
            f"{spec.name}: precision={spec.precision}, but {spec.model} is no torch network and "
            "keeps its own types: leave precision out"
        )
    if spec.inputs or isinstance(model, NamedNetwork):
        inputs = model.inputs if isinstance(model, NamedNetwork) else spec.inputs
        if spec.keeps_state:
            return SequenceRunner(model, spec.batch_size_max, inputs)
        if device == "cuda" and isinstance(model, NamedNetwork):
            return _named_on_gpu(spec, model, pace)
        return NamedRunner(model, spec.batch_size_max, inputs)
    dtype = held_as(spec.input_dtype) if spec.input_dtype else ""
    if device == "cuda" and isinstance(model, TorchModel) and -1 not in card.input_shape:
        from fermata.deployments.backend.execution.cuda.graphs import GraphRunner

        return GraphRunner(model, spec.batch_size_max, dtype, pace=pace)
    shape = None if -1 in card.input_shape else card.input_shape
    return PlainRunner(model, spec.batch_size_max, shape, dtype)


def _named_on_gpu(spec: ModelSpec, model: NamedNetwork, pace: Pace | None) -> Runner:
    """The runner of a network with named tensors: from CUDA graphs, where its inputs are fixed."""
    from fermata.deployments.backend.execution.cuda.captured import CaptureError
    from fermata.deployments.backend.execution.cuda.named_graphs import (
        NamedGraphRunner,
        can_be_captured,
    )

    inputs = spec.inputs or model.inputs
    if not spec.inputs and spec.input_shape is not None and len(inputs) == 1:
        # A file may take pictures of any size; the entry says which ones come.
        inputs = (replace(inputs[0], shape=spec.input_shape),)
    if can_be_captured(inputs):
        try:
            return NamedGraphRunner(model, spec.batch_size_max, inputs, pace)
        except CaptureError as error:
            about = fields(model=model.card.name, reason=str(error))
            LOG.warning("model runs without CUDA graphs", extra=about)
            drop_references(error)
            release_memory()
    return NamedRunner(model, spec.batch_size_max, model.inputs)


def _floats(spec: ModelSpec, model: TorchModel | NamedNetwork, device: str) -> str:
    """The type of a network's weights, as torch names it; empty: as they are."""
    if spec.precision != "auto":
        return FLOATS[spec.precision]
    if model.exact:
        return ""
    sized = isinstance(model, NamedNetwork) or -1 not in model.card.input_shape
    return FLOATS["fp16"] if device == "cuda" and sized else ""


def _warm_up(spec: ModelSpec, card: Card, runner: Runner) -> None:
    """Run batches for warm-up: the first ones pay for allocations and kernels. Their outputs must
    have a row for each request."""
    found: dict[int, RowShapes] = {}
    for size in sorted({1, min(4, runner.batch_size_max), runner.batch_size_max}):
        try:
            outputs: Outputs = runner.run(runner.stage(_sample_batch(spec, card, size)))
            found[size] = row_shapes(spec.name, size, outputs)
            del outputs
        except Exception as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            # Such batches will be halved; smaller ones fit.
            drop_references(error)
    check_row_shapes(spec.name, found)


def _sample_batch(spec: ModelSpec, card: Card, size: int) -> list[Item]:
    if spec.inputs:
        return list(sample_items(spec.inputs, size))
    dtype = held_as(spec.input_dtype) if spec.input_dtype else card.input_dtype
    return list(card.make_batch(size).astype(np.dtype(dtype), copy=False))
