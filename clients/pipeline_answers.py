"""Answers of pipelines: one JSON document that names what each stage found."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fermata.clients.network.adaptation import original_boxes


@dataclass(frozen=True, slots=True)
class BoxForm:
    """Boxes among the outputs of a model, or of a stage."""

    output: str
    format: str = "xyxy"
    """As in `boxes` of an application: `quad` has eight numbers, the others four."""
    axis: str = "last"
    """Dimension that holds the numbers of a box: `last` or `first`."""
    labels: tuple[str, ...] = ()
    """Names of their classes; empty where nobody knows."""
    cropped: bool = False
    """Another stage gets those of its choice cut out, and says where they lie."""

    @property
    def numbers(self) -> int:
        """How many numbers place a box."""
        return 8 if self.format == "quad" else 4


@dataclass(frozen=True, slots=True)
class StagePart:
    """One result of a stage, or the reason why there is none."""

    of: tuple[str, int] | None
    """Stage and place of the result that it was made of; None: of the query itself."""
    label: str | None
    """Class of the box that it was cut out of; None where it has none."""
    score: float | None
    box: tuple[float, ...]
    quad: tuple[tuple[float, float], ...]
    variant: str | None
    missing: str | None
    """The reason why there is no result; None where there is one."""
    classes: tuple[tuple[str, float], ...]
    """The most likely classes with their scores, where the stage tells them."""
    outputs: Mapping[str, Any]
    """Other outputs, as nested lists."""

    @staticmethod
    def of_json(told: Mapping[str, Any]) -> "StagePart":
        parent = told.get("of")
        return StagePart(
            of=None if parent is None else (parent[0], parent[1]),
            label=told.get("class"),
            score=told.get("score"),
            box=tuple(map(float, told.get("box", ()))),
            quad=tuple((float(x), float(y)) for x, y in told.get("quad", ())),
            variant=told.get("variant"),
            missing=told.get("missing"),
            classes=tuple((each["class"], each["score"]) for each in told.get("classes", ())),
            outputs=told.get("outputs", {}),
        )


@dataclass(frozen=True, slots=True)
class LeftOutPart:
    """A result that a condition kept from a stage, and what the stage that was asked has found."""

    stage: str
    label: str | None
    score: float | None
    found: Any

    @staticmethod
    def of_json(told: Mapping[str, Any]) -> "LeftOutPart":
        when = told["when"]
        return LeftOutPart(when["stage"], when.get("class"), when.get("score"), when.get("found"))


@dataclass(frozen=True, slots=True)
class PipelineAnswer:
    """The answer of a pipeline, as its document tells it."""

    stages: Mapping[str, tuple[StagePart, ...]]
    left_out: Mapping[str, tuple[LeftOutPart, ...]]
    partial: bool
    """Some part is missing."""
    has_answer: bool
    """A function of the user's called the stages, and has answered."""
    answer: Any = None

    @staticmethod
    def read(given: bytes | str) -> "PipelineAnswer":
        told = json.loads(given)
        left_out = told.get("left_out", {})
        return PipelineAnswer(
            {name: tuple(map(StagePart.of_json, row)) for name, row in told["stages"].items()},
            {name: tuple(map(LeftOutPart.of_json, row)) for name, row in left_out.items()},
            told.get("partial", False),
            "answer" in told,
            told.get("answer"),
        )

    def missing(self) -> list[str]:
        """The reason of each part that is missing."""
        parts = (part for row in self.stages.values() for part in row)
        return [part.missing for part in parts if part.missing is not None]


def box_forms(told: str) -> dict[str, BoxForm]:
    """Stages of a pipeline that find boxes, as its configuration tells them."""
    return {
        stage: BoxForm(
            given["output"],
            given["format"],
            given["axis"],
            tuple(given["labels"]),
            given["cropped"],
        )
        for stage, given in json.loads(told).items()
    }


def original_answer(given: bytes, scale: float, forms: Mapping[str, BoxForm]) -> bytes:
    """The answer with places in pixels of the frame as it was before it shrank. What a function of
    the user's has answered is left alone: nobody knows what is a place there."""
    document = json.loads(given)
    for stage, parts in document["stages"].items():
        for part in parts:
            _move(part, scale, forms.get(stage))
    return json.dumps(document).encode()


def _move(part: dict[str, Any], scale: float, form: BoxForm | None) -> None:
    for name in ("box", "quad"):
        if name in part:
            part[name] = (np.array(part[name]) * scale).round(2).tolist()
    outputs = part.get("outputs", {})
    if form is not None and form.output in outputs:
        rows = np.array(outputs[form.output], np.float64)
        moved = original_boxes(rows, scale, form.axis, form.numbers)
        outputs[form.output] = moved.tolist()
