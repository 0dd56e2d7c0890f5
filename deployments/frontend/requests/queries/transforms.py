"""Transforms: from the result of a stage to the inputs of the next. They run in threads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.clients.wire.tensors import Array, RawTensor, add_input, from_array
from fermata.deployments.frontend.inputs.reading import input_form, read_input
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.requests.queries.findings import best, box_rows, boxes_found
from fermata.deployments.frontend.requests.queries.parts import MadeInput, Origin, StageResult
from fermata.deployments.models.pictures.boxes import as_corners, numbers_of
from fermata.deployments.models.pictures.cuts import CUT_FITS, Bounds, all_bounds, cut_out
from fermata.deployments.models.pictures.pixel_map import WHOLE, PixelMap
from fermata.deployments.models.pictures.quads import cut_quad
from fermata.deployments.specs.pipelines import RowChoice, ServedStage, TurnChoice
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.user_code import import_function

MADE_MAX = 1024
"""Inputs that one result may make: more of them would keep others waiting."""


class TransformError(Exception):
    """The inputs of a stage cannot be made of a result."""


def make_inputs(
    result: StageResult, stage: ServedStage, origin: Origin | None = None, lies: PixelMap = WHOLE
) -> list[MadeInput]:
    """Inputs of a stage, made of one result; `origin` and `lies` are of the result's own input."""
    how, model = stage.transform, stage.model
    try:
        if how.kind == "crop":
            made = _crops(result, stage, lies)
        elif how.kind == "filter":
            made = [MadeInput(_read(model, row)) for row in _rows(result, how.rows)]
        elif how.kind == "turn":
            pixels, turned = _turned(result, how.turn)
            made = [MadeInput(_read(model, pixels), origin, lies.after(turned))]
        elif how.kind == "function":
            rows = _called(how.function)(result)
            made = [MadeInput(_read(model, row)) for row in _listed(how.function, rows)]
        elif how.kind == "input":
            made = [MadeInput(_given_again(model, result), origin, lies)]
        else:
            made = [MadeInput(_read_raw(model, _outputs_for(model, result)))]
    except BadRequestError as error:
        raise TransformError(f"transform {how.kind} of stage {stage.name!r}: {error}") from None
    if len(made) > MADE_MAX:
        raise TransformError(
            f"transform {how.kind} of stage {stage.name!r} made {len(made)} inputs of one result: "
            f"make at most {MADE_MAX}"
        )
    return made


def join_input(
    results: Mapping[str, Sequence[StageResult]], first: RequestInput, stage: ServedStage
) -> MadeInput:
    """The input of a join, made of all results before it by stage; `first` is the query's own."""
    how, model = stage.transform, stage.model
    try:
        if how.kind == "input":
            return MadeInput(_again(model, first))
        return MadeInput(_read(model, _called(how.function)(results)))
    except BadRequestError as error:
        raise TransformError(f"transform {how.kind} of stage {stage.name!r}: {error}") from None


def call_input(model: ServedModel, given: Any, first: bool) -> RequestInput:
    """The input of a stage that a function calls; `first`: it takes what the pipeline takes. Raises
    BadRequestError."""
    if isinstance(given, StageResult):
        return _read_raw(model, _outputs_for(model, given))
    own = getattr(given, "given", None)
    if isinstance(own, RequestInput):
        # Read by its client's model once, it need not be read again.
        return replace(own, model=model) if first else _again(model, own)
    return _read(model, given)


@cache
def _called(reference: str) -> Any:
    return import_function(reference)


def _listed(function: str, rows: object) -> list[Any]:
    if isinstance(rows, list | tuple):
        return list(rows)
    raise BadRequestError(f"{function} returned {type(rows).__name__}: return a list of inputs")


# Inputs


def _read(model: ServedModel, given: Any) -> RequestInput:
    """An input that is an array, or a mapping of names to arrays. Raises BadRequestError."""
    named = given if isinstance(given, Mapping) else {model.input.name: given}
    return _read_raw(model, [_tensor(model, name, each) for name, each in named.items()])


def _tensor(model: ServedModel, name: str, given: Any) -> RawTensor:
    if isinstance(given, bytes | str):
        given = np.array([given], object)
    array = np.asarray(given)
    if model.image is not None and array.dtype == np.uint8:
        return from_array(name, array)
    wanted = next((each.datatype for each in model.inputs if each.name == name), "")
    # Python's own numbers are wider than most models': they mean what the model takes.
    wider = array.dtype.kind in "fiu" and wanted not in ("", "BYTES", "UINT8", "BOOL")
    return from_array(name, array, wanted if wider else "")


def _read_raw(model: ServedModel, tensors: Sequence[RawTensor]) -> RequestInput:
    """These tensors as an input, checked as a client's are. Raises BadRequestError."""
    request = ModelInferRequest()
    for tensor in tensors:
        add_input(request, tensor)
    return read_input(model, input_form(model, request), request)


def _again(model: ServedModel, given: RequestInput) -> RequestInput:
    """Turn the input of the stage before into an input of this model."""
    tensors = given.tensors or (given.tensor,)
    if len(tensors) == 1:
        one = tensors[0]
        tensors = (RawTensor(model.input.name, one.datatype, one.shape, one.data),)
    return _read_raw(model, tensors)


def _given_again(model: ServedModel, result: StageResult) -> RequestInput:
    given = result.given
    return _again(model, given) if given.cut is None else _read(model, result.picture)


