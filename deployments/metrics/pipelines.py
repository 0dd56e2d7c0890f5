"""Metrics of pipelines: answers to queries, and the time that each stage takes."""

from collections.abc import Callable, Iterator

from fermata.deployments.metrics.exposition import SECOND, MetricFamily, Sample
from fermata.deployments.specs.outcomes import GOOD, LATE
from fermata.deployments.specs.status import DeploymentStatus
from fermata.router.telemetry.snapshot import StageSnapshot

STAGE = ("pipeline", "stage", "application")


def _answered(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.pipelines.items():
        for outcome, count in {GOOD: 0, LATE: 0, **told.answered}.items():
            yield {"pipeline": name, "outcome": outcome}, count


def _door_share(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.pipelines.items():
        yield {"pipeline": name}, told.door_share


def _wasted(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.pipelines.items():
        yield {"pipeline": name}, told.wasted_ns / SECOND


def _each(figure: Callable[[StageSnapshot], float]) -> Callable[..., Iterator[Sample]]:
    """One figure of every stage."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for name, told in status.router.pipelines.items():
            for place, stage in enumerate(told.stages):
                about = {"pipeline": name, "stage": str(place), "application": stage.application}
                yield about, figure(stage)

    return read


FAMILIES = (
    MetricFamily(
        "pipeline_answered_total",
        "counter",
        "Queries answered by frontends. The outcome is good (in time), ran-late (after the SLO), "
        "or the reason of a refusal.",
        ("pipeline", "outcome"),
        _answered,
    ),
    MetricFamily(
        "pipeline_door_share",
        "gauge",
        "Share of the SLO by which a query must be estimated to end, or it is refused at once. "
        "It is learnt: it falls while queries are lost after backends have run them.",
        ("pipeline",),
        _door_share,
    ),
    MetricFamily(
        "pipeline_wasted_seconds_total",
        "counter",
        "Backend time in vain: of queries that ended without a good answer, cancelled ones too, "
        "and of what ran on after its query had ended.",
        ("pipeline",),
        _wasted,
    ),
    MetricFamily(
        "pipeline_stage_open",
        "gauge",
        "Requests of a stage that wait, run, or whose results are being handed on. Stages are "
        "numbered from 0 in the order of the file.",
        STAGE,
        _each(lambda told: told.open),
    ),
    MetricFamily(
        "pipeline_stage_results_total",
        "counter",
        "Requests of a stage that backends have run.",
        STAGE,
        _each(lambda told: told.results),
    ),
    MetricFamily(
        "pipeline_stage_seconds_total",
        "counter",
        "Time of those requests, from their coming to the end of their batch.",
        STAGE,
        _each(lambda told: told.took_ns / SECOND),
    ),
    MetricFamily(
        "pipeline_stage_busy_seconds_total",
        "counter",
        "Backend time that those requests took. The stage with most of it is the bottleneck.",
        STAGE,
        _each(lambda told: told.busy_ns / SECOND),
    ),
)
