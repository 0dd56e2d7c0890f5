"""Findings of a stage: boxes of a detector or a top class, and the choice among them.

Transforms cut out those of one's choice, and conditions count them: by the same rules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fermata.applications.server_options import BoxOptions
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import Array
from fermata.deployments.frontend.requests.queries.parts import StageResult
from fermata.deployments.models.highest import highest
from fermata.deployments.models.pictures.boxes import numbers_of


@dataclass(frozen=True, slots=True)
class Findings:
    """So many things that a result names, each with a class and a score where those are known."""

    count: int
    scores: Array | None
    numbers: Array | None
    """Numbers of their classes."""
    labels: Sequence[str]
    """Names of all classes, as far as they have some."""

    def chosen(
        self, classes: Sequence[str], score_min: float, score_below: float = math.inf
    ) -> dict[int, str]:
        """Places of those that are chosen, best first, each with the name of its class. `classes`
        are names or numbers; empty: all."""
        kept = {
            place: self.label(place)
            for place in best(self.scores, self.count, score_min, score_below)
        }
        if not classes:
            return kept
        if self.numbers is None:
            return {}
        return {
            place: label
            for place, label in kept.items()
            if label in classes or str(int(self.numbers[place])) in classes
        }

    def label(self, place: int) -> str:
        """The class of one; empty where nobody knows."""
        if self.numbers is None:
            return ""
        number = int(self.numbers[place])
        return self.labels[number] if 0 <= number < len(self.labels) else str(number)

    def score(self, place: int) -> float | None:
        return None if self.scores is None else float(self.scores[place])


def best(
    scores: Array | None, count: int, score_min: float, score_below: float = math.inf
) -> list[int]:
    """Places of those whose scores are within, best first; all where there are no scores."""
    if scores is None:
        return list(range(count))
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    order = order[scores[order] >= score_min]
    if score_below < math.inf:
        order = order[scores[order] < score_below]
    kept: list[int] = order.tolist()
    return kept


def box_rows(result: StageResult, options: BoxOptions) -> Array:
    """Boxes of a result, a row each."""
    found = result.outputs[options.output]
    return found if options.axis == "last" else np.moveaxis(found, 0, -1)


def boxes_found(result: StageResult, rows: Array, scores: str, numbers: str) -> Findings:
    """Boxes with their scores and classes, which these outputs hold, or else the rows."""
    options = result.model.boxes
    assert options is not None
    count = numbers_of(options)
    return Findings(
        len(rows),
        _column(result, scores, rows, count),
        _column(result, numbers, rows, count + 1),
        result.model.labels,
    )


def _column(result: StageResult, name: str, rows: Array, place: int) -> Array | None:
    """A number for each box: an output of its own, or among those of the box."""
    if name in result.outputs:
        found: Array = result.outputs[name].reshape(-1)
        if len(found) != len(rows):
            raise BadRequestError(f"{name} has {len(found)} numbers for {len(rows)} boxes")
        return found
    return rows[:, place] if rows.shape[-1] > place else None


def top_class(result: StageResult, scores: str) -> Findings:
    """The class of the highest score; `scores`: the output that has them, the first if empty."""
    outputs = result.outputs
    name = scores or next(iter(outputs))
    if name not in outputs:
        raise BadRequestError(f"{result.stage} gave no output {name!r}")
    flat = outputs[name].reshape(-1)
    if flat.dtype.kind not in "fiub":
        raise BadRequestError(f"output {name!r} of {result.stage} has no numbers; set when.scores")
    place = np.array(highest(flat, 1), np.int64)
    return Findings(len(place), flat[place], place, result.model.labels)
