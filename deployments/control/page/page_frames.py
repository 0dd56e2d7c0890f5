"""Frames for the page, made of the router's snapshots: now, a second ago and a minute ago."""

from fermata.deployments.control.page.history import History
from fermata.deployments.control.page.pipeline_frames import pipeline_frames
from fermata.deployments.specs.outcomes import LATE
from fermata.deployments.specs.status import DeploymentStatus
from fermata.router.core.events import is_bad
from fermata.router.telemetry.dashboard_frames import (
    ApplicationFrame,
    BackendFrame,
    BatchFrame,
    DashboardFrame,
    SubClusterFrame,
)
from fermata.router.telemetry.histogram import quantile
from fermata.router.telemetry.snapshot import (
    BackendSnapshot,
    RouterSnapshot,
    SpareSnapshot,
    worst_first,
)

SECOND = 1e9
CAMERAS_SHOWN = 100
"""Rows of the page, which is drawn anew every second."""


def live_frame(status: DeploymentStatus, history: History, title: str) -> DashboardFrame:
    """The state of now as the page shows it; batches are there where somebody looks."""
    now = status.router
    minute, second = history.before(now), history.last(now)
    span_s = max(0.1, (now.up_ns - (0 if second is None else second.up_ns)) / SECOND)
    at_s = now.up_ns / SECOND
    return DashboardFrame(
        at_s=at_s,
        title=title,
        queued=now.queued,
        under_way=now.dispatched,
        applications=tuple(
            _application(name, status, minute, second, span_s) for name in now.applications
        ),
        sub_clusters=_sub_clusters(status),
        backends=(
            *(_backend(number, told, now, at_s) for number, told in now.backends.items()),
            *(_spare(number, told, now) for number, told in now.spares.items()),
        ),
        cameras=tuple(worst_first(now.cameras)[:CAMERAS_SHOWN]),
        cameras_seen=len(now.cameras),
        pipelines=pipeline_frames(now, minute),
    )


def _application(
    name: str,
    status: DeploymentStatus,
    minute: RouterSnapshot | None,
    second: RouterSnapshot | None,
    span_s: float,
) -> ApplicationFrame:
    told = status.router.applications[name]
    old = None if minute is None else minute.applications[name]
    last = None if second is None else second.applications[name]
    counts = list(told.latency.counts)
    rated, expected_right = told.rated, told.expected_right
    if old is not None:
        counts = [a - b for a, b in zip(counts, old.latency.counts, strict=True)]
        rated, expected_right = rated - old.rated, expected_right - old.expected_right
    p50_ns = quantile(told.latency.bounds, counts, 0.5)
    p99_ns = quantile(told.latency.bounds, counts, 0.99)
    served, batches = _served(status.router, minute, name)
    total = sum(served.values())
    promise = status.promises.get(name)
    ended = {LATE: told.late, **told.dropped}
    return ApplicationFrame(
        name=name,
        slo_ms=told.slo_ns / 1e6,
        requests=told.requests,
        good=told.good,
        bad={reason: count for reason, count in ended.items() if is_bad(reason)},
        rps=(told.requests - (0 if last is None else last.requests)) / span_s,
        good_rps=(told.good - (0 if last is None else last.good)) / span_s,
        bad_rate=status.bad_rates[name],
        p50_ms=None if p50_ns is None else p50_ns / 1e6,
        p99_ms=None if p99_ns is None else p99_ns / 1e6,
        mean_batch=total / batches if batches else None,
        accuracy=expected_right / rated if rated else None,
        streams=told.streams.seen,
        worst_stream_bad_rate=told.streams.worst_bad_rate,
        variants={each: count / total for each, count in served.items() if total},
        promised_accuracy=None if promise is None else promise.promised.accuracy,
        promised_violation=None if promise is None else promise.promised.violation,
        looks=told.looks,
    )


def _served(
    now: RouterSnapshot, before: RouterSnapshot | None, application: str
) -> tuple[dict[str, int], int]:
    """Requests of the last minute by variant, and the batches that they were in."""
    old = {} if before is None else {each.name: each.batch_sizes for each in before.variants}
    served: dict[str, int] = {}
    batches = 0
    for told in now.variants:
        if told.application == application:
            known = old.get(told.name, {})
            grown = {size: n - known.get(size, 0) for size, n in told.batch_sizes.items()}
            served[told.name] = sum(size * n for size, n in grown.items())
            batches += sum(grown.values())
    return served, batches


def _sub_clusters(status: DeploymentStatus) -> tuple[SubClusterFrame, ...]:
    advice = [] if status.scaling is None else status.scaling.advice
    return tuple(
        SubClusterFrame(
            backends=told.backends,
            idle=status.idle_fractions[rank],
            demand=told.demand,
            advised=advice[rank].target if rank < len(advice) else None,
            reason=advice[rank].reason if rank < len(advice) else "",
        )
        for rank, told in enumerate(status.router.ranks)
    )


def _backend(number: int, told: BackendSnapshot, now: RouterSnapshot, at_s: float) -> BackendFrame:
    state = "draining" if told.draining else "running" if told.running else "idle"
    own = now.processes.backends.get(number)
    used = -1.0 if own is None else own.gpu_used
    recent = {} if now.recent is None else now.recent
    return BackendFrame(
        name=str(number),
        sub_cluster=told.sub_cluster,
        kind=told.kind,
        state=state,
        models=tuple(told.models),
        gpu_used=used if used >= 0 else None,
        batches=tuple(
            BatchFrame(
                start_s=at_s - (each.ended_ns + each.run_ns) / SECOND,
                end_s=at_s - each.ended_ns / SECOND,
                variant=each.variant,
                size=each.size,
                deadline_s=at_s - each.deadline_ns / SECOND,
                late=each.late,
            )
            for each in recent.get(str(number), ())
        ),
    )


def _spare(number: int, told: SpareSnapshot, now: RouterSnapshot) -> BackendFrame:
    first = now.backends.get(told.first)
    return BackendFrame(
        name=str(number),
        sub_cluster=0 if first is None else first.sub_cluster,
        kind=told.kind,
        state=f"spare of {told.first}",
        models=tuple(told.models),
        batches=(),
    )
