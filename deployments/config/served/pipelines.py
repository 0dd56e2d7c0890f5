"""Pipelines as frontends offer them, their transforms checked against the models they join."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import iscoroutinefunction

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.pipelines import PipelineConfig, StageConfig, graph_of
from fermata.deployments.config.served.conditions import (
    check_classes,
    check_condition_fits,
    condition_of,
)
from fermata.deployments.specs.pipelines import (
    ANSWER,
    CropChoice,
    RowChoice,
    ServedPipeline,
    ServedStage,
    StageTransform,
    TurnChoice,
)
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.user_code import import_function

DEGREES = ("0", "90", "180", "270")
"""Classes that a picture can be turned back by."""


def served_pipelines(config: DeploymentConfig, models: Sequence[ServedModel]) -> list[ServedModel]:
    """A model for each pipeline, with the input of its first stage. Raises ConfigError."""
    # Those of the highest versions come last.
    newest = {model.name: model for model in models}
    return [_served(each, config, newest) for each in config.pipelines]


def _served(
    pipeline: PipelineConfig, config: DeploymentConfig, models: Mapping[str, ServedModel]
) -> ServedModel:
    graph = graph_of(pipeline, config.served)
    names = [each.called for each in pipeline.stages]
    stages = tuple(_stage(each, names, models) for each in pipeline.stages)
    if graph.called:
        _check_function(f"pipeline {pipeline.name!r}", pipeline.function)
    for before, stage in zip(stages, graph.stages, strict=True):
        for child in stage.children if not graph.called else ():
            where = f"pipeline {pipeline.name!r}: stage {stages[child].name!r}"
            _check_fit(where, before, stages[child])
            when = stages[child].when
            if when is not None:
                asked = before if when.stage < 0 else stages[when.stage]
                check_condition_fits(where, before, asked, when, bool(graph.joins))
    first = models[pipeline.stages[0].application]
    return replace(
        first,
        name=pipeline.name,
        slo_ns=graph.slo_ns,
        hard_limit_ns=graph.slo_ns,
        outputs=(TensorSpec(ANSWER, "BYTES", (1,)),),
        versions=("1",),
        version="1",
        router_name=pipeline.name,
        share=1.0,
        labels=(),
        boxes=None,
        rows_max=1,
        pipeline=ServedPipeline(pipeline.name, graph, stages, pipeline.function),
    )


def _check_function(where: str, reference: str) -> None:
    if not iscoroutinefunction(_function(where, "function", reference)):
        raise ConfigError(f"{where}: function={reference!r} must be an async function (async def)")


def _stage(
    given: StageConfig, names: Sequence[str], models: Mapping[str, ServedModel]
) -> ServedStage:
    model = models[given.application]
    version, how = model.own_versions[-1], _transform(given)
    when = None if given.when is None else condition_of(given.when, names)
    return ServedStage(given.called, model, version, how, given.classes or 0, when)


def _transform(given: StageConfig) -> StageTransform:
    how = given.transform
    if how.keep is not None:
        return StageTransform(how.keep)
    if how.function:
        return StageTransform("function", function=how.function)
    if how.crop is not None:
        crop = how.crop
        classes = tuple(map(str, crop.classes))
        outputs = crop.scores, crop.numbers
        choice = CropChoice(classes, crop.score_min, crop.top_k or 0, *outputs)
        return StageTransform("crop", crop=choice)
    if how.turn is not None:
        return StageTransform("turn", turn=TurnChoice(how.turn.score_min, how.turn.scores))
    assert how.filter is not None
    rows = how.filter
    chosen = RowChoice(rows.output, rows.scores, rows.score_min, rows.top_k or 0)
    return StageTransform("filter", rows=chosen)


def _check_fit(where: str, before: ServedStage, stage: ServedStage) -> None:
    """Refuse a transform that cannot make the stage's inputs, as far as models say what they give
    and take."""
    how = stage.transform
    if how.kind == "crop":
        _check_crop(where, before, stage)
    elif how.kind == "filter":
        _check_rows(where, before, stage)
    elif how.kind == "turn":
        _check_turn(where, before, stage)
    elif how.kind == "function":
        _function(where, "transform", how.function)
    elif how.kind == "input":
        if not _takes_the_same(before.model, stage.model):
            raise ConfigError(
                f"{where}: transform=input: {before.name} takes {_told(before.model.inputs)} and "
                f"{stage.name} {_told(stage.model.inputs)}; use a function"
            )
    elif before.model.outputs and not _fits(before.model.outputs, stage.model.inputs):
        raise ConfigError(
            f"{where}: transform=output: {before.name} gives {_told(before.model.outputs)} and "
            f"{stage.name} takes {_told(stage.model.inputs)}; use another transform"
        )


def _function(where: str, key: str, reference: str) -> object:
    """A function of the user's; ConfigError where there is none."""
    try:
        function: object = import_function(reference)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {key}={reference!r} cannot be imported: {error}; put its folder on "
            "PYTHONPATH"
        ) from None
    if not callable(function):
        raise ConfigError(f"{where}: {key}={reference!r} is no function; name one")
    return function


