"""Answers of pipelines: one JSON document that names what each stage found."""

import json
from dataclasses import dataclass


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
