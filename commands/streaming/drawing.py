"""Frames with what was found in them: boxes, classes and texts, in the camera's own pixels."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fermata.applications.server_options import BoxOptions
from fermata.clients.describe import ModelDescription
from fermata.clients.frames import Frame
from fermata.clients.pending import FrameResult
from fermata.clients.pipeline_answers import BoxForm, PipelineAnswer, StagePart
from fermata.commands.streaming.answers import (
    box_rows,
    labels_said,
    place_of,
    read_answer,
    said_of,
)
from fermata.deployments.models.pictures.boxes import as_corners
from fermata.foundation.errors import ConfigError

Point = tuple[float, float]
COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#000075")
"""Dark enough for white letters."""
CHARACTERS_MAX = 80
QUALITY = 90


@dataclass(frozen=True, slots=True)
class Outline:
    """Something that was found, and where."""

    corners: tuple[Point, ...]
    """In pixels of the frame, in order; empty: it is said of the whole."""
    said: str


class FrameDrawer:
    """Saves the frames of one stream."""

    def __init__(self, folder: Path, model: ModelDescription) -> None:
        self.folder = folder
        self.model = model
        self.first = 0
        """The number of the stream's first frame."""
        self.next = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from None

    @staticmethod
    def of_camera(folder: Path, name: str, model: ModelDescription) -> "FrameDrawer":
        """One for a camera among others, with a folder of its own, whatever its name is."""
        plain = quote(name, safe=" ")
        return FrameDrawer(folder / (plain if plain.strip(".") else f"_{plain}"), model)

    def begin(self) -> None:
        """The stream begins, or begins anew: its frames come after those that are there."""
        self.first = self.next

    def save(self, result: FrameResult) -> None:
        """Draw and save a frame that has an answer; others are left out."""
        if not result.ok or result.frame is None:
            return
        number = self.first + result.index
        self.next = max(self.next, number + 1)
        path = self.folder / f"{number:06d}.jpg"
        try:
            drawn(result.frame, outlines(result.outputs, self.model)).save(path, quality=QUALITY)
        except OSError as error:
            raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"draw={str(path)!r}: {error.strerror or error}; give a folder for frames")


# From answers to outlines


def outlines(outputs: Mapping[str, Any], model: ModelDescription) -> list[Outline]:
    """All that an answer tells of a frame."""
    answer = read_answer(outputs, model)
    if answer is not None:
        return _of_pipeline(answer, model.stage_boxes)
    if model.boxes in outputs:
        form = BoxForm(model.boxes, model.boxes_format, model.boxes_axis, model.box_labels)
        return _of_detector(outputs, form)
    texts = [labels_said(each) for each in outputs.values() if each.dtype == object]
    return [Outline((), each) for each in texts]


def _of_detector(outputs: Mapping[str, Any], form: BoxForm) -> list[Outline]:
    """Boxes with their classes and scores, which stand where crops of pipelines find them."""
    rows = box_rows(outputs[form.output], form)
    scores = _column(outputs.get("scores"), rows, form.numbers)
    numbers = _column(outputs.get("classes"), rows, form.numbers + 1)
    found: list[Outline] = []
    for place, row in enumerate(rows):
        name = "" if numbers is None else _label(form.labels, int(numbers[place]))
        score = "" if scores is None else f"{scores[place]:.2f}"
        said = " ".join(filter(None, (name, score)))
        found.append(Outline(_corners_of(row[: form.numbers], form.format), said))
    return found


def _column(output: Any, rows: Any, behind: int) -> Any:
    """A number for each box: of an output of their own, or behind those that place it."""
    if output is not None:
        numbers = np.array(output).reshape(-1)
        return numbers if len(numbers) == len(rows) else None
    return rows[:, behind] if rows.shape[1] > behind else None


def _label(labels: Sequence[str], number: int) -> str:
    return labels[number] if 0 <= number < len(labels) else str(number)


def _corners_of(numbers: Any, form: str) -> tuple[Point, ...]:
    if form == "quad":
        return tuple((float(x), float(y)) for x, y in numbers.reshape(4, 2))
    return _rectangle(as_corners(numbers.astype(np.float64), BoxOptions(format=form)))  # type: ignore[arg-type]


def _rectangle(box: Sequence[float]) -> tuple[Point, ...]:
    left, top, right, bottom = map(float, box)
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _of_pipeline(answer: PipelineAnswer, forms: Mapping[str, BoxForm]) -> list[Outline]:
    """Places of parts, each once, with what the last stages have found there."""
    if answer.has_answer:
        said = json.dumps(answer.answer, ensure_ascii=False)
        return [Outline((), said if len(said) <= CHARACTERS_MAX else f"{said[:CHARACTERS_MAX]}...")]
    parents = {part.of for parts in answer.stages.values() for part in parts}
    places: dict[tuple[Point, ...], list[str]] = {}
    found: list[Outline] = []
    for stage, parts in answer.stages.items():
        form = forms.get(stage)
        for number, part in enumerate(parts):
            is_detector = form is not None and form.output in part.outputs
            if form is not None and is_detector and not form.cropped:
                found += _of_detector(part.outputs, form)
            told = [place_of(part)]
            if (stage, number) not in parents and not is_detector:
                told.append(said_of(part, None, tensors=False))
            here = places.setdefault(_place(part), [])
            here += [each for each in told if each and each not in here]
    parts_found = [Outline(where, ", ".join(texts)) for where, texts in places.items()]
    return [each for each in parts_found if each.corners or each.said] + found


def _place(part: StagePart) -> tuple[Point, ...]:
    return part.quad or (_rectangle(part.box) if part.box else ())


# From outlines to pixels


def drawn(frame: Frame, found: Sequence[Outline]) -> Image.Image:
    """The frame with everything drawn into it; as large as it was."""
    if isinstance(frame, bytes):
        with Image.open(BytesIO(frame)) as opened:
            picture = opened.convert("RGB")
    else:
        picture = Image.fromarray(frame)
    draw = ImageDraw.Draw(picture)
    longer = max(picture.size)
    font = ImageFont.load_default(max(10, longer // 50))
    line = max(1, longer // 400)
    below = 0.0
    for each in found:
        # The same thing has the same colour in every frame.
        colour = COLOURS[crc32(each.said.partition(" ")[0].encode()) % len(COLOURS)]
        if each.corners:
            draw.line([*each.corners, *each.corners[:2]], fill=colour, width=line, joint="curve")
            left, top = min(x for x, _ in each.corners), min(y for _, y in each.corners)
            _write(draw, picture.size, (left, top), each.said, font, colour, above=True)
        else:
            below = _write(draw, picture.size, (0, below), each.said, font, colour, above=False)
    return picture


def _write(
    draw: ImageDraw.ImageDraw,
    size: tuple[int, int],
    where: Point,
    said: str,
    font: Any,
    colour: str,
    above: bool,
) -> float:
    """Write on a ground of this colour, inside the frame; returns where the next line may stand."""
    if not said:
        return where[1]
    _, _, width, height = draw.textbbox((0, 0), said, font=font)
    wide, high = width + 4, height + 4
    left = max(0.0, min(where[0], size[0] - wide))
    top = max(0.0, where[1] - high if above else min(where[1], size[1] - high))
    draw.rectangle((left, top, left + wide, top + high), fill=colour)
    draw.text((left + 2, top + 2), said, font=font, fill="white")
    return top + high
