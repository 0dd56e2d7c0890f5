"""Status and page of a deployment with several routers, made of what each one tells. Pure."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from fermata.deployments.specs.status import DeploymentStatus, ReplanningStatus
from fermata.router.links.directory import Directory
from fermata.router.telemetry.dashboard_frames import (
    ApplicationFrame,
    BackendFrame,
    DashboardFrame,
    PipelineFrame,
    read_frame,
)
from fermata.router.telemetry.histogram import HistogramSnapshot
from fermata.router.telemetry.snapshot import (
    ApplicationSnapshot,
    CameraSnapshot,
    PipelineSnapshot,
    PlacementSnapshot,
    ProcessesSnapshot,
    RouterSnapshot,
    StageSnapshot,
    VariantSnapshot,
    worst_first,
)

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R", ApplicationFrame, PipelineFrame)


def merged_status(told: Mapping[int, DeploymentStatus]) -> DeploymentStatus:
    """The status of all, by sub-cluster."""
    statuses = list(told.values())
    names = {name for each in statuses for name in each.bad_rates}
    replanning = [each.replanning for each in statuses if each.replanning is not None]
    return DeploymentStatus(
        merged_snapshot({number: each.router for number, each in told.items()}),
        {name: _bad_rate(name, statuses) for name in sorted(names)},
        [idle for each in statuses for idle in each.idle_fractions],
        replanning=_replanning(replanning) if replanning else None,
        promises=_union(each.promises for each in statuses),
    )


def _bad_rate(name: str, statuses: Iterable[DeploymentStatus]) -> float:
    """The bad rate over all homes of an application, each by the requests that it had."""
    known = [
        (each.router.applications[name].requests, each.bad_rates[name])
        for each in statuses
        if name in each.bad_rates
    ]
    total = sum(requests for requests, _ in known)
    if not total:
        return max(rate for _, rate in known)
    return sum(requests * rate for requests, rate in known) / total


def _replanning(given: Sequence[ReplanningStatus]) -> ReplanningStatus:
    return ReplanningStatus(
        sum(each.decisions for each in given),
        max(each.decided_ms for each in given),
        sum(each.failures for each in given),
        next((each.trouble for each in given if each.trouble), ""),
    )


def merged_snapshot(told: Mapping[int, RouterSnapshot]) -> RouterSnapshot:
    """One snapshot for all: counts add up, and each backend is told with its sub-cluster."""
    routers = list(told.values())
    return replace(
        _with_processes(told),
        # Another sum once any of them has started anew.
        term=sum(each.term for each in routers),
        stale=next((each.stale for each in routers if each.stale), ""),
        up_ns=max(each.up_ns for each in routers),
        frontends=sorted({number for each in routers for number in each.frontends}),
        queued=sum(each.queued for each in routers),
        dispatched=sum(each.dispatched for each in routers),
        unknown_application=sum(each.unknown_application for each in routers),
        stray_messages=sum(each.stray_messages for each in routers),
        hung_backends=[number for each in routers for number in each.hung_backends],
        lost_backends=[reason for each in routers for reason in each.lost_backends],
        retired_backends=_union(each.retired_backends for each in routers),
        ejected_backends=_union(each.ejected_backends for each in routers),
        next_wake_in_ns=min(
            (each.next_wake_in_ns for each in routers if each.next_wake_in_ns is not None),
            default=None,
        ),
        lead_ns=max(each.lead_ns for each in routers),
        link_ns=max(each.link_ns for each in routers),
        timer_late_ns=_joined((each.timer_late_ns for each in routers), max),
        timer_late=_histogram([each.timer_late for each in routers]),
        link_round_trip=_histogram([each.link_round_trip for each in routers]),
        loads=_joined((each.loads for each in routers), _added),
        failures=sum(each.failures for each in routers),
        applications=_joined((each.applications for each in routers), _application),
        tenants=_joined((each.tenants for each in routers), _counted),
        policies=_union(each.policies for each in routers),
        variants=_variants(routers),
        busy_ns=_joined((each.busy_ns for each in routers), _sum),
        non_finite=_joined((each.non_finite for each in routers), _sum),
        cameras=_cameras(routers),
        pipelines=_joined((each.pipelines for each in routers), _pipeline),
    )


def grouped(snapshot: RouterSnapshot, members: Mapping[str, Sequence[str]]) -> RouterSnapshot:
    """The same with the counts of whole applications, whose versions and buckets move together."""
    told = snapshot.applications
    return replace(
        snapshot,
        applications={
            application: _joined(({application: told[name]} for name in names), _application)[
                application
            ]
            for application, names in members.items()
        },
    )


def _with_processes(told: Mapping[int, RouterSnapshot]) -> RouterSnapshot:
    """The first snapshot, with the processes and homes of all."""
    routers = list(told.values())
    recent = [each.recent for each in routers if each.recent is not None]
    homes: dict[str, set[int]] = {}
    for number, each in told.items():
        # Any may live at one that has not been told yet.
        for name in each.placement.applications or each.applications:
            homes.setdefault(name, set()).add(number)
    return replace(
        routers[0],
        absent={
            name: why
            for each in routers
            for name, why in each.absent.items()
            if all(name in told[home].absent for home in homes.get(name, ()))
        },
        wanted=[count for each in routers for count in each.wanted],
        placement=PlacementSnapshot(
            {name: min(at) for name, at in homes.items()},
            {backend: number for number, each in told.items() for backend in each.backends},
            [name for each in routers for name in each.placement.on_their_way],
        ),
        processes=ProcessesSnapshot(
            _union(each.processes.frontends for each in routers),
            _union(each.processes.backends for each in routers),
        ),
        backends={
            backend: replace(state, sub_cluster=number)
            for number, each in told.items()
            for backend, state in each.backends.items()
        },
        ranks=[rank for each in routers for rank in each.ranks],
        standby=all(each.standby for each in routers),
        tasks=max(each.tasks for each in routers),
        links_refused=sum(each.links_refused for each in routers),
        recent=_union(recent) if recent else None,
        spares=_union(each.spares for each in routers),
    )


def _union(given: Iterable[Mapping[K, T]]) -> dict[K, T]:
    return {key: value for each in given for key, value in each.items()}


def _joined(given: Iterable[Mapping[K, T]], join: Callable[[T, T], T]) -> dict[K, T]:
    """All of them, joined where two tell of the same."""
    found: dict[K, T] = {}
    for each in given:
        for key, value in each.items():
            found[key] = join(found[key], value) if key in found else value
    return found


def _sum(first: int, second: int) -> int:
    return first + second


def _added(first: list[int], second: list[int]) -> list[int]:
    return [one + other for one, other in zip(first, second, strict=True)]


def _counted(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, int]:
    return _joined((first, second), _sum)


def _histogram(given: Sequence[HistogramSnapshot]) -> HistogramSnapshot:
    counts = [sum(column) for column in zip(*(each.counts for each in given), strict=True)]
    return HistogramSnapshot(given[0].bounds, tuple(counts), sum(each.sum for each in given))


def _application(first: ApplicationSnapshot, second: ApplicationSnapshot) -> ApplicationSnapshot:
    """One application in two sub-clusters."""
    worse = max(first.streams, second.streams, key=lambda each: each.worst_bad_rate)
    return replace(
        first,
        lead_ns=max(first.lead_ns, second.lead_ns),
        requests=first.requests + second.requests,
        good=first.good + second.good,
        late=first.late + second.late,
        dropped=_counted(first.dropped, second.dropped),
        answered=_counted(first.answered, second.answered),
        expected_right=first.expected_right + second.expected_right,
        rated=first.rated + second.rated,
        latency=_histogram([first.latency, second.latency]),
        queue_delay=_histogram([first.queue_delay, second.queue_delay]),
        slack=_histogram([first.slack, second.slack]),
        streams=replace(worse, seen=first.streams.seen + second.streams.seen),
        parts_good=first.parts_good + second.parts_good,
        parts_bad=first.parts_bad + second.parts_bad,
    )


def _pipeline(first: PipelineSnapshot, second: PipelineSnapshot) -> PipelineSnapshot:
    """Queries of both; the door is that of the router which has ended more of them."""
    busier = max(first, second, key=lambda each: sum(each.ended.values()))
    return replace(
        busier,
        answered=_joined((first.answered, second.answered), _sum),
        stages=[_stage(*each) for each in zip(first.stages, second.stages, strict=True)],
        wasted_ns=first.wasted_ns + second.wasted_ns,
        ended=_joined((first.ended, second.ended), _sum),
    )


def _stage(first: StageSnapshot, second: StageSnapshot) -> StageSnapshot:
    return StageSnapshot(
        first.application,
        first.open + second.open,
        first.results + second.results,
        first.took_ns + second.took_ns,
        first.busy_ns + second.busy_ns,
    )


def _variants(routers: Iterable[RouterSnapshot]) -> list[VariantSnapshot]:
    found: dict[str, VariantSnapshot] = {}
    for each in routers:
        for told in each.variants:
            known = found.get(told.name)
            sizes = told.batch_sizes if known is None else _counts(known, told)
            found[told.name] = replace(told, batch_sizes=sizes)
    return list(found.values())


def _counts(first: VariantSnapshot, second: VariantSnapshot) -> dict[int, int]:
    return _joined((first.batch_sizes, second.batch_sizes), _sum)


def _cameras(told: Iterable[RouterSnapshot | DashboardFrame]) -> list[CameraSnapshot]:
    """Each camera once: one that has moved counts where it is served."""
    found: dict[tuple[str, str], CameraSnapshot] = {}
    for each in told:
        for camera in each.cameras:
            known = found.get((camera.application, camera.client))
            if known is None or camera.served > known.served:
                found[camera.application, camera.client] = camera
    return list(found.values())


def merged_frame(told: Mapping[int, str], directory: Directory | None = None) -> str:
    """The frames of all as one; an application or a pipeline with several homes is shown once for
    each. One that may move is shown where the directory has it."""
    read = {number: json.loads(text) for number, text in told.items()}
    frames = {number: read_frame(each) for number, each in read.items() if each}
    if directory is not None:
        frames = {at: _at_home(each, at, directory) for at, each in frames.items()}
    if not frames:
        return "{}"
    at_s = max(each.at_s for each in frames.values())
    names = [each.name for frame in frames.values() for each in _rows(frame)]
    first = next(iter(frames.values()))
    return DashboardFrame(
        at_s=at_s,
        title=first.title,
        queued=sum(each.queued for each in frames.values()),
        under_way=sum(each.under_way for each in frames.values()),
        applications=tuple(
            _shown(each, number, names.count(each.name) > 1)
            for number, frame in frames.items()
            for each in frame.applications
        ),
        sub_clusters=tuple(one for each in frames.values() for one in each.sub_clusters),
        backends=tuple(
            _shifted(each, number, at_s - frame.at_s)
            for number, frame in frames.items()
            for each in frame.backends
        ),
        cameras=tuple(worst_first(_cameras(frames.values()))),
        cameras_seen=sum(each.cameras_seen for each in frames.values()),
        pipelines=tuple(
            _shown(each, number, names.count(each.name) > 1)
            for number, frame in frames.items()
            for each in frame.pipelines
        ),
    ).to_json()


def _rows(frame: DashboardFrame) -> Iterable[ApplicationFrame | PipelineFrame]:
    return (*frame.applications, *frame.pipelines)


def _at_home(frame: DashboardFrame, number: int, directory: Directory) -> DashboardFrame:
    homes = directory.homes_of
    return replace(
        frame,
        applications=tuple(each for each in frame.applications if number in homes(each.name)),
        pipelines=tuple(each for each in frame.pipelines if number in homes(each.name)),
    )


def _shown(row: R, number: int, several: bool) -> R:
    return replace(row, name=f"{row.name} ({number})") if several else row


def _shifted(backend: BackendFrame, number: int, by_s: float) -> BackendFrame:
    """A backend's batches on the clock of the oldest router."""
    batches = tuple(
        replace(
            each,
            start_s=each.start_s + by_s,
            end_s=each.end_s + by_s,
            deadline_s=each.deadline_s + by_s,
        )
        for each in backend.batches
    )
    return replace(backend, sub_cluster=number, batches=batches)
