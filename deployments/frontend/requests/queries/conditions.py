"""Conditions of stages: whether what an earlier stage has found lets a stage run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.requests.queries.findings import (
    Findings,
    box_rows,
    boxes_found,
    top_class,
)
from fermata.deployments.frontend.requests.queries.parts import QueryPartRecord, StageResult
from fermata.deployments.specs.pipelines import Condition
from fermata.foundation.json_types import Json

NOTHING = Findings(0, np.zeros(0), np.zeros(0), ())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A result that a stage did not run for."""

    stage: int
    """Place of the stage that did not run."""
    parent: QueryPartRecord
    found: dict[str, Json]
    """The stage that was asked, how many it has found of what is wanted, and its top class."""


def asked_parts(
    when: Condition, record: QueryPartRecord, parts: Sequence[Sequence[QueryPartRecord]]
) -> list[QueryPartRecord]:
    """Parts of the stage that a condition asks: the one that led to this part, or all where a join
    lies between; `parts` are those of the query, by stage."""
    each: QueryPartRecord | None = record
    while each is not None:
        if when.stage in (-1, each.stage):
            return [each]
        each = each.parent
    return [part for part in parts[when.stage] if part.result is not None]


def unmet(when: Condition, results: Sequence[StageResult]) -> dict[str, Json] | None:
    """The answer's words on a condition that does not hold; None where it holds. Raises
    BadRequestError."""
    count, findings = 0, [_findings(when, each) for each in results]
    for each in findings:
        if each.scores is None and (when.score_min, when.score_below) != (-math.inf, math.inf):
            raise BadRequestError(f"{results[0].stage} gave no scores; set when.scores")
        count += len(each.chosen(when.classes, when.score_min, when.score_below))
    if when.found_min <= count <= when.found_max:
        return None
    told: dict[str, Json] = {"found": count}
    if len(results) == 1 and results[0].model.boxes is None and findings[0].count:
        told |= {"class": findings[0].label(0), "score": findings[0].score(0)}
    return told


def _findings(when: Condition, result: StageResult) -> Findings:
    options = result.model.boxes
    if options is None:
        return top_class(result, when.scores)
    rows = box_rows(result, options)
    if not rows.size:
        return NOTHING
    return boxes_found(result, rows, when.scores or "scores", when.numbers)
