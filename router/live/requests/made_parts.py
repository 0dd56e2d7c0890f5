"""Parts of queries that frontends have made of a result."""

from collections.abc import Sequence

from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.queries.query_table import Part
from fermata.router.links.messages import Submit


def in_order(
    pipeline: Pipeline, part: Part, submits: Sequence[Submit], lost: bool
) -> tuple[list[Submit], list[int]] | None:
    """The requests as the table makes them, edge by edge and then joins, with the fan-out on
    each edge; None where they are others than those that are due."""
    by_stage: dict[int, list[Submit]] = {}
    for each in submits:
        assert each.part is not None
        by_stage.setdefault(each.part.stage, []).append(each)
    found: list[Submit] = []
    fan_out: list[int] = []
    open_ = list(part.query.open)
    open_[part.stage] -= 1
    for child in pipeline.stages[part.stage].children:
        joins = pipeline.stages[child].join
        there = [] if joins else by_stage.pop(child, [])
        fan_out.append(len(there))
        open_[child] += len(there)
        found += there
    ended = list(part.query.ended)
    ended[part.stage] += not lost or pipeline.stages[part.stage].join
    due = pipeline.due_joins(open_, ended) if pipeline.joins else []
    if lost and found:
        return None
    for place in due:
        there = by_stage.pop(place, [])
        if len(there) != 1:
            return None
        found += there
    return None if by_stage else (found, fan_out)
