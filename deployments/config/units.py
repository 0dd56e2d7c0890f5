"""Units of placement: applications that live together, since pipelines join them. Pure.

A query needs all of its stages at one router. So applications that run stages of one pipeline are
placed as one, and a stage that two pipelines share joins both.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig
    from fermata.deployments.config.pipelines import PipelineConfig


def units_of(config: "DeploymentConfig") -> dict[str, tuple[str, ...]]:
    """Applications by the unit that they live in. One without pipelines is a unit of its own name;
    others are named by all that they have, with `+` between."""
    return {"+".join(each): each for each in dict.fromkeys(_together(config).values())}


def _together(config: "DeploymentConfig") -> dict[str, tuple[str, ...]]:
    """By application: all that live together with it, in the order of the file."""
    unit: dict[str, tuple[str, ...]] = {each.name: (each.name,) for each in config.applications}
    order = {name: place for place, name in enumerate(unit)}
    for pipeline in config.pipelines:
        joined = {name for stage in pipeline.stages for name in unit[stage.application]}
        together = tuple(sorted(joined, key=order.__getitem__))
        unit.update(dict.fromkeys(together, together))
    return unit


def check_unit_names(config: "DeploymentConfig") -> None:
    """Refuse an application that has the name of a unit of others."""
    count = len(dict.fromkeys(_together(config).values()))
    if len(units_of(config)) < count:
        joined = {"+".join(each) for each in _together(config).values() if len(each) > 1}
        (name, *_) = sorted(joined & {each.name for each in config.applications})
        raise ValueError(
            f"application {name!r} has the name of those that a pipeline joins; rename it"
        )


def unit_names(config: "DeploymentConfig") -> dict[str, str]:
    """By application: its unit."""
    return {name: unit for unit, names in units_of(config).items() for name in names}


def spread_over(config: "DeploymentConfig") -> tuple[str, ...]:
    """Applications that live in every sub-cluster: those that `sub_clusters.spread` names, by
    themselves or by a pipeline of theirs, with their whole units."""
    stages = {each.name: each.stages[0].application for each in config.pipelines}
    named = {stages.get(name, name) for name in config.sub_clusters.spread}
    units = units_of(config).values()
    return tuple(name for unit in units if not named.isdisjoint(unit) for name in unit)


def pipelines_within(
    config: "DeploymentConfig", applications: Collection[str]
) -> "list[PipelineConfig]":
    """Pipelines all of whose stages are among these applications."""
    return [
        each
        for each in config.pipelines
        if all(stage.application in applications for stage in each.stages)
    ]


def described(config: "DeploymentConfig", unit: str) -> str:
    """A unit in words, for messages."""
    names = units_of(config)[unit]
    if len(names) == 1:
        return f"application {unit}"
    told = sorted(
        each.name
        for each in config.pipelines
        if any(stage.application in names for stage in each.stages)
    )
    plural = "s" if len(told) > 1 else ""
    return f"applications {', '.join(names)} of pipeline{plural} {', '.join(told)}"
