"""How good a detector is: mean average precision and F1 of its boxes against wanted ones."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
OVERLAP_MIN = 0.5
"""Intersection over union from which on a box is found (the AP50 of PASCAL VOC and COCO)."""
SCORE_MIN = 0.5
"""Boxes below it do not count for F1."""


@dataclass(frozen=True, slots=True)
class Detections:
    """Boxes of one frame, in its pixels."""

    boxes: Array
    """[n, 4] as x1, y1, x2, y2."""
    classes: Array
    """[n]"""
    scores: Array
    """[n]; wanted boxes have 1."""


def nothing_found() -> Detections:
    """A frame without boxes."""
    return Detections(np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))


Frames = Sequence[tuple[Detections, Detections]]
"""(found, wanted) of each frame."""


def overlaps(boxes: Array, others: Array) -> Array:
    """Intersection over union of each box with each other, [n, m]."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:4], others[None, :, 2:4])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(each[:, 2:4] - each[:, :2], axis=1) for each in (boxes, others)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    # Boxes without area share nothing.
    found: Array = shared / np.maximum(union, 1e-9)
    return found


def matches(found: Detections, wanted: Detections) -> Array:
    """Whether each box, the best first, is one of those wanted that no better one has taken."""
    order = np.argsort(-found.scores, kind="stable")
    hits = np.zeros(len(order), bool)
    shared = overlaps(found.boxes[order], wanted.boxes)
    shared[found.classes[order][:, None] != wanted.classes[None, :]] = 0.0
    for row in range(len(order)):
        if not shared.shape[1]:
            break
        best = int(shared[row].argmax())
        if shared[row, best] >= OVERLAP_MIN:
            hits[row] = True
            shared[:, best] = 0.0
    kept = np.zeros(len(order), bool)
    kept[order] = hits
    return kept


def mean_average_precision(frames: Frames) -> float:
    """Mean over the classes that are wanted of the area below precision by recall, each precision
    raised to the best of higher recalls."""
    frames = list(frames)
    wanted = [each.classes for _, each in frames]
    classes = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0)
    scores = np.concatenate([found.scores for found, _ in frames]) if frames else np.zeros(0)
    kinds = np.concatenate([found.classes for found, _ in frames]) if frames else np.zeros(0)
    hits = np.concatenate([matches(*pair) for pair in frames]) if frames else np.zeros(0)
    values: list[float] = []
    for kind in classes:
        mine = np.flatnonzero(kinds == kind)
        order = mine[np.argsort(-scores[mine], kind="stable")]
        count = sum(int((each == kind).sum()) for each in wanted)
        right = np.cumsum(hits[order])
        precision = right / np.arange(1, len(order) + 1)
        best = np.maximum.accumulate(precision[::-1])[::-1]
        steps = np.diff(right / count, prepend=0.0)
        values.append(float((best * steps).sum()))
    return float(np.mean(values)) if values else 0.0


def f1_score(frames: Frames) -> float:
    """Harmonic mean of precision and recall over all frames, of boxes that are rather sure."""
    right = found_count = wanted_count = 0
    for found, wanted in frames:
        sure = found.scores >= SCORE_MIN
        likely = Detections(found.boxes[sure], found.classes[sure], found.scores[sure])
        right += int(matches(likely, wanted).sum())
        found_count += len(likely.boxes)
        wanted_count += len(wanted.boxes)
    total = found_count + wanted_count
    return 2 * right / total if total else 1.0


METRICS: dict[str, Callable[[Frames], float]] = {
    "map": mean_average_precision,
    "f1": f1_score,
}


def judge(metric: str, found: Iterable[Detections], wanted: Iterable[Detections]) -> float:
    """The metric over frames, rounded as profiles keep it."""
    return round(METRICS[metric](list(zip(found, wanted, strict=True))), 4)