def _check_crop(where: str, before: ServedStage, stage: ServedStage) -> None:
    if before.model.boxes is None:
        raise ConfigError(
            f"{where}: transform=crop: {before.name} gives no boxes; say which output holds them "
            "(boxes of its application)"
        )
    if stage.model.image is None:
        raise ConfigError(f"{where}: transform=crop: {stage.name} takes no pictures (input.image)")
    check_classes(f"{where}: crop", stage.transform.crop.classes, before.model)


def _check_rows(where: str, before: ServedStage, stage: ServedStage) -> None:
    rows, outputs = stage.transform.rows, {each.name: each for each in before.model.outputs}
    if stage.model.more_inputs:
        raise ConfigError(
            f"{where}: transform=filter: {stage.name} takes {_told(stage.model.inputs)}, and a row "
            "is one input; use a function"
        )
    for key, name in (("output", rows.output), ("scores", rows.scores)):
        if outputs and name and name not in outputs:
            known = ", ".join(outputs)
            raise ConfigError(f"{where}: filter.{key}={name!r} is unknown; one of {known}")
    if len(outputs) > 1 and not rows.output:
        raise ConfigError(f"{where}: filter.output is needed; one of {', '.join(outputs)}")
    if outputs:
        spec = outputs[rows.output] if rows.output else before.model.outputs[0]
        if not spec.shape or not _fits_one(replace(spec, shape=spec.shape[1:]), stage.model.input):
            raise ConfigError(
                f"{where}: transform=filter: rows of {spec} are no input of {stage.name}, which "
                f"takes {stage.model.input}; use a function"
            )


def _check_turn(where: str, before: ServedStage, stage: ServedStage) -> None:
    for each in (before, stage):
        if each.model.image is None:
            raise ConfigError(
                f"{where}: transform=turn: {each.name} takes no pictures (input.image)"
            )
    labels, outputs = before.model.labels, [each.name for each in before.model.outputs]
    if not labels or not set(labels) <= set(DEGREES):
        raise ConfigError(
            f"{where}: transform=turn: classes of {before.name} are "
            f"{', '.join(labels[:4]) or 'unknown'}, not {', '.join(DEGREES)}; give it labels"
        )
    scores = stage.transform.turn.scores
    if outputs and scores and scores not in outputs:
        raise ConfigError(
            f"{where}: turn.scores={scores!r} is unknown; one of {', '.join(outputs)}"
        )


def _takes_the_same(one: ServedModel, other: ServedModel) -> bool:
    if one.image is not None and other.image is not None:
        return True
    return _fits(one.inputs, other.inputs)


def _fits(given: Sequence[TensorSpec], wanted: Sequence[TensorSpec]) -> bool:
    """Whether tensors are inputs, by their names; one alone may have another."""
    if len(wanted) == 1 and len(given) == 1:
        return _fits_one(given[0], wanted[0])
    known = {each.name: each for each in given}
    return all(
        each.optional or (each.name in known and _fits_one(known[each.name], each))
        for each in wanted
    )


def _fits_one(given: TensorSpec, wanted: TensorSpec) -> bool:
    return (
        given.datatype == wanted.datatype
        and len(given.shape) == len(wanted.shape)
        and all(-1 in (a, b) or a == b for a, b in zip(given.shape, wanted.shape, strict=True))
    )


def _told(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, tensors))
