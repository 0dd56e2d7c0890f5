"""Ways to run three models at batch 64, and answers in time while a compiler works beside them."""

import logging
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.gpu_figures import (
    FRONTENDS,
    MODELS,
    PROBE_S,
    Probe,
    config,
    probe,
    raw,
    say,
    target,
)
from benchmarks.gpu_models import choose_kernels, seed, seed_files
from benchmarks.gpu_server import GpuServer
from fermata.deployments.backend.execution.cuda.captured import PLAIN
from fermata.deployments.backend.kernels.choice import Choice
from fermata.deployments.models.cache import cache_folder
from fermata.foundation.logs import LOG

BATCH = 64
GOALS = {"resnet50": 27_000, "mobilenet_v3_large": 50_000, "vit_b_16": 10_000}
"""Images a second of the way that is chosen."""
HALF = 5_000
"""Half of the rate of ResNet-50 that plain kernels serve in time (docs/gpu.md)."""
LOADED_S = 75.0
BAD = 0.005
COMPILER = b"kernels.compiler"
TOLD = ("another way", "faster kernels", "kernels stay")
"""Beginnings of what a backend logs of its kernels."""


def offline(folder: Path) -> dict[str, Choice]:
    """Weights for servers too, and every way at batch 64; in a process of its own."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("  %(message)s %(fields)s", defaults={"fields": ""}))
    LOG.addHandler(shown)
    LOG.setLevel(logging.INFO)
    seed(folder, MODELS)
    # Not where the server looks, which is to start without any.
    cache = cache_folder({"XDG_CACHE_HOME": os.fspath(folder / "offline")})
    return choose_kernels(config(MODELS, BATCH), cache, [BATCH])


def rates(model: str, choice: Choice) -> Iterator[Figure]:
    """Images a second by way, and of the one that is chosen."""
    found = {
        way: 1e9 * BATCH / times[BATCH] for way, times in choice.times_ns.items() if BATCH in times
    }
    for way, rate in found.items():
        yield Figure(f"{model}, {way}, batch {BATCH}", rate, "images/s", 0)
    if PLAIN not in found:
        # Nothing was timed, for want of another way.
        return
    chosen = choice.ways.get(BATCH, PLAIN)
    yield Figure(f"  chosen: {chosen}", found[chosen], "images/s", GOALS[model])
    yield Figure("  over plain", found[chosen] / found[PLAIN], "x", 1)


def compilers() -> int:
    """Processes that compile now."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            count += COMPILER in path.read_bytes()
    return count


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Seconds of the block in which a compiler was at work."""
    found: dict[str, float] = {"compiling_s": 0.0}
    ended = threading.Event()

    def watch() -> None:
        last_s = time.monotonic()
        while not ended.wait(0.5):
            now_s = time.monotonic()
            found["compiling_s"] += (now_s - last_s) * bool(compilers())
            last_s = now_s

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


def beside_a_compiler(folder: Path, quick: bool) -> Iterator[Figure]:
    """A start without any kernels known, under load from its first second on."""
    loaded_s = LOADED_S / 2 if quick else LOADED_S
    logs = folder / "logs"
    told = {"logs": {"level": "info", "folder": os.fspath(logs)}}
    given = config(MODELS[:1])
    given["backend"]["kernels"] = "compiled"
    with GpuServer(folder, {**given, **told}) as server:
        server.wait(FRONTENDS)
        targets = [target(MODELS[0], raw(0))]
        with watched() as found:
            busy = probe(server, targets, loaded_s, HALF)
        tell(logs)
        name = f"ResNet-50 at {HALF:,} req/s for {loaded_s:g} s from an empty cache"
        yield Figure(f"{name}: bad", 1 - busy.worst, "share", BAD, at_most=True)
        yield from latency(busy)
        yield Figure("  with a compiler at work for", found["compiling_s"], "s", loaded_s / 3)
        # Where it works still, this is no comparison.
        calm = probe(server, targets, PROBE_S, HALF)
        yield Figure(f"  bad afterwards, {compilers()} compilers", 1 - calm.worst, "share", BAD,
                     at_most=True)  # fmt: skip
        yield from latency(calm)


def latency(found: Probe) -> Iterator[Figure]:
    yield Figure("  p99", found.load.latency_ms["p99"] or 0.0, "ms", 25, at_most=True)


def tell(logs: Path) -> None:
    """Show what the backend says of its kernels."""
    for path in logs.rglob("*"):
        for line in path.read_text().splitlines() if path.is_file() else ():
            if any(each in line for each in TOLD):
                say(f"  {line}")


def ways_figures(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # What it holds of the GPU goes when it ends.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            if "ways" in parts:
                choices: dict[str, Any] = pool.apply(offline, (folder,))
                for model, choice in choices.items():
                    yield from rates(model, choice)
            else:
                pool.apply(seed_files, (folder, MODELS[:1]))
        if "compiling" in parts:
            yield from beside_a_compiler(folder, quick)
