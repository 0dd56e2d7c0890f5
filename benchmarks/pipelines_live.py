"""Pipelines live: scenes A and C on fewer and slower emulated GPUs, beside their simulation.

A machine of two cores runs the clients, the server and its backends, so a scene has a part of its
GPUs, and all of its times are longer. The simulation is of the same scene.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.calm import undisturbed
from benchmarks.figures import Figure
from benchmarks.live_server import Running, fermata
from benchmarks.natives import with_natives
from benchmarks.peer_servers.fan_out import CROP_BYTES, crop_count
from benchmarks.search import highest
from fermata.clients.load.arrivals import poisson, single
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import Sender, SenderOptions, Target
from fermata.clients.wire.tensors import RawTensor
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms, seconds
from fermata.simulator.pipelines.draw import told_scenes

FRAME_BYTES = 20_000
STREAMS = 8
WARMUP_S = 3.0
"""The door learns fan-out and its share meanwhile."""
BAD_RATE_MAX = 0.01
CROPS_MEAN = 5.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A scene's part that two cores can serve."""

    backends: int
    slower: float
    """Times that all run times and SLOs are longer."""


SCALES = {"A": Scale(4, 4.0), "C": Scale(2, 4.0)}
TRANSFORMS = {"A": "crops", "C": "one"}


def crops(result: Any) -> list[Any]:
    """A geometric number of crops, from 0 on."""
    return [np.zeros(CROP_BYTES, np.uint8)] * crop_count(CROPS_MEAN)


def one(result: Any) -> list[Any]:
    """One crop."""
    return [np.zeros(CROP_BYTES, np.uint8)]


def scaled(name: str) -> JsonObject:
    """A scene with fewer and slower backends, as a scenario."""
    scene, scale = told_scenes()[name], SCALES[name]
    found: Any = {**scene, "backends": scale.backends}
    for application in found["applications"]:
        application["slo_ms"] *= scale.slower
        for variant in application["variants"]:
            variant["alpha_ms"] *= scale.slower
            variant["beta_ms"] *= scale.slower
    for pipeline in found["pipelines"]:
        pipeline["slo_ms"] *= scale.slower
    return dict(found)


def server(name: str, **changes: Any) -> AbstractContextManager[Running]:
    """The same scene as a server on emulated GPUs; `changes` replace sections of its file."""
    scene: Any = scaled(name)
    sizes = FRAME_BYTES, CROP_BYTES
    applications = [
        {
            **application,
            "input": {"name": "input", "dtype": "UINT8", "shape": [size]},
            "variants": [{**each, "model": "emulated"} for each in application["variants"]],
        }
        for application, size in zip(scene["applications"], sizes, strict=True)
    ]
    (pipeline,) = scene["pipelines"]
    first, second = pipeline["stages"]
    transform = f"{__name__}:{TRANSFORMS[name]}"
    stages = [first, {"application": second["application"], "transform": transform}]
    backend = {"count": scene["backends"], "device": "emulated", "cpus": 0.1}
    given: dict[str, Any] = {
        "applications": applications,
        "pipelines": [{**pipeline, "stages": stages}],
        "backend": backend,
    }
    return fermata(**with_natives({**given, **changes}))


def slo_ms(name: str) -> float:
    """SLO of a query."""
    scene: Any = scaled(name)
    return float(scene["pipelines"][0]["slo_ms"])


def target(name: str, shape: tuple[int, ...] = (FRAME_BYTES,), *, timeout: bool = True) -> Target:
    """A query of the scene; `timeout` tells the server its SLO."""
    tensor = RawTensor("input", "UINT8", shape, bytes(FRAME_BYTES))
    return Target("pipeline", tensor, ms(slo_ms(name)), timeout=timeout)


def load(
    options: SenderOptions,
    target: Target,
    rate_rps: float,
    seconds_s: float,
    kind: type[Sender] = Sender,
    warmup_s: float = WARMUP_S,
) -> LoadReport:
    """Poisson arrivals of queries at that rate, on a machine that is left alone."""
    total_ns = seconds(warmup_s + seconds_s)

    def probe() -> LoadReport:
        due = single(poisson(rate_rps, total_ns, np.random.default_rng(int(rate_rps))))
        ledger = run_load(options, [target], due, kind=kind)
        return report(ledger, np.array([target.slo_ns]), seconds(warmup_s), total_ns)

    return undisturbed(probe)


def goodput_rps(
    probe: Callable[[float, float], LoadReport], guess_rps: float, quick: bool
) -> float:
    """The highest rate with few bad queries, of two tries each; `probe` loads a server at a rate
    for so many seconds."""
    seconds_s, precision, probes = (5.0, 0.15, 12) if quick else (20.0, 0.04, 12)

    def good(rate_rps: float) -> bool:
        return any(probe(rate_rps, seconds_s).bad_rate <= BAD_RATE_MAX for _ in range(2))

    return highest(good, guess_rps, precision, probes, step=1.1)


def live_figures(name: str, simulated_rps: float, quick: bool) -> Iterator[Figure]:
    with server(name) as running:
        probe = partial(load, SenderOptions(running.address, STREAMS), target(name))
        live_rps = goodput_rps(probe, 0.9 * simulated_rps, quick)
    scale = SCALES[name]
    told = f"scene {name} on {scale.backends} emulated GPUs, {scale.slower:g} times slower"
    yield Figure(f"{told}: live goodput over simulated", live_rps / simulated_rps, "x", 0.9)
    yield Figure(f"{told}: live goodput, for reference", live_rps, "queries/s", 0)
