"""Inputs of the stages that follow a result, where their conditions hold. Made in threads."""

from dataclasses import dataclass, field

from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.requests.queries.conditions import LeftOut, asked_parts, unmet
from fermata.deployments.frontend.requests.queries.open_query import OpenQuery
from fermata.deployments.frontend.requests.queries.parts import (
    MadeInput,
    QueryPartRecord,
    StageResult,
    result_of,
)
from fermata.deployments.frontend.requests.queries.transforms import (
    TransformError,
    join_input,
    make_inputs,
)

Made = list[tuple[int, MadeInput]]
"""Inputs, each with the place of its stage."""


@dataclass(slots=True)
class MadeInputs:
    """Inputs that were made of a result, and the stages that a condition kept it from."""

    inputs: Made = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def inputs_after(
    query: OpenQuery, record: QueryPartRecord, edges: list[int], pixels_max: int, backends_cut: bool
) -> MadeInputs:
    """Make the inputs of all stages that follow a part."""
    stages = query.pipeline.stages
    result = result_of(record, stages[record.stage], pixels_max, backends_cut)
    found = MadeInputs()
    for place in edges:
        left = _kept_from(query, record, place, result)
        if left is not None:
            found.left_out.append(left)
            continue
        made = make_inputs(result, stages[place], record.origin, record.lies)
        found.inputs += [(place, each) for each in made]
    return found


def _kept_from(
    query: OpenQuery, record: QueryPartRecord, place: int, result: StageResult
) -> LeftOut | None:
    """The answer's words on a condition that keeps a result from a stage; None where none does."""
    stages = query.pipeline.stages
    when = stages[place].when
    if when is None:
        return None
    asked = asked_parts(when, record, query.parts)
    results = [
        result if each is record else result_of(each, stages[each.stage], result.pixels_max)
        for each in asked
    ]
    try:
        found = unmet(when, results)
    except BadRequestError as error:
        raise TransformError(f"when of stage {stages[place].name!r}: {error}") from None
    if found is None:
        return None
    name = stages[record.stage if when.stage < 0 else when.stage].name
    return LeftOut(place, record, {"stage": name, **found})


def join_inputs(query: OpenQuery, due: list[int], pixels_max: int) -> Made:
    """Make the inputs of joins."""
    stages, before = query.pipeline.stages, query.pipeline.graph.before
    found: Made = []
    for place in due:
        results: dict[str, list[StageResult]] = {
            stages[each].name: [
                result_of(part, stages[each], pixels_max)
                for part in query.parts[each]
                if part.result is not None
            ]
            for each in sorted(before[place])
        }
        found.append((place, join_input(results, query.parts[0][0].given, stages[place])))
    return found
