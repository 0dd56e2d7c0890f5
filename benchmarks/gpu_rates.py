"""On a GPU box: shares of requests in time at fixed rates, by ways to set a server up.

Minutes in place of the search of `benchmarks.gpu`: enough to compare two versions on one box.
"""

import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, run_parts

PIXELS, JPEG = "150 KB pixels", "640x360 JPEG"


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to set a server up, and the rates that it is asked for."""

    told: str
    frontends: int
    rates: tuple[tuple[str, int], ...]
    decode: str = "auto"
    seconds: float = 4.0
    """Length of each load."""
    models: int = 1
    """So many share the GPU, at equal rates."""


SETTINGS = {
    "eight": Setting(
        "eight frontends",
        8,
        ((PIXELS, 1_000), (PIXELS, 10_000), (PIXELS, 12_000), (PIXELS, 14_000), (JPEG, 8_000)),
    ),
    "ten": Setting(
        "ten frontends",
        10,
        ((PIXELS, 14_000), (PIXELS, 16_000), (PIXELS, 18_000), (JPEG, 10_000), (JPEG, 12_000)),
    ),
    "calm": Setting("ten frontends", 10, ((PIXELS, 1_000), (PIXELS, 10_000))),
    "long": Setting("ten frontends, 30 s", 10, ((PIXELS, 15_000),) * 2, seconds=30.0),
    "three": Setting(
        "three models, ten frontends",
        10,
        ((PIXELS, 12_000), (PIXELS, 13_340), (PIXELS, 15_000)),
        models=3,
    ),
    "cpu": Setting("JPEGs decoded by ten frontends", 10, ((JPEG, 2_500), (JPEG, 3_500)), "cpu"),
}


def configured(setting: Setting) -> dict[str, Any]:
    from benchmarks import gpu_figures as gpu

    found = gpu.config(gpu.MODELS[: setting.models])
    found["frontend"]["processes"] = setting.frontends
    for application in found["applications"]:
        application["input"]["decode"] = setting.decode
    return found


def shares(folder: Path, setting: Setting) -> Iterator[Figure]:
    """Shares of good answers, with the latencies, the lead and the CPU time of a request."""
    from benchmarks import gpu_figures as gpu
    from benchmarks.gpu_server import GpuServer

    with GpuServer(folder, configured(setting)) as server:
        server.wait(setting.frontends)
        for sent, rate in setting.rates:
            tensor = gpu.raw(0) if sent == PIXELS else gpu.encoded(0)
            targets = [gpu.target(model, tensor) for model in gpu.MODELS[: setting.models]]
            found = gpu.probe(server, targets, setting.seconds, rate)
            name = f"{sent}, {rate:,} req/s, {setting.told}"
            yield Figure(f"{name}: good", found.worst, "share", gpu.GOOD)
            for quantile in ("p50", "p99"):
                late_ms = found.load.latency_ms[quantile] or 0.0
                yield Figure(f"  {quantile}", late_ms, "ms", gpu.SLO_MS, at_most=True)
            yield Figure("  lead", found.spent.lead_ms, "ms", 2, at_most=True)
            *_, whole = gpu.cpu_figures(found, 400 if sent == PIXELS else 330)
            yield whole


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    from benchmarks import gpu_figures as gpu
    from benchmarks.gpu_models import need_gpu, prepare

    need_gpu()
    settings = [SETTINGS[part] for part in parts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            most = max(settings, key=lambda each: each.models)
            given = (folder, gpu.MODELS[: most.models], configured(most), gpu.IMAGES)
            pool.apply(prepare, given)
        for setting in settings[:1] if quick else settings:
            yield from shares(folder, setting)


if __name__ == "__main__":
    run_parts(
        "One GPU at fixed rates",
        measure,
        {name: setting.told for name, setting in SETTINGS.items()},
    )
