"""Detectors run over the frames of a clip or folder, one after the other."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fermata.applications.server_options import BoxOptions
from fermata.clients.frames import PICTURES, open_frames
from fermata.clients.wire.errors import WireError
from fermata.deployments.models.model import Array, Card, Model
from fermata.deployments.models.pictures.boxes import (
    Placement,
    as_corners,
    in_frame,
    numbers_of,
)
from fermata.deployments.models.pictures.decoding import decode, fit, write
from fermata.deployments.models.video import NAMES, bundled_video
from fermata.deployments.specs.served_model import OUTPUT, ImageSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.profiles.detection import Detections, judge, nothing_found

PIXELS_MAX = 100_000_000
SCORE_NAMES = ("scores", "score", "confidences")
CLASS_NAMES = ("classes", "class", "labels", "class_ids")


@dataclass(frozen=True, slots=True)
class DetectorForm:
    """A detector's inputs and outputs, beyond what its card says."""

    boxes: BoxOptions | None = None
    image: ImageSpec | None = None
    """Fit and normalisation; None: as the card says, or the whole frame."""

    def of(self, card: Card) -> "DetectorForm":
        """The form of a model with this card."""
        boxes = self.boxes or card.boxes
        if boxes is None:
            raise ConfigError(
                f"{card.name} does not say which output holds boxes; give --boxes OUTPUT[,FORMAT]"
            )
        height, width = card.input_shape[1:]
        image = self.image or ImageSpec(
            height,
            width,
            card.mean or (0.0,) * 3,
            card.std or (1.0,) * 3,
            fit=card.fit or "whole",  # type: ignore[arg-type]
        )
        return DetectorForm(boxes, replace(image, height=height, width=width))


def clip_path(given: str) -> Path:
    """The path of a clip or folder that is there, or of a bundled clip."""
    path = Path(given) if given not in NAMES or Path(given).exists() else bundled_video(given)
    if not path.exists():
        raise ConfigError(f"video={given}: there is no such clip or folder")
    return path


def frames_of(source: str, places: range) -> Iterator[tuple[str, Array]]:
    """(name, pixels) of some frames of a clip, or of the pictures of a folder in order."""
    path = clip_path(source)
    names: Iterable[str] = (str(index) for index in range(places.stop))
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.suffix.lower() in PICTURES)
    try:
        pairs = zip(names, open_frames(path, 0.0), strict=False)
        for name, frame in islice(pairs, places.start, places.stop, places.step):
            yield name, decode(frame, PIXELS_MAX) if isinstance(frame, bytes) else frame
    except WireError as error:
        raise ConfigError(f"video={source}: {error}") from None


def detect(model: Model, form: DetectorForm, frames: Iterable[Array]) -> Iterator[Detections]:
    """The detections in each frame, in its own pixels."""
    form = form.of(model.card)
    assert form.image is not None
    assert form.boxes is not None
    for frame in frames:
        given: Array = np.empty((1, *model.card.input_shape), model.card.input_dtype)
        write(fit(frame, form.image), form.image, given[0])
        height, width = frame.shape[:2]
        placement = Placement.of(form.image, (height, width))
        yield detections_of(model.card.name, model(given), form.boxes, placement)


def detections_of(name: str, answers: Any, boxes: BoxOptions, placement: Placement) -> Detections:
    """The detections of the first frame of a batch."""
    outputs = answers if isinstance(answers, dict) else {OUTPUT: answers}
    if boxes.output not in outputs:
        raise ConfigError(
            f"{name} has no output {boxes.output!r}; give --boxes with one of {', '.join(outputs)}"
        )
    rows = np.asarray(outputs[boxes.output][0])
    if not rows.size:
        return nothing_found()
    try:
        moved = in_frame(rows, boxes, placement)
    except ValueError as error:
        raise ConfigError(f"{name}: output {boxes.output!r} holds no boxes: {error}") from None
    moved = moved.T if boxes.axis == "first" else moved
    moved = moved.reshape(-1, moved.shape[-1])
    count = numbers_of(boxes)
    scores = _column(outputs, SCORE_NAMES, moved, count)
    if scores is None:
        raise ConfigError(
            f"{name}: no scores, neither in an output {' or '.join(SCORE_NAMES)} nor after the "
            "numbers of a box"
        )
    classes = _column(outputs, CLASS_NAMES, moved, count + 1)
    classes = np.zeros(len(moved)) if classes is None else classes
    corners = as_corners(moved[:, :count].astype(np.float64), boxes)
    return Detections(corners, classes.astype(np.int64), scores.astype(np.float64))


def _column(outputs: Any, names: tuple[str, ...], rows: Array, place: int) -> Array | None:
    """One number for each box: an output of its own, or a column of the boxes."""
    for name in names:
        if name in outputs:
            return np.asarray(outputs[name][0]).reshape(-1)
    return rows[:, place] if rows.shape[1] > place else None


