"""Answers of pipelines in words: a line for each stage."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fermata.clients.describe import ModelDescription
from fermata.clients.pipeline_answers import BoxForm, LeftOutPart, PipelineAnswer, StagePart

PARTS_SHOWN = 8
CHARACTERS_MAX = 200
"""Characters of a function's answer that are shown."""

SCORED = re.compile(r"(-?\d*\.\d+(?:e[-+]\d+)?|-?\d+e[-+]\d+|-?inf|nan):(\d+)(?::(.*))?", re.DOTALL)
"""A class of Triton's classification extension. A time of the day that was read is none."""


def read_answer(outputs: Mapping[str, Any], model: ModelDescription) -> PipelineAnswer | None:
    """The answer of a pipeline; None where the model is no pipeline."""
    if not model.answer or model.answer not in outputs:
        return None
    return PipelineAnswer.read(outputs[model.answer].reshape(-1)[0])


def stage_lines(given: PipelineAnswer, forms: Mapping[str, BoxForm]) -> list[str]:
    """Findings of each stage, in order, and what a function made of them."""
    left_out = given.left_out
    rows = [
        (_titled(stage, parts), _found(parts, forms.get(stage), left_out.get(stage, ())))
        for stage, parts in given.stages.items()
    ]
    if given.has_answer:
        said = _shown(given.answer)
        rows.append(
            ("answer", said if len(said) <= CHARACTERS_MAX else f"{said[:CHARACTERS_MAX]}...")
        )
    width = max((len(title) for title, _ in rows), default=0)
    return [f"{title:{width}}  {said}" for title, said in rows]


def _titled(stage: str, parts: Sequence[StagePart]) -> str:
    variants = dict.fromkeys(each.variant for each in parts if each.variant is not None)
    return f"{stage} ({', '.join(variants)})" if variants else stage


def _found(
    parts: Sequence[StagePart], form: BoxForm | None, left_out: Sequence[LeftOutPart]
) -> str:
    told = [": ".join(filter(None, (place_of(each), said_of(each, form)))) for each in parts]
    told += [_unmet(each) for each in left_out]
    more = [f"and {len(told) - PARTS_SHOWN} more"] * (len(told) > PARTS_SHOWN)
    return "; ".join([each or "done" for each in told[:PARTS_SHOWN]] + more) or "nothing"


def _unmet(part: LeftOutPart) -> str:
    return f"left out ({part.stage}: {place_of(part) or part.found})"


def place_of(part: StagePart | LeftOutPart) -> str:
    """The class of the box that a part was cut out of; empty where it has none."""
    return "" if part.label is None else _named(part.label, part.score)


def said_of(part: StagePart, form: BoxForm | None, tensors: bool = True) -> str:
    """Findings of a part in its own picture: classes, texts, boxes, and tensors if wanted."""
    if part.missing is not None:
        return f"missing ({part.missing})"
    told = [_named(name, score) for name, score in part.classes]
    outputs = part.outputs
    if form is not None and form.output in outputs:
        count = box_rows(outputs[form.output], form).shape[0]
        return ", ".join([*told, f"{count} box" if count == 1 else f"{count} boxes"])
    arrays = {name: np.array(value) for name, value in outputs.items()}
    if not tensors:
        has_text = any(each.dtype.kind == "U" for each in arrays.values())
        arrays = {
            name: each
            for name, each in arrays.items()
            if each.dtype.kind == "U" or (has_text and name == "score")
        }
    texts = [_text(name, each) for name, each in arrays.items()]
    return ", ".join(told + [" ".join(texts)] * bool(texts))


def box_rows(given: Any, form: BoxForm) -> Any:
    """Boxes as rows of numbers."""
    rows = np.array(given)
    if not rows.size:
        return np.zeros((0, 4))
    rows = rows if form.axis == "last" else np.moveaxis(rows, -2, -1)
    return rows.reshape(-1, rows.shape[-1])


def _named(name: str, score: float | None) -> str:
    return name if score is None else f"{name} {score:.2f}"


def _text(name: str, value: Any) -> str:
    """Texts as they are, one number as it is, a tensor by its shape."""
    if value.dtype.kind == "U":
        return " ".join(_shown(str(each)) for each in value.reshape(-1))
    if value.size != 1:
        return f"{name}{list(value.shape)}"
    number = f"{value.item():.2f}" if value.dtype.kind == "f" else str(value.item())
    return number if name == "score" else f"{name} {number}"


def _shown(found: Any) -> str:
    """As JSON has it, without what could steer a terminal: it may have been read in a picture."""
    said = json.dumps(found, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in said)


def labels_said(array: Any) -> str:
    """Classes, as a server names them (`score:index:label`), or texts as they are."""
    named: list[str] = []
    for element in array.reshape(-1):
        said = element.decode(errors="replace")
        scored = SCORED.fullmatch(said)
        if scored is None:
            named.append(_shown(said))
        else:
            score, index, label = scored.groups()
            named.append(f"{label or index} {score[:5]}")
    return ", ".join(named)
