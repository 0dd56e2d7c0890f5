"""The answer of a query: one JSON document that names what each part found."""

from collections.abc import Sequence

import msgspec
import numpy as np

from fermata.applications.server_options import BoxOptions
from fermata.clients.wire.tensors import Array, join_bytes
from fermata.deployments.frontend.requests.queries.conditions import LeftOut
from fermata.deployments.frontend.requests.queries.parts import (
    QueryPartRecord,
    best_classes,
    plain_array,
    result_of,
)
from fermata.deployments.models.pictures.boxes import as_corners, as_given, numbers_of
from fermata.deployments.models.pictures.pixel_map import WHOLE, PixelMap
from fermata.deployments.specs.pipelines import ANSWER, ServedPipeline, ServedStage
from fermata.foundation.json_types import Json
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Result

Parts = Sequence[Sequence[QueryPartRecord]]
"""Parts of a query, by stage."""


def answer_of(
    pipeline: ServedPipeline,
    parts: Parts,
    rid: int,
    pixels_max: int,
    left_out: Sequence[LeftOut] = (),
) -> Result:
    """The result that a query's client gets."""
    document: dict[str, Json] = {
        "pipeline": pipeline.name,
        "partial": any(each.missing for row in parts for each in row),
        "stages": {
            stage.name: [_part(pipeline, stage, each, pixels_max) for each in row]
            for stage, row in zip(pipeline.stages, parts, strict=True)
        },
    }
    if pipeline.has_conditions:
        document["left_out"] = _left_out(pipeline, left_out)
    return _result(pipeline, parts, rid, document)


def _left_out(pipeline: ServedPipeline, given: Sequence[LeftOut]) -> dict[str, Json]:
    """Results that conditions kept from stages, by the stage that did not run."""
    names = [each.name for each in pipeline.stages]
    found: dict[str, list[Json]] = {}
    for each in given:
        of: list[Json] = [names[each.parent.stage], each.parent.number]
        found.setdefault(names[each.stage], []).append({"of": of, "when": each.found})
    return dict(found)


def called_answer(pipeline: ServedPipeline, parts: Parts, rid: int, found: bytes) -> Result:
    """The same of a query whose function has returned this, in JSON. Its calls are told in the
    order in which they were made; their outputs are the function's to tell."""
    document = {
        "pipeline": pipeline.name,
        "partial": any(each.result is None for row in parts for each in row),
        "answer": msgspec.Raw(found),
        "stages": {
            stage.name: [_call(each) for each in row]
            for stage, row in zip(pipeline.stages, parts, strict=True)
        },
    }
    return _result(pipeline, parts, rid, document)


def _call(record: QueryPartRecord) -> dict[str, Json]:
    if record.result is not None:
        return {"variant": record.result.variant}
    # A function need not wait for what it has called.
    return {"missing": record.missing or DropReason.CANCELLED}


def _result(pipeline: ServedPipeline, parts: Parts, rid: int, document: object) -> Result:
    results = [each.result for row in parts for each in row if each.result is not None]
    first = results[0] if results else None
    return Result(
        rid,
        pipeline.name,
        1 if first is None else first.batch_size,
        0 if first is None else first.queue_ns,
        sum(max((each.result.run_ns for each in row if each.result), default=0) for row in parts),
        ((ANSWER, "BYTES", (1,), join_bytes([msgspec.json.encode(document)])),),
    )


def _part(
    pipeline: ServedPipeline, stage: ServedStage, record: QueryPartRecord, pixels_max: int
) -> dict[str, Json]:
    found: dict[str, Json] = {}
    if record.parent is not None:
        found |= {"of": [pipeline.stages[record.parent.stage].name, record.parent.number]}
    origin = record.origin
    if origin is not None:
        found |= {"box": [round(each, 2) for each in origin.box]}
        if origin.quad:
            corners = zip(origin.quad[::2], origin.quad[1::2], strict=True)
            found |= {"quad": [[round(x, 2), round(y, 2)] for x, y in corners]}
        if origin.label:
            found |= {"class": origin.label}
        if origin.score is not None:
            found |= {"score": origin.score}
    if record.result is None:
        found |= {"missing": record.missing}
        return found
    found |= {"variant": record.result.variant}
    outputs = result_of(record, stage, pixels_max).outputs
    if stage.classes:
        first = next(iter(outputs))
        found |= {"classes": best_classes(outputs.pop(first), stage.model.labels, stage.classes)}
    boxes = stage.model.boxes
    if boxes is not None and record.lies != WHOLE and boxes.output in outputs:
        outputs[boxes.output] = moved(outputs[boxes.output], boxes, record.lies)
    found |= {"outputs": {name: plain_array(array) for name, array in outputs.items()}}
    return found


def moved(array: Array, boxes: BoxOptions, lies: PixelMap) -> Array:
    """Boxes of a cut, in pixels of the picture that it was cut out of. Upright ones of a slanted
    cut become those around them."""
    axis = 0 if boxes.axis == "first" else -1
    rows = np.moveaxis(np.array(array), axis, -1)
    if not rows.size:
        return array
    count = numbers_of(boxes)
    given = rows[..., :count].astype(np.float64)
    if boxes.format == "quad":
        found = lies.points(given.reshape(*given.shape[:-1], 4, 2)).reshape(given.shape)
    else:
        found = as_given(lies.boxes(as_corners(given, boxes)), boxes)
    rows[..., :count] = found.astype(rows.dtype)
    return np.moveaxis(rows, -1, axis)
