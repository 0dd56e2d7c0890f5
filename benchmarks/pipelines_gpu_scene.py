"""A pipeline of real models for one device: YOLOv4-tiny, then EfficientNet-lite0 on its crops.

The detector is the embedded one, but for the number of its boxes: that is drawn for each frame, and
boxes are repeated where it has found fewer.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from fermata.clients.frames import encode_jpeg
from fermata.clients.wire.tensors import RawTensor, join_bytes
from fermata.deployments.backend.models.loaders import load_runner, pick_device
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.processes.process_options import store_options
from fermata.deployments.models.detectors import objects
from fermata.deployments.models.detectors.judging import frames_of

CROPS_MEAN = 5.0
FRAME = (640, 360)
"""Width and height."""
FRAMES = 24
CLIP, EVERY = "bikes", 10
SLO_MS, CPU_SLO_MS = 100.0, 4000.0
NAME = "objects"
NOTHING_FOUND = np.array([[40.0, 40.0, 240.0, 200.0, 0.5, 0.0]], np.float32)
"""The box that is repeated where a frame has none, as a row of `objects.decode`."""
REPEATS, REPEATS_QUICK = 30, 3


@dataclass(frozen=True, slots=True)
class Setting:
    """Device and sizes of one server."""

    device: str
    detect_max: int
    classify_max: int
    frontends: int
    slo_ms: float
    decode: str = "auto"
    """Place where JPEGs are decoded (`input.decode`)."""

    @staticmethod
    def on(device: str, decode: str = "auto") -> "Setting":
        if device == "cuda":
            return Setting(device, 32, 128, 8, SLO_MS, decode)
        # With decode: gpu a backend decodes where it runs; a CPU is taken for that if not named.
        named = "auto" if decode == "gpu" else device
        return Setting(named, 2, 8, 1, CPU_SLO_MS, decode)


def load_detector(device: str) -> objects.ObjectDetector:
    """The detector with a geometric number of boxes a frame, from 0 on."""
    model = objects.load(device=device)
    rng = np.random.default_rng(1_000_003)
    side = model.card.input_shape[1]

    def finish(rows: Any) -> Any:
        found = objects.decode(rows, objects.SCORE_MIN, side)
        counts = rng.geometric(1 / (1 + CROPS_MEAN), len(rows)) - 1
        for place, count in enumerate(counts.tolist()):
            if not len(found[objects.SCORES][place]):
                (one,) = NOTHING_FOUND
                found[objects.BOXES][place] = one[None, :4]
                found[objects.SCORES][place] = one[4:5]
                found[objects.CLASSES][place] = one[5:].astype(np.int64)
            for column in found.values():
                column[place] = np.resize(column[place], (count, *column[place].shape[1:]))
        return found

    model._finish = finish
    return model


def sections(setting: Setting) -> dict[str, Any]:
    """Sections of the server's configuration."""
    pictures = {"dtype": "UINT8", "image": True, "decode": setting.decode}
    size = objects.SIZE
    detect = {
        "name": "detect",
        "slo_ms": setting.slo_ms,
        "input": {**pictures, "shape": [3, size, size], "fit": "whole",
                  "mean": [0, 0, 0], "std": [1, 1, 1]},
        "boxes": {"output": objects.BOXES},
        "variants": [{"name": "tiny", "model": f"{__name__}:load_detector",
                      "batch_size_max": setting.detect_max}],
    }  # fmt: skip
    classify = {
        "name": "classify",
        "slo_ms": setting.slo_ms,
        "input": {**pictures, "shape": [3, 224, 224], "fit": "centre"},
        "variants": [{"name": "lite0", "model": "imagenet:lite0@224",
                      "batch_size_max": setting.classify_max}],
    }  # fmt: skip
    stages = [
        {"application": "detect"},
        {"application": "classify", "transform": {"crop": {}}, "classes": 3},
    ]
    return {
        "applications": [detect, classify],
        "pipelines": [{"name": NAME, "slo_ms": setting.slo_ms, "stages": stages}],
        "backend": {"count": 1, "device": setting.device, "cpus": 0.5, "kernels": "plain",
                    "spare": False},
        "frontend": {"processes": setting.frontends},
    }  # fmt: skip


def jpegs() -> list[RawTensor]:
    """Frames of a film, as clients send them."""
    found: list[RawTensor] = []
    for _, pixels in frames_of(CLIP, range(0, EVERY * FRAMES, EVERY)):
        frame = np.asarray(Image.fromarray(pixels).resize(FRAME))
        found.append(RawTensor("input", "BYTES", (1,), join_bytes([encode_jpeg(frame)])))
    return found


@dataclass(frozen=True, slots=True)
class OfflineRate:
    """Rows a second of a runner without a server, at its best batch."""

    variant: str
    rows_s: float
    batch: int


def offline(setting: Setting, quick: bool) -> list[OfflineRate]:
    """Rows a second of each runner from inputs that are staged, its answers on the host."""
    config = read_config(sections(setting))
    found: list[OfflineRate] = []
    for spec in store_options(config).specs:
        runner: Any = load_runner(spec, _device(setting), MemoryBudget())
        rates = list(_rates(runner, spec.batch_size_max, REPEATS_QUICK if quick else REPEATS))
        found.append(max((OfflineRate(spec.name, *each) for each in rates), key=_rows_s))
        runner.close()
    return found


def _rows_s(rate: OfflineRate) -> float:
    return rate.rows_s


def _device(setting: Setting) -> str:
    return pick_device("cuda") if setting.device == "cuda" else "cpu"


def _rates(runner: Any, size_max: int, repeats: int) -> Iterator[tuple[float, int]]:
    size = 1
    while size <= size_max:
        took_s = sorted(_timed_s(runner, size) for _ in range(repeats))
        yield size / took_s[len(took_s) // 2], size
        size *= 2


def _timed_s(runner: Any, size: int) -> float:
    """One run of a batch that lies on the device already."""
    inner = getattr(runner, "inner", runner)
    shape = runner.shape if hasattr(runner, "shape") else inner.model.card.input_shape
    rng = np.random.default_rng(size)
    items = list(rng.integers(0, 256, (size, *shape), np.uint8))
    staged = inner.stage(items)
    torch = getattr(inner, "torch", None)
    if torch is not None:
        torch.cuda.synchronize()
    from_s = time.perf_counter()
    inner.run(staged)
    return time.perf_counter() - from_s


def frames_s(rates: Sequence[OfflineRate]) -> float:
    """Frames a second of runners that take turns: one of the first, and crops of the second."""
    detect, classify = rates
    return 1 / (1 / detect.rows_s + CROPS_MEAN / classify.rows_s)
