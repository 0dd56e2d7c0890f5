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