def _outputs_for(model: ServedModel, result: StageResult) -> list[RawTensor]:
    """Outputs that are inputs of the model, by their names; one alone may have another."""
    tensors = [RawTensor(*each) for each in result.tensors]
    if len(tensors) == 1 and not model.more_inputs:
        one = tensors[0]
        return [RawTensor(model.input.name, one.datatype, one.shape, one.data)]
    wanted = {each.name for each in model.inputs}
    return [each for each in tensors if each.name in wanted]


# Choices


def _rows(result: StageResult, choice: RowChoice) -> list[Array]:
    outputs = result.outputs
    name = choice.output or next(iter(outputs))
    for each in (name, choice.scores):
        if each and each not in outputs:
            raise BadRequestError(f"{result.stage} gave no output {each!r}")
    rows = np.atleast_1d(outputs[name])
    scores = outputs[choice.scores].reshape(-1) if choice.scores else None
    if scores is not None and len(scores) != len(rows):
        raise BadRequestError(f"{choice.scores} has {len(scores)} scores for {len(rows)} rows")
    kept = best(scores, len(rows), choice.score_min)
    return [rows[each] for each in kept[: choice.top_k or None]]


def _crops(result: StageResult, stage: ServedStage, lies: PixelMap) -> list[MadeInput]:
    choice, options = stage.transform.crop, result.model.boxes
    assert options is not None, "checked at the start"
    rows = box_rows(result, options)
    if not rows.size:
        return []
    found = boxes_found(result, rows, choice.scores, choice.numbers)
    given = rows[:, : numbers_of(options)].astype(np.float64)
    corners = as_corners(given, options)
    is_quad = options.format == "quad"
    passed_on = cut_by_backends(result.given, stage, result.backends_cut)
    chosen = found.chosen(choice.classes, choice.score_min)
    if not chosen:
        return []
    # All at once: numpy takes as long for one.
    bounds = [] if is_quad else all_bounds(corners, result.frame)
    boxes = lies.boxes(corners).tolist() if lies.keeps_boxes and not is_quad else None
    made: list[MadeInput] = []
    for place, label in chosen.items():
        if is_quad:
            cut = _cut_quad(result, stage.model, given[place])
        else:
            cut = _cut(result, stage.model, bounds[place], passed_on)
        if cut is None:
            continue
        part, inside = cut
        score = found.score(place)
        if boxes is not None:
            origin = Origin(tuple(boxes[place]), label, score)
        else:
            shape = given[place].reshape(4, 2) if is_quad else None
            origin = _slanted(lies, corners[place], shape, label, score)
        made.append(MadeInput(part, origin, lies.after(inside)))
        if len(made) == choice.top_k:
            break
    return made


def cut_by_backends(given: RequestInput, stage: ServedStage, backends_cut: bool) -> bool:
    """Whether boxes of this input become crops of a stage where those run.

    Backends then decode the pictures of both stages. One that runs a crop has the picture already,
    or gets it as it came.
    """
    boxes, model = given.model.boxes, stage.model
    if not backends_cut or stage.transform.kind != "crop" or not given.is_left_encoded:
        return False
    fits = model.decoded_later and model.image is not None and model.image.fit in CUT_FITS
    return fits and boxes is not None and boxes.format != "quad"


def reads_picture(given: RequestInput, stage: ServedStage, backends_cut: bool) -> bool:
    """Whether the pixels of this input are looked at to make those of a stage, unless a function
    of the user's does so."""
    kind = stage.transform.kind
    if kind == "crop":
        return not cut_by_backends(given, stage, backends_cut)
    return kind == "turn" or (kind == "input" and given.cut is not None)


def _slanted(
    lies: PixelMap, box: Array, quad: Array | None, label: str, score: float | None
) -> Origin:
    """The place of a box in the client's pixels, with its four corners: it lies at an angle."""
    corners = lies.corners(box) if quad is None else lies.points(quad)
    left, top = corners.min(axis=0).tolist()
    right, bottom = corners.max(axis=0).tolist()
    quads = tuple(corners.reshape(-1).tolist())
    return Origin((left, top, right, bottom), label, score, quads)


def _cut(
    result: StageResult, model: ServedModel, bounds: Bounds | None, passed_on: bool
) -> tuple[RequestInput, PixelMap] | None:
    """A part of the picture as an input, and its place; None where it lies outside."""
    if bounds is None:
        return None
    lies = PixelMap.moved(*bounds[:2])
    if passed_on:
        return result.given.cut_out(model, result.result.rid, bounds), lies
    return _read(model, cut_out(result.picture, bounds)), lies


def _cut_quad(
    result: StageResult, model: ServedModel, quad: Array
) -> tuple[RequestInput, PixelMap] | None:
    found = cut_quad(result.picture, quad)
    return None if found is None else (_read(model, found[0]), found[1])


def _turned(result: StageResult, choice: TurnChoice) -> tuple[Array, PixelMap]:
    """The picture that a stage was given, turned upright where the stage is sure of its degrees,
    and its place in the one before."""
    outputs = result.outputs
    name = choice.scores or next(iter(outputs))
    if name not in outputs:
        raise BadRequestError(f"{result.stage} gave no output {name!r}")
    scores, labels = outputs[name].reshape(-1), result.model.labels
    if len(scores) != len(labels):
        raise BadRequestError(f"{name} has {len(scores)} scores for {len(labels)} classes")
    best = int(np.argmax(scores))
    quarters = int(labels[best]) // 90 if scores[best] >= choice.score_min else 0
    picture = result.picture
    turned = np.ascontiguousarray(np.rot90(picture, quarters))
    return turned, PixelMap.turned(quarters, *picture.shape[:2])
