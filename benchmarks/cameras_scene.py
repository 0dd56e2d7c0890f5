"""Film, measured sizes and configuration of a server that cameras stream to."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fermata.deployments.backend.models.measured_model import open_measured
from fermata.deployments.models.detectors.judging import DetectorForm, VideoTest, frames_of
from fermata.profiles.detection import Detections
from fermata.profiles.store import load_file

ROOT = Path(__file__).parents[1]
MODEL = "objects:yolov4-tiny"
NAME = "objects"
CLIP = "bikes"
CLIP_FRAMES = 240
METRIC = "map"
BUDGET_MS = 300
"""To measure each size and batch size."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Frames that the cameras see, and the sizes that are served."""

    sizes: tuple[int, ...]
    """Sides of the detector's inputs, from the smallest."""
    reference: int
    """Side at which it says what is to be found."""
    frames: int
    """Frames taken of the film, spread over the clip."""
    device: str
    batch_size_max: int
    frontends: int

    @property
    def places(self) -> range:
        every = CLIP_FRAMES // self.frames
        return range(0, self.frames * every, every)


def variant_name(size: int) -> str:
    return f"{NAME}-{size}"


def keep_film(scene: Scene, path: Path) -> list[Detections]:
    """Write the frames as one array; return what the reference finds in each."""
    np.save(path, np.stack([frame for _, frame in frames_of(CLIP, scene.places)]))
    test = VideoTest(CLIP, scene.places, METRIC, DetectorForm())
    test.ask(open_measured(f"{MODEL}@{scene.reference}", scene.device))
    return test.wanted


def profile(scene: Scene, path: Path) -> dict[int, float]:
    """Measure run times and accuracy of every size as a user would; the accuracy by size."""
    batches = [size for size in (1, 2, 4, 8, 16) if size <= scene.batch_size_max]
    options = {
        "--input-sizes": _listed(scene.sizes),
        "--batches": _listed(batches),
        "--device": scene.device,
        "--budget-ms": BUDGET_MS,
        "--video": CLIP,
        "--reference": f"{MODEL}@{scene.reference}",
        "--frames": scene.frames,
        "--every": scene.places.step,
        "--metric": METRIC,
        "--output": path,
    }
    given = [os.fspath(part) if isinstance(part, Path) else str(part)
             for pair in options.items() for part in pair]  # fmt: skip
    command = [sys.executable, "-m", "fermata.commands.main", "profile", MODEL, *given]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    found = {each.name: each.accuracy for each in load_file(path).profiles}
    return {size: found[f"{MODEL}@{size}"] or 0.0 for size in scene.sizes}


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def sections(scene: Scene, profiles: Path, slo_ms: float) -> dict[str, Any]:
    """Sections of the server's configuration: one application, every size a variant of it."""
    side = scene.sizes[-1]
    variants = [
        {
            "name": variant_name(size),
            "model": f"{MODEL}@{size}",
            "profile": f"{profiles}#{MODEL}@{size}",
            "batch_size_max": scene.batch_size_max,
        }
        for size in scene.sizes
    ]
    application = {
        "name": NAME,
        "slo_ms": slo_ms,
        "policy": "jellyfish",
        "input": {
            "dtype": "UINT8",
            "shape": [3, side, side],
            "image": True,
            "fit": "whole",
            "sized": True,
        },
        "variants": variants,
    }
    backend = {"count": 1, "device": scene.device, "cpus": 0.5, "kernels": "plain", "spare": False}
    return {
        "applications": [application],
        "backend": backend,
        "frontend": {"processes": scene.frontends},
    }
