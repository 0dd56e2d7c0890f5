"""Figures of pipelines: how queries ended, what they cost, and which stage is the bottleneck."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fermata.foundation.units import SECOND
from fermata.router.core.events import GOOD
from fermata.simulator.pipelines.play import QueryLog, StageLog
from fermata.simulator.run import RunLog
from fermata.simulator.scenario.pipeline_spec import PipelineSpec
from fermata.simulator.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a pipeline, over requests that ran in the measured time."""

    name: str
    requests: int
    wait_ms: float
    """Mean time from a request's arrival at the stage to the start of its batch."""
    backend_share: float
    """Part of all backend time of the measured time."""


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Queries that arrived within the measured time."""

    name: str
    requests: int
    good_rps: float
    bad_rate: float
    refused: int
    """Refused at the door, at once."""
    ends: Mapping[str, int]
    """Queries by how they ended."""
    wasted: float
    """Part of the backend time of all queries that was spent on those that ended bad."""
    bottleneck: str
    """The stage whose requests take the most backend time."""
    stages: tuple[StageReport, ...]
    accuracy: float | None = None
    """Accuracy of the whole, over all queries: a good one counts with the product of its stages'
    mean accuracies, others with 0. None where accuracies are not known."""


def pipeline_reports(scenario: Scenario, log: RunLog) -> tuple[PipelineReport, ...]:
    """The figures of each pipeline."""
    if log.pipelines is None:
        return ()
    measured: list[list[QueryLog]] = [[] for _ in scenario.pipelines]
    for query in log.pipelines.queries.values():
        if query.arrived_at_ns >= scenario.warmup_ns:
            measured[query.pipeline].append(query)
    return tuple(
        _report(scenario, spec, queries, stages)
        for spec, queries, stages in zip(
            scenario.pipelines, measured, log.pipelines.stages, strict=True
        )
    )


def _report(
    scenario: Scenario,
    spec: PipelineSpec,
    queries: Sequence[QueryLog],
    stages: Sequence[StageLog],
) -> PipelineReport:
    good = sum(query.outcome == GOOD for query in queries)
    spent_ns = sum(query.spent_ns for query in queries)
    wasted_ns = sum(query.spent_ns for query in queries if query.outcome != GOOD)
    backend_ns = scenario.backends * scenario.duration_ns
    of_stages = tuple(
        StageReport(
            name,
            stage.requests,
            stage.waited_ns / max(1, stage.requests) / 1e6,
            stage.spent_ns / backend_ns,
        )
        for name, stage in zip(spec.names, stages, strict=True)
    )
    return PipelineReport(
        name=spec.name,
        requests=len(queries),
        good_rps=good * SECOND / scenario.duration_ns,
        bad_rate=1.0 - good / len(queries) if queries else 0.0,
        refused=sum(query.refused for query in queries),
        ends=dict(sorted(Counter(query.outcome or "pending" for query in queries).items())),
        wasted=wasted_ns / spent_ns if spent_ns else 0.0,
        bottleneck=max(of_stages, key=lambda stage: stage.backend_share).name,
        stages=of_stages,
        accuracy=_accuracy(scenario, spec, queries),
    )


def _accuracy(scenario: Scenario, spec: PipelineSpec, queries: Sequence[QueryLog]) -> float | None:
    applications = [scenario.applications[stage.application] for stage in spec.graph.stages]
    if not queries or not all(each.accuracies for each in applications):
        return None
    return sum(query.accuracy for query in queries if query.outcome == GOOD) / len(queries)
