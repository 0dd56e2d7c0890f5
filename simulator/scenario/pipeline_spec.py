"""Pipelines of a scenario file: stages, edges and fan-out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fermata.applications.application import Application
from fermata.applications.clients import ClientsSpec
from fermata.foundation.refusals import refuse
from fermata.foundation.sections import read_section
from fermata.foundation.units import ms, seconds
from fermata.foundation.validation import Fields
from fermata.router.core.queries.pipeline import Pipeline, Stage

PIPELINE_KEYS = ("name", "slo_ms", "weight", "partial", "newest", "clients", "stages")
CLIENT_KEYS = ("count", "slo_ms", "fps", "priority")
STAGE_KEYS = ("name", "application", "after", "fan_out", "join")
FAN_OUT_KEYS = ("mean", "law")
LAWS = ("geometric", "fixed")
PIPELINE_RULES = ("door", "per-stage", "nexus", "inferline", "clipper++", "pard")
"""The router's own comes first; see docs/pipelines.md."""
PARTITIONED = frozenset(("inferline", "clipper++"))
"""Rules by which each stage has backends of its own."""
OWN_BACKENDS = PARTITIONED | {"nexus"}
"""Those, and the one whose bins are planned once."""


@dataclass(frozen=True, slots=True)
class FanOutSpec:
    """Requests that one result makes at a stage."""

    steps: tuple[tuple[int, float], ...] = ((0, 1.0),)
    """(from, mean), by time from the end of the warm-up."""
    law: str = "fixed"
    """`fixed`: the mean, rounded up or down at random; `geometric`: from 0 on."""

    @property
    def mean(self) -> float:
        """The largest mean of any step."""
        return max(mean for _, mean in self.steps)

    @property
    def variance(self) -> float:
        """That of the number of requests, at the largest mean."""
        part = self.mean % 1.0
        return part * (1.0 - part) if self.law == "fixed" else self.mean * (1.0 + self.mean)

    def at(self, since_ns: int) -> float:
        """The mean at a time."""
        return next(mean for from_ns, mean in reversed(self.steps) if from_ns <= max(0, since_ns))


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A pipeline, and what its queries are like."""

    name: str
    graph: Pipeline
    names: tuple[str, ...]
    """By stage."""
    fan_outs: tuple[tuple[FanOutSpec, ...], ...]
    """By stage and edge."""
    weight: float = 1.0
    """Its part of the whole rate, relative to others."""
    clients: tuple[ClientsSpec, ...] = ()
    """Streams that its queries are of; empty: each stands alone."""


def read_pipelines(top: Fields, applications: Sequence[Application]) -> tuple[PipelineSpec, ...]:
    """The pipelines of a scenario, every value of them checked."""
    found = tuple(_read_pipeline(row, applications) for row in top.rows("pipelines", PIPELINE_KEYS))
    taken = [each.name for each in applications]
    for each in found:
        if each.name in taken:
            refuse("pipelines", each.name, "is the name of two pipelines or applications")
        taken.append(each.name)
    return found


def _read_pipeline(row: Fields, applications: Sequence[Application]) -> PipelineSpec:
    names: list[str] = []
    children: list[list[int]] = []
    fan_outs: list[list[FanOutSpec]] = []
    stages: list[Stage] = []
    numbers = {each.name: number for number, each in enumerate(applications)}
    for place, stage in enumerate(row.rows("stages", STAGE_KEYS)):
        application = stage.text("application")
        if application not in numbers:
            refuse(stage.name("application"), application, "names no application")
        name = stage.text("name", application)
        if name in names:
            refuse(stage.name("name"), name, "is the name of two stages; give one of them a name")
        for before in _after(stage, place, names):
            children[before].append(place)
            fan_outs[before].append(_read_fan_out(stage))
        names.append(name)
        children.append([])
        fan_outs.append([])
        stages.append(Stage(numbers[application], join=stage.flag("join")))
    if not stages or stages[0].join:
        refuse(row.name("stages"), names, "must begin with a stage that is no join")
    linked = [replace(each, children=tuple(to)) for each, to in zip(stages, children, strict=True)]
    slo_ns, newest = ms(row.number("slo_ms")), row.flag("newest")
    clients = tuple(_read_clients(each, slo_ns) for each in row.rows("clients", CLIENT_KEYS))
    if newest and not clients:
        refuse(row.name("newest"), True, "needs clients, whose frames supersede one another")
    return PipelineSpec(
        row.text("name"),
        Pipeline(tuple(linked), slo_ns, row.flag("partial"), newest=newest),
        tuple(names),
        tuple(map(tuple, fan_outs)),
        row.number("weight", 1.0),
        clients,
    )


def _read_clients(row: Fields, slo_ns: int) -> ClientsSpec:
    found = read_section(ClientsSpec, row)
    return found if found.slo_ns else replace(found, slo_ns=slo_ns)


def _after(stage: Fields, place: int, names: list[str]) -> list[int]:
    """Places of the stages that a stage follows: the one before it, unless it names others."""
    given = stage.data.get("after")
    if place == 0:
        if given is not None:
            refuse(stage.name("after"), given, "must be absent: queries enter at the first stage")
        return []
    if given is None:
        return [place - 1]
    wanted = given if isinstance(given, list) else [given]
    for name in wanted:
        if name not in names:
            refuse(stage.name("after"), name, "names no stage above this one")
    return [names.index(name) for name in dict.fromkeys(wanted)]


def _read_fan_out(stage: Fields) -> FanOutSpec:
    given = stage.data.get("fan_out", 1)
    if not isinstance(given, dict):
        return FanOutSpec(((0, stage.number("fan_out", 1.0)),))
    row = stage.inner("fan_out", FAN_OUT_KEYS)
    law = row.choice("law", LAWS, "geometric")
    if not isinstance(row.data.get("mean"), list):
        return FanOutSpec(((0, row.number("mean")),), law)
    steps = [
        (seconds(step.number("from_s", 0)), step.number("mean"))
        for step in row.rows("mean", ("from_s", "mean"))
    ]
    if not steps or steps[0][0] != 0 or sorted(steps) != steps:
        refuse(row.name("mean"), row.items("mean"), "from_s must begin with 0 and rise")
    return FanOutSpec(tuple(steps), law)


def as_stages(
    top: Fields,
    applications: tuple[Application, ...],
    pipelines: Sequence[PipelineSpec],
    rule: str,
) -> tuple[Application, ...]:
    """The applications, where those that run stages have the policy for it. They have requests of
    their own only where they have a `weight`."""
    if not pipelines:
        return applications
    numbers = {each for one in pipelines for each in one.graph.applications}
    rows = [row for row in top.items("applications") if isinstance(row, dict)]
    weighed = {row.get("name") for row in rows if "weight" in row}
    found: list[Application] = []
    for number, application in enumerate(applications):
        if number in numbers:
            weight = application.weight if application.name in weighed else 0.0
            application = replace(application, weight=weight)
            if not application.policy:
                application = replace(application, policy=stage_policy(rule))
        found.append(application)
    return tuple(found)


def stage_policy(rule: str) -> str:
    """The policy of stages by a rule."""
    return "partitioned" if rule == "nexus" else "stages"


def shares_of(
    applications: Sequence[Application], pipelines: Sequence[PipelineSpec]
) -> tuple[float, ...]:
    """Parts of the whole rate: those of the applications, then those of the pipelines."""
    weights = [each.weight for each in applications] + [each.weight for each in pipelines]
    if sum(weights) <= 0.0:
        refuse("pipelines", "weight", "must be above 0 for some pipeline or application")
    return tuple(each / sum(weights) for each in weights)
