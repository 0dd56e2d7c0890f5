"""A scene with a pipeline of two stages, and what a peer's processes are told of it."""

from dataclasses import dataclass
from typing import Any

from benchmarks.peer_servers.pipeline_knobs import PipelineKnobs
from benchmarks.peer_servers.setup import ModelSetup, Setup
from benchmarks.pipelines_live import CROPS_MEAN, SCALES, TRANSFORMS, scaled, slo_ms


@dataclass(frozen=True, slots=True)
class PipelineScene:
    name: str
    gpus: int
    slo_ms: float
    stages: tuple[tuple[str, float, float], ...]
    """Name, milliseconds a row and of a batch."""
    crops_mean: float
    """Crops of a frame, drawn; 0 for always one."""


def pipeline_scene(name: str) -> PipelineScene:
    """The scene as it is served live."""
    applications: Any = scaled(name)["applications"]
    stages = tuple(
        (each["name"], each["variants"][0]["alpha_ms"], each["variants"][0]["beta_ms"])
        for each in applications
    )
    mean = CROPS_MEAN if TRANSFORMS[name] == "crops" else 0.0
    return PipelineScene(name, SCALES[name].backends, slo_ms(name), stages, mean)


def gpus_of(scene: PipelineScene, knobs: PipelineKnobs) -> tuple[tuple[int, ...], ...]:
    """The GPUs of each stage."""
    everything = tuple(range(scene.gpus))
    first, second = knobs.gpus
    if not first:
        return everything, everything
    assert first + second == scene.gpus, f"{knobs.gpus} of {scene.gpus} GPUs"
    return everything[:first], everything[first:]


def setup_of(scene: PipelineScene, knobs: PipelineKnobs, folder: str) -> Setup:
    """The knobs worked out for each stage."""
    models = tuple(
        ModelSetup(
            name=name,
            alpha_ms=alpha_ms,
            beta_ms=beta_ms,
            batch_size_max=knobs.batches[place],
            wait_ms=knobs.waits[place] * scene.slo_ms,
            queue_ms=knobs.queues[place] * scene.slo_ms,
            gpus=gpus_of(scene, knobs)[place],
        )
        for place, (name, alpha_ms, beta_ms) in enumerate(scene.stages)
    )
    options = {
        "slo_ms": scene.slo_ms,
        "crops_mean": scene.crops_mean,
        "together": knobs.together,
        "deadlines": knobs.deadlines,
        "ongoing": knobs.ongoing,
        "scripts": knobs.scripts,
    }
    return Setup(folder, 0, models, options)
