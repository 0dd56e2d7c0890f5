"""Pipelines of a deployment: stages, edges and transforms, checked as far as names go."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from fermata.applications.application import Application
from fermata.deployments.config.base import Fraction, Positive, Section
from fermata.deployments.config.conditions import WhenConfig, check_condition, sure_before
from fermata.foundation.units import ms
from fermata.router.core.queries.pipeline import Pipeline, Stage

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig

KEPT = ("output", "input")
STAGES = "stages"
"""Policy of stages that name none."""


class CropConfig(Section):
    """Boxes that are cut out of the picture, each one input of the next stage."""

    classes: list[str | int] = []
    """Names or numbers of the classes to cut out; empty: all."""
    score_min: Fraction = 0
    """Boxes below it are left out."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """So many boxes of the highest scores; absent: all."""
    scores: str = "scores"
    """Output with a score for each box; where there is none, the fifth number of a box."""
    numbers: str = "classes"
    """Output with the class of each box; where there is none, the sixth number of a box."""


class RowsConfig(Section):
    """Rows of an output, each one input of the next stage."""

    output: str = ""
    """Output whose rows are taken; empty: the only one."""
    scores: str = ""
    """Output with a score for each row; empty: rows have none, and come in their order."""
    score_min: Fraction = 0
    """Rows below it are left out."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """So many rows of the highest scores; absent: all."""


class TurnConfig(Section):
    """The picture of the stage before, turned upright: its classes are degrees that it is turned
    clockwise by."""

    score_min: Fraction = 0.9
    """Below it the picture stays as it is."""
    scores: str = ""
    """Output with a score from 0 to 1 for each class; empty: the first."""


class TransformConfig(Section):
    """How inputs are made of a result: one of these. A text alone is `keep`, or `function` where it
    has a colon."""

    keep: Literal["output", "input"] | None = None
    """`output`: the result as it is. `input`: what the stage before was given."""
    function: str = ""
    """A function of yours, `module:function`; see docs/pipelines.md."""
    crop: CropConfig | None = None
    """Boxes of a detector, cut out of its picture; the next stage fits them to its input."""
    filter: RowsConfig | None = None
    """Rows of an output."""
    turn: TurnConfig | None = None
    """The picture of the stage before, which says how it is turned."""

    @model_validator(mode="before")
    @classmethod
    def _text(cls, data: object) -> object:
        if not isinstance(data, str):
            return data
        if ":" not in data and data not in KEPT:
            raise ValueError(
                f"transform={data!r} must be output, input or module:function; crop, filter and "
                "turn have options, as in {crop: {top_k: 5}}"
            )
        return {"function" if ":" in data else "keep": data}

    @model_validator(mode="after")
    def _one(self) -> "TransformConfig":
        ways = self.keep, self.function, self.crop, self.filter, self.turn
        if len([each for each in ways if each]) != 1:
            raise ValueError("give one of keep, function, crop, filter and turn")
        if self.function and not all(self.function.partition(":")):
            raise ValueError(f"function={self.function!r} must be module:function")
        return self


class FanOutConfig(Section):
    """Requests that one result makes at a stage, on average. A number alone is the mean of the law
    `fixed`."""

    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Below 1, some results make none."""
    law: Literal["geometric", "fixed"] = "geometric"
    """`geometric`: any number from 0 on; `fixed`: the mean, rounded up or down at random."""

    @model_validator(mode="before")
    @classmethod
    def _number(cls, data: object) -> object:
        return {"mean": data, "law": "fixed"} if isinstance(data, int | float) else data


class StageConfig(Section):
    """A stage of a pipeline."""

    application: str
    """Application that runs it. Pipelines and direct requests may share it."""
    name: str = ""
    """Name in answers; empty: that of its application."""
    after: str | list[str] | None = None
    """Stage, or stages, whose results it gets; absent: the one above."""
    transform: TransformConfig = TransformConfig(keep="output")
    """Makes its inputs of a result; unless set, they are the result as it is."""
    when: WhenConfig | None = None
    """It runs only where an earlier stage has found this; absent: for every result."""
    join: bool = False
    """It runs once for a query, when everything before it has ended."""
    fan_out: FanOutConfig | None = None
    """Requests that one result makes, for simulations and plans; servers learn it."""
    classes: Annotated[int, Field(ge=1)] | None = None
    """The answer names so many best classes of its first output, in place of that output."""

    @property
    def called(self) -> str:
        return self.name or self.application


