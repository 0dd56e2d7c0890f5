"""Pipelines of a serving file as a scenario has them, and fan-outs of the command line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import yaml

from fermata.applications.reader import router_names
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig
    from fermata.deployments.config.pipelines import PipelineConfig, StageConfig

Rows = list[dict[str, Any]]
FORM = "must be STAGE=MEAN, the mean a number or a section such as {mean: 5}"


def pipeline_rows(config: "DeploymentConfig") -> Rows:
    """The pipelines of a serving file, with the fan-outs that it says or that are sure."""
    from fermata.deployments.config.pipelines import graph_of

    names = router_names(config.applications)
    rows: Rows = []
    for each in config.pipelines:
        if each.function:
            rule = "calls its stages as it likes, which is not simulated; write a scenario"
            name = f"pipeline {each.name!r}: function"
            refuse(name, each.function, f"{rule} with the same fan-outs (docs/pipelines.md)")
        graph = graph_of(each, config.applications)
        stages = [
            {"application": names[stage.application], **_stage_row(given)}
            for stage, given in zip(graph.stages, each.stages, strict=True)
        ]
        told = each.model_dump(include={"name", "slo_ms", "weight", "partial"})
        rows.append({**told, "stages": stages})
    return rows


def _stage_row(stage: "StageConfig") -> dict[str, Any]:
    row: dict[str, Any] = {"name": stage.called, "join": stage.join}
    if stage.after is not None:
        row["after"] = stage.after
    if stage.fan_out is not None:
        row["fan_out"] = stage.fan_out.model_dump()
    return row


def with_fan_outs(rows: Any, given: Sequence[str]) -> Any:
    """The pipelines with these fan-outs, `[PIPELINE.]STAGE=MEAN`, in place of their own."""
    if given and rows is None:
        refuse("--fan-out", given[0], "names no stage; the file has no pipelines")
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        # Whatever is wrong with it, its reader says.
        return rows
    for option in given:
        rows = _with_one(rows, option)
    return rows


def _with_one(rows: Rows, option: str) -> Rows:
    name, equals, text = option.partition("=")
    try:
        mean = yaml.safe_load(text)
    except yaml.YAMLError:
        mean = None
    if not equals or isinstance(mean, bool) or not isinstance(mean, int | float | dict):
        refuse("--fan-out", option, FORM)
    found = False
    changed: Rows = []
    for row in rows:
        stages = row.get("stages")
        stages = list(stages) if isinstance(stages, list) else []
        for place in range(1, len(stages)):
            if name in (_called(stages[place]), f"{row.get('name')}.{_called(stages[place])}"):
                stages[place] = {**stages[place], "fan_out": mean}
                found = True
        changed.append({**row, "stages": stages})
    if not found:
        known = [_called(each) for row in rows for each in row.get("stages", [])[1:]]
        options = ", ".join(dict.fromkeys(known)) or "none"
        refuse("--fan-out", option, f"names no stage that results go to; one of {options}")
    return changed


def _called(stage: Any) -> str:
    row = stage if isinstance(stage, dict) else {}
    return str(row.get("name") or row.get("application"))


def check_fan_outs(config: "DeploymentConfig", rows: Rows) -> None:
    """Refuse stages whose fan-out nobody says, and cannot be told from their transform."""
    for pipeline, row in zip(config.pipelines, rows, strict=True):
        for stage, told in zip(pipeline.stages, row["stages"], strict=True):
            if "fan_out" not in told and not _is_sure(pipeline, stage):
                raise ConfigError(
                    f"pipeline {pipeline.name!r}: stage {stage.called!r}: fan_out is not known; "
                    "say fan_out: {mean: MEAN} in the file, requests that one result makes on "
                    f"average, or --fan-out {stage.called}=MEAN"
                )


def _is_sure(pipeline: "PipelineConfig", stage: "StageConfig") -> bool:
    """Whether each result makes one request of a stage."""
    if stage is pipeline.stages[0] or stage.join:
        return True
    how = stage.transform
    return stage.when is None and (how.keep is not None or how.turn is not None)
