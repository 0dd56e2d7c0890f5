"""The only backend on a GPU killed again and again while it serves ResNet-50."""

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.gpu_models import CACHE, SHAPE, seed_files
from benchmarks.only_backend import Scene
from benchmarks.only_backend import measure as measure_only

NETWORK = "resnet50"
SCENE = Scene(
    application={
        "name": NETWORK,
        "slo_ms": 50.0,
        "input": {"dtype": "UINT8", "shape": list(SHAPE), "image": True},
        "variants": [
            {"name": NETWORK, "model": f"torchvision:{NETWORK}", "batch_size_max": 64},
        ],
    },
    rate_rps=2_000.0,
    backend={"device": "cuda", "cpus": 1, "kernels": "plain"},
    frontend={"processes": 4},
)


def measure(times: int, spares: Sequence[str]) -> Iterator[Figure]:
    """With random weights, whose run times are those of trained ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(seed_files, (folder, (NETWORK,)))
        os.environ["TORCH_HOME"] = name
        os.environ["XDG_CACHE_HOME"] = os.fspath(folder / CACHE)
        # Without its web pages, as packed for a box, Ray's dashboard is waited for in vain.
        os.environ["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] = "1"
        yield from measure_only(times, spares, SCENE)
