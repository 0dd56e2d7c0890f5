"""Pipelines for the page: which stage is the bottleneck, and what was run in vain."""

from collections.abc import Mapping

from fermata.router.core.events import is_bad
from fermata.router.telemetry.dashboard_frames import PipelineFrame, StageFrame
from fermata.router.telemetry.snapshot import PipelineSnapshot, RouterSnapshot, StageSnapshot

SECOND = 1e9


def pipeline_frames(
    now: RouterSnapshot, minute: RouterSnapshot | None
) -> tuple[PipelineFrame, ...]:
    """Every pipeline, as it was since the snapshot of a minute ago; since the start without one."""
    old = {} if minute is None else minute.pipelines
    span_s = max(0.1, (now.up_ns - (0 if minute is None else minute.up_ns)) / SECOND)
    return tuple(_frame(name, told, old, span_s) for name, told in now.pipelines.items())


def _frame(
    name: str, told: PipelineSnapshot, old: Mapping[str, PipelineSnapshot], span_s: float
) -> PipelineFrame:
    before = old.get(name)
    known = {} if before is None else before.answered
    ended = {outcome: count - known.get(outcome, 0) for outcome, count in told.answered.items()}
    queries = sum(ended.values())
    bad = sum(count for outcome, count in ended.items() if is_bad(outcome))
    old_stages = [None] * len(told.stages) if before is None else before.stages
    grown = [_grown(stage, last) for stage, last in zip(told.stages, old_stages, strict=True)]
    busy_ns = sum(each.busy_ns for each in grown)
    wasted_ns = told.wasted_ns - (0 if before is None else before.wasted_ns)
    return PipelineFrame(
        name=name,
        slo_ms=told.slo_ns / 1e6,
        rps=queries / span_s,
        bad_rate=bad / queries if queries else None,
        wasted=wasted_ns / busy_ns if busy_ns else None,
        stages=tuple(_stage(each, span_s) for each in grown),
    )


def _grown(now: StageSnapshot, last: StageSnapshot | None) -> StageSnapshot:
    if last is None:
        return now
    grown = now.results - last.results, now.took_ns - last.took_ns, now.busy_ns - last.busy_ns
    return StageSnapshot(now.application, now.open, *grown)


def _stage(grown: StageSnapshot, span_s: float) -> StageFrame:
    return StageFrame(
        application=grown.application,
        open=grown.open,
        rps=grown.results / span_s,
        mean_ms=grown.took_ns / grown.results / 1e6 if grown.results else None,
        busy=grown.busy_ns / SECOND / span_s,
    )