class PipelineConfig(Section):
    """Several applications under one deadline; see docs/pipelines.md."""

    name: Annotated[str, Field(min_length=1)]
    """Clients send requests to it, as to an application."""
    slo_ms: Positive
    """From a query's arrival to its answer, all stages included."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1
    """Its part of the whole rate in simulations and plans, relative to others."""
    partial: bool = False
    """A part that is lost leaves a gap in the answer. Otherwise the whole query is lost."""
    newest: bool = False
    """A new frame of a stream replaces the queued one, while nothing of that has run."""
    function: str = ""
    """An async function of yours that calls the stages, `module:function`; empty: they follow one
    another as `after` and `transform` say."""
    stages: Annotated[list[StageConfig], Field(min_length=1)]
    """In order: queries enter at the first one. Where a function calls them, in the order in which
    it usually does so."""

    @model_validator(mode="after")
    def _called(self) -> "PipelineConfig":
        if not self.function:
            return self
        if not all(self.function.partition(":")):
            raise ValueError(f"function={self.function!r} must be module:function")
        if self.partial:
            raise ValueError("partial must be absent: a function goes on without a part, or not")
        for stage in self.stages:
            for key in ("after", "join", "transform", "when", "fan_out", "classes"):
                if getattr(stage, key) != StageConfig.model_fields[key].default:
                    at = f"stage {stage.called!r}"
                    raise ValueError(f"{at}: {key} must be absent where a function calls stages")
        return self


def with_stages(data: object) -> object:
    """The same file, where applications that run stages have the policy for it."""
    if not isinstance(data, dict):
        return data
    applications, pipelines = data.get("applications"), data.get("pipelines")
    if not isinstance(pipelines, list) or not isinstance(applications, list | tuple):
        return data
    named = {_key(stage, "application") for each in pipelines for stage in _stages(each)}
    changed = [_with_policy(each) if _key(each, "name") in named else each for each in applications]
    return {**data, "applications": type(applications)(changed)}


def _stages(pipeline: object) -> list[object]:
    found = _key(pipeline, "stages")
    return found if isinstance(found, list) else []


def _key(row: object, key: str) -> object:
    return row.get(key) if isinstance(row, dict) else getattr(row, key, None)


def _with_policy(row: object) -> object:
    if isinstance(row, Application):
        return row if row.policy else replace(row, policy=STAGES)
    if isinstance(row, dict) and not {"policy", "policy_options"} & row.keys():
        return {**row, "policy": STAGES}
    return row


def check_pipelines(config: "DeploymentConfig") -> None:
    """Refuse graphs that name what is not there, and stages that no pipeline can have."""
    taken = {each.name for each in config.applications}
    for pipeline in config.pipelines:
        where = f"pipeline {pipeline.name!r}"
        if pipeline.name in taken:
            raise ValueError(f"{where}: two pipelines or applications have this name; rename one")
        taken.add(pipeline.name)
        _check_stages(where, pipeline.stages, config.applications)


def _check_stages(
    where: str, stages: Sequence[StageConfig], applications: Sequence[Application]
) -> None:
    known = {each.name: each for each in applications}
    names: list[str] = []
    sure: dict[str, list[str]] = {}
    for place, stage in enumerate(stages):
        at = f"{where}: stage {stage.called!r}"
        if stage.application not in known:
            options = ", ".join(sorted(known))
            raise ValueError(
                f"{at}: application {stage.application!r} is unknown; one of {options}"
            )
        if stage.called in names:
            raise ValueError(f"{at} is there twice; give one of them a name")
        _check_edges(at, stage, place, names)
        before = after_of(stage, names) if place else []
        sure[stage.called] = sure_before(before, stage.join, sure)
        check_condition(at, stage.when, sure[stage.called], names)
        _check_application(at, known[stage.application])
        names.append(stage.called)


def _check_edges(at: str, stage: StageConfig, place: int, above: Sequence[str]) -> None:
    if place == 0:
        for key in ("after", "join", "transform", "when", "fan_out"):
            if getattr(stage, key) != StageConfig.model_fields[key].default:
                raise ValueError(f"{at}: {key} must be absent; queries enter at the first stage")
        return
    before = after_of(stage, above)
    if not before:
        raise ValueError(f"{at}: after is empty; name the stages whose results it gets")
    for name in before:
        if name not in above:
            raise ValueError(
                f"{at}: after={name!r} names no stage above it; stages stand behind those whose "
                "results they get"
            )
    for key in ("when", "fan_out") if stage.join else ():
        if getattr(stage, key) is not None:
            raise ValueError(
                f"{at}: {key} must be absent: a join runs once; give one to a stage before or "
                "after it"
            )
    how = stage.transform
    if stage.join and how.keep != "input" and not how.function:
        raise ValueError(
            f"{at}: a join gets several results; use transform: input, or module:function"
        )


def after_of(stage: StageConfig, above: Sequence[str]) -> list[str]:
    """Names of the stages before one that is not the first."""
    if stage.after is None:
        return [above[-1]]
    return list(dict.fromkeys([stage.after] if isinstance(stage.after, str) else stage.after))


def _check_application(at: str, application: Application) -> None:
    for what, found in (
        ("sequences", application.sequences or bool(application.state)),
        ("shapes", application.shapes is not None),
    ):
        if found:
            raise ValueError(f"{at}: {application.name} has {what}, which stages cannot have yet")


def graph_of(pipeline: PipelineConfig, applications: Sequence[Application]) -> Pipeline:
    """The pipeline as the router has it; of several versions, the newest runs its stages."""
    numbers: dict[str, int] = {}
    for number, each in enumerate(applications):
        known = numbers.get(each.name)
        if known is None or applications[known].version < each.version:
            numbers[each.name] = number
    names = [stage.called for stage in pipeline.stages]
    children: list[list[int]] = [[] for _ in names]
    for place, stage in enumerate(pipeline.stages[1:], 1):
        for name in after_of(stage, names[:place]):
            children[names.index(name)].append(place)
    stages = tuple(
        Stage(numbers[stage.application], tuple(to), stage.join)
        for stage, to in zip(pipeline.stages, children, strict=True)
    )
    slo_ns, called = ms(pipeline.slo_ms), bool(pipeline.function)
    return Pipeline(stages, slo_ns, pipeline.partial, called, pipeline.newest)