class VideoTest:
    """Frames and the boxes that are wanted in each, by labels or by a better detector."""

    def __init__(self, source: str, places: range, metric: str, form: DetectorForm) -> None:
        """`places` are the numbers of the frames that count, as far as there are any."""
        clip_path(source)
        self.source = source
        self.places = places
        self.metric = metric
        self.form = form
        self.wanted: list[Detections] = []

    def _pixels(self) -> Iterator[Array]:
        return (frame for _, frame in frames_of(self.source, self.places))

    def ask(self, reference: Model) -> None:
        """Want what this detector finds."""
        self.wanted = list(detect(reference, self.form, self._pixels()))
        self._check()

    def read(self, path: Path, labels: tuple[str, ...]) -> None:
        """Want what a file says; its classes by name where the detector has names."""
        known = read_labels(path, labels)
        names = [name for name, _ in frames_of(self.source, self.places)]
        absent = [name for name in names if name not in known]
        if absent:
            raise ConfigError(f"reference={path}: has no picture {absent[0]!r} of {self.source}")
        self.wanted = [known[name] for name in names]
        self._check()

    def _check(self) -> None:
        if not any(len(each.boxes) for each in self.wanted):
            raise ConfigError(
                f"video={self.source}: the reference finds nothing in {len(self.wanted)} frames; "
                "give other frames or another reference"
            )

    def judge(self, model: Model, on_frame: Callable[[int], None]) -> float:
        """How good a detector is on these frames, from 0 to 1."""
        found: list[Detections] = []
        for each in detect(model, self.form, self._pixels()):
            found.append(each)
            on_frame(len(found))
        return judge(self.metric, found, self.wanted)


def read_form(boxes: str, mean: str, std: str, fit: str) -> DetectorForm:
    """The form that options give: `boxes,cxcywh,shares`, `0.5,0.5,0.5`; empty where not given."""
    options: BoxOptions | None = None
    if boxes:
        output, *more = (part.strip() for part in boxes.split(","))
        formats, units = ("xyxy", "xywh", "cxcywh", "yxyx", "quad"), ("pixels", "shares")
        how = next((part for part in more if part in formats), "xyxy")
        unit = next((part for part in more if part in units), "pixels")
        axis = "first" if "first" in more else "last"
        if not set(more) <= {how, unit, axis}:
            rule = f"must be OUTPUT[,{'|'.join(formats)}][,{'|'.join(units)}][,first]"
            refuse("boxes", boxes, rule)
        options = BoxOptions(output, how, unit, axis)  # type: ignore[arg-type]
    if not (mean or std or fit):
        return DetectorForm(options)
    image = ImageSpec(
        1,
        1,
        _three("mean", mean or "0,0,0"),
        _three("std", std or "1,1,1"),
        fit or "whole",  # type: ignore[arg-type]
    )
    return DetectorForm(options, image)


def _three(option: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) != 3 or (option == "std" and min(found) <= 0):
        refuse(option, text, "must be three numbers with commas, as in 0.5,0.5,0.5")
    return found


class CocoCategory(msgspec.Struct):
    """A class of objects."""

    id: int
    name: str = ""


class CocoPicture(msgspec.Struct):
    """A picture; frames of a clip have their number for an id, and no file."""

    id: int | str
    file_name: str = ""


class CocoBox(msgspec.Struct):
    """One object of a picture: left, top, width and height."""

    image_id: int | str
    bbox: tuple[float, float, float, float]
    category_id: int


class CocoLabels(msgspec.Struct):
    """A file of labels, as far as it is read."""

    images: list[CocoPicture]
    annotations: list[CocoBox]
    categories: list[CocoCategory] = []


def read_labels(path: Path, labels: tuple[str, ...] = ()) -> dict[str, Detections]:
    """Boxes by picture from a file in COCO's format: file names, or numbers of frames as ids.

    A category is the label of its name, or its own number where there is no such label.
    """
    try:
        told = msgspec.json.decode(path.read_bytes(), type=CocoLabels)
        kinds = {
            each.id: labels.index(each.name) for each in told.categories if each.name in labels
        }
        names = {each.id: Path(each.file_name or str(each.id)) for each in told.images}
        rows: dict[str, list[tuple[list[float], int]]] = {each.name: [] for each in names.values()}
        for box in told.annotations:
            x, y, width, height = box.bbox
            kind = kinds.get(box.category_id, box.category_id)
            rows[names[box.image_id].name].append(([x, y, x + width, y + height], kind))
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        raise ConfigError(
            f"reference={path}: must be labels in COCO's format (images, annotations with "
            f"image_id, bbox, category_id), or name a model: {type(error).__name__} {error}"
        ) from None
    return {
        name: Detections(
            np.array([box for box, _ in held]).reshape(-1, 4),
            np.array([kind for _, kind in held], np.int64),
            np.ones(len(held)),
        )
        for name, held in rows.items()
    }
