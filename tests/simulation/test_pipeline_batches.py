"""Batches of a pipeline whose run times have a long tail, before and after an overload."""

from typing import Any

import numpy as np
import pytest

from fermata.foundation.units import SECOND
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import read_scenario

DETECT, CLASSIFY = 32, 128
"""The largest batches."""
WHOLE_RPS = 2215.0
"""Queries a second with such batches, and nothing else."""
LOADS = [0.75] * 4 + [1.3] * 3 + [0.75] * 5
"""By second."""


def run_times(points: dict[int, float]) -> list[float]:
    """Milliseconds by batch size, from 1 up: lines between these points."""
    sizes = range(1, max(points) + 1)
    return [float(each) for each in np.interp(sizes, list(points), list(points.values()))]


def application(name: str, points: dict[int, float]) -> dict[str, Any]:
    variant = {"name": f"{name}-model", "latency_ms": run_times(points)}
    return {"name": name, "slo_ms": 80, "variants": [variant]}


def driver(seed: int) -> Driver:
    stages = [
        {"application": "detect"},
        {"application": "classify", "fan_out": {"mean": 5}},
    ]
    document: dict[str, Any] = {
        "seed": seed,
        "duration_s": len(LOADS),
        "warmup_s": 0,
        "backends": 1,
        "dispatch_ms": 10,
        "execution": {"jitter": 0.03, "variation": 0.6},
        "arrivals": {
            "process": "trace",
            "rps": [WHOLE_RPS * load for load in LOADS],
            "step_s": 1,
        },
        "applications": [
            application("detect", {1: 1.1, 8: 1.9, 16: 3.0, DETECT: 5.4}),
            application("classify", {1: 1.2, 16: 1.6, 32: 2.4, 64: 3.9, CLASSIFY: 7.24}),
        ],
        "pipelines": [{"name": "objects", "slo_ms": 80, "stages": stages}],
    }
    return Driver(read_scenario(document))


@pytest.mark.parametrize("seed", [1, 3, 6])
def test_a_first_stage_keeps_to_large_batches_after_an_overload(seed: int) -> None:
    """Margins of sizes that hardly run are small. Small batches seem cheap by them, and would take
    all of the backend's time."""
    run = driver(seed)
    run.run()
    found: dict[int, list[int]] = {}
    first = len(run.arrivals.at_ns)
    detected = {run.batch[rid] for rid in range(first, len(run.end_ns)) if not run.variant[rid]}
    for place in detected:
        _, _, end_ns, size = run.batches[place]
        found.setdefault(end_ns // SECOND, []).append(size)
    means = [float(np.mean(found[second])) for second in range(1, len(LOADS))]
    assert min(means) > DETECT / 2
