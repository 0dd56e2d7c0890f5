"""On a GPU box: inputs of 20 KB, a thousand real frames, and JPEGs that frontends decode.

Each part takes 90 s at most. Frames are read from a file that `benchmarks.gpu_frames` writes where
the clips can be read.
"""

import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, run_on_data

PARTS = {
    "small": "CPU time of a request of 20 KB",
    "frames": "scores of real frames against offline inference",
    "cpu": "the highest rate of JPEGs that frontends decode",
}
FILE = Path("frames.npz")
SIDE = 80
"""Three channels of 80 by 80 are 19 KB."""
SMALL_RATES, SMALL_S = (10_000, 20_000), 8.0
CPU_FRONTENDS, CPU_FIRST_RPS = 10, 2_000


def configured(model: str = "", side: int = 224, decode: str = "auto") -> dict[str, Any]:
    """ResNet-50 as it is: no other kernels are tried while a part runs."""
    from benchmarks import gpu_figures as gpu

    found = gpu.config(gpu.MODELS[:1])
    found["backend"]["kernels"] = "plain"
    for application in found["applications"]:
        application["input"] |= {"shape": [3, side, side], "decode": decode}
        if model:
            application["variants"][0]["model"] = model
    return found


def small(folder: Path) -> Iterator[Figure]:
    from benchmarks import gpu_figures as gpu
    from benchmarks.gpu_server import GpuServer
    from fermata.clients.wire.tensors import from_array

    with GpuServer(folder, configured(f"torchvision:{gpu.MODELS[0]}@{SIDE}", SIDE)) as server:
        server.wait(gpu.FRONTENDS)
        pixels = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE), np.uint8)
        targets = [gpu.target(gpu.MODELS[0], from_array("input", pixels))]
        for rate_rps in SMALL_RATES:
            found = gpu.probe(server, targets, SMALL_S, rate_rps)
            name = f"{pixels.nbytes / 1000:.0f} KB inputs at {rate_rps:,} req/s"
            yield Figure(f"{name}: good", found.worst, "share", gpu.GOOD)
            yield from gpu.cpu_figures(found, 240)


def offline(folder: Path, jpegs: Sequence[bytes]) -> tuple[Any, Any]:
    """Pixels of these frames as a frontend reads them, and their scores in 32 bits."""
    import torch

    from benchmarks import gpu_figures as gpu
    from benchmarks import gpu_models

    network = gpu_models.seed(folder, gpu.MODELS[:1])[gpu.MODELS[0]]
    pixels = np.stack([gpu_models.fitted(each) for each in jpegs])
    return pixels, gpu_models.scores(torch, network, pixels)


def frames(folder: Path, data: Path) -> Iterator[Figure]:
    from benchmarks import gpu_figures as gpu
    from benchmarks.gpu_frames import read_frames
    from benchmarks.gpu_server import GpuServer
    from fermata.clients.wire.tensors import RawTensor, from_array, join_bytes

    jpegs = read_frames(data)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pixels, wanted = pool.apply(offline, (folder, jpegs))
    raw = [from_array("input", each) for each in pixels]
    encoded = [RawTensor("input", "BYTES", (1,), join_bytes([each])) for each in jpegs]
    with GpuServer(folder, configured()) as server:
        server.wait(gpu.FRONTENDS)
        for name, tensors in (("pixels", raw), ("JPEG by nvJPEG", encoded)):
            got = gpu.answers(server, gpu.MODELS[0], tensors)
            yield from compare(f"{len(jpegs):,} real frames, {name}", got, wanted)


def compare(name: str, got: Any, wanted: Any) -> Iterator[Figure]:
    """The largest difference, and classes where the lead of the first one exceeds it."""
    from benchmarks.gpu_figures import softmax

    scores, exact = softmax(got), softmax(wanted)
    gap = float(np.abs(scores - exact).max())
    top = np.sort(exact, axis=1)
    clear = top[:, -1] - top[:, -2] > gap
    same = scores.argmax(axis=1) == exact.argmax(axis=1)
    yield Figure(f"{name}: scores off offline fp32 by", gap, "", 0.02, at_most=True)
    yield Figure("  frames whose lead exceeds it", float(clear.mean()), "share", 0)
    equal = float(same[clear].mean()) if clear.any() else 1.0
    yield Figure("  same class among these", equal, "share", 1.0)
    yield Figure("  same class among all", float(same.mean()), "share", 0)


def by_frontends(folder: Path, quick: bool) -> Iterator[Figure]:
    from benchmarks import gpu_figures as gpu
    from benchmarks.gpu_server import GpuServer

    config = configured(decode="cpu")
    config["frontend"]["processes"] = CPU_FRONTENDS
    with GpuServer(folder, config) as server:
        server.wait(CPU_FRONTENDS)
        targets = [gpu.target(gpu.MODELS[0], gpu.encoded(0))]
        best = gpu.search(server, targets, CPU_FIRST_RPS, 0.2 if quick else 0.1, quick=True)
    found = best.load.goodput_rps if best else 0.0
    name = f"640x360 JPEG, decoded by {CPU_FRONTENDS} frontends"
    yield Figure(f"{name}, probes of {gpu.PROBE_S / 2:g} s", found, "req/s", 3_500)
    if best is not None:
        *_, whole = gpu.cpu_figures(best, 2_000)
        yield whole


def measure(data: Path, parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    from benchmarks import gpu_figures as gpu
    from benchmarks.gpu_models import need_gpu, seed_files

    need_gpu()
    for part in parts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if part == "frames":
                yield from frames(folder, data)
                continue
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                pool.apply(seed_files, (folder, gpu.MODELS[:1]))
            yield from small(folder) if part == "small" else by_frontends(folder, quick)


if __name__ == "__main__":
    run_on_data("One GPU: rows of their own", measure, PARTS, FILE)
