"""Takes the snapshot of a live router."""

import os
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, TypeVar

from fermata.foundation.units import NEVER
from fermata.router.assembly import policy_of
from fermata.router.core.engine import Engine
from fermata.router.live.clients.cameras import cameras
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.pool_signals import read_pools
from fermata.router.telemetry.meters import RecentBatch
from fermata.router.telemetry.snapshot import (
    ApplicationSnapshot,
    BackendProcessSnapshot,
    BackendSnapshot,
    CameraSnapshot,
    FrontendSnapshot,
    LookSnapshot,
    PipelineSnapshot,
    PlacementSnapshot,
    PolicySnapshot,
    PoolSnapshot,
    ProcessesSnapshot,
    RouterSnapshot,
    SpareSnapshot,
    StageSnapshot,
    StreamsSnapshot,
    SubClusterSnapshot,
    VariantSnapshot,
)

LATENESS = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
APPLICATIONS, BACKENDS = 8, 64
"""So many of each are read before others have their turn on the router's loop."""
CLASSES = 20
"""Classes whose frequencies are told: the most frequent ones."""
Key = TypeVar("Key")
Read = TypeVar("Read")
Slices = Generator[None, None, Read]
"""Gives way between two slices, and returns what it has read."""


def take_snapshot(
    live: LiveRouter,
    standby: bool = False,
    tasks: int = 0,
    links_refused: int = 0,
    with_batches: bool = False,
) -> RouterSnapshot:
    """Read every counter and signal; `with_batches` also lists the last ones of each backend."""
    slices = snapshot_in_slices(live, standby, tasks, links_refused, with_batches)
    while True:
        try:
            next(slices)
        except StopIteration as read:
            taken: RouterSnapshot = read.value
            return taken


def snapshot_in_slices(
    live: LiveRouter,
    standby: bool = False,
    tasks: int = 0,
    links_refused: int = 0,
    with_batches: bool = False,
) -> Slices[RouterSnapshot]:
    """The same in slices: with many models and backends the whole would hold up the loop.

    Whoever comes or goes between two slices may be in one part and not in another.
    """
    engine, now_ns = live.engine, live.clock()
    up_ns, sub_clusters = now_ns - live.started_at_ns, _sub_clusters(live, now_ns)
    yield
    parts = yield from _parts(live, now_ns, with_batches)
    counts = engine.ledger.applications
    return RouterSnapshot(
        term=live.term,
        stale=live.stale,
        up_ns=up_ns,
        frontends=sorted(live.fleet.frontends),
        queued=len(engine.outbox.queued),
        dispatched=len(live.fleet.in_flight.rids),
        unknown_application=live.submissions.unknown,
        stray_messages=live.strays,
        hung_backends=sorted(set(live.supervisor.given_up)),
        lost_backends=[f"{number}: {reason}" for number, reason in live.supervisor.losses],
        retired_backends=dict(live.supervisor.retired),
        ejected_backends=dict(live.supervisor.outliers.ejected),
        next_wake_in_ns=_wake_in_ns(engine, now_ns),
        lead_ns=live.lead.lead_ns,
        link_ns=live.lead.link_ns,
        timer_late_ns={name: live.lead.late.quantile(share) for name, share in LATENESS},
        timer_late=live.meters.timer_late.snapshot(),
        link_round_trip=live.meters.round_trip.snapshot(),
        loads={name: list(counts) for name, counts in sorted(live.meters.loads.items())},
        failures=live.meters.failures,
        non_finite=dict(sorted(live.meters.non_finite.items())),
        spares=_spares(live),
        applications=parts.applications,
        tenants={name: dict(told) for name, told in sorted(live.meters.tenants.items())},
        absent=dict(live.fleet.availability.unavailable),
        policies=parts.policies,
        variants=parts.variants,
        busy_ns={name: counts[number].busy_ns for name, number in live.built.applications.items()},
        target=live.fleet.placement.target,
        wanted=list(live.fleet.placement.wanted),
        placement=parts.placement,
        processes=parts.processes,
        backends=parts.backends,
        ranks=sub_clusters,
        pid=os.getpid(),
        standby=standby,
        tasks=tasks,
        links_refused=links_refused,
        recent=parts.recent,
        cameras=parts.cameras,
        pipelines=_pipelines(live),
    )


def _pipelines(live: LiveRouter) -> dict[str, PipelineSnapshot]:
    queries = live.queries
    if queries is None:
        return {}
    names = list(live.built.applications)
    return {
        name: PipelineSnapshot(
            slo_ns=flow.pipeline.slo_ns,
            answered=dict(live.meters.queries[name]),
            door_share=flow.share,
            stages=[
                StageSnapshot(
                    *(names[stage.application], open_, times.results, times.took_ns),
                    int(times.busy_ns),
                )
                for stage, open_, times in zip(
                    flow.pipeline.stages, flow.open, queries.ran[number], strict=True
                )
            ],
            wasted_ns=int(queries.wasted_ns[number]),
            ended=dict(queries.outcomes[number]),
        )
        for (name, number), flow in zip(queries.numbers.items(), queries.table.flows, strict=True)
    }


class _Parts(NamedTuple):
    """Parts of a snapshot that grow with models and backends."""

    applications: dict[str, ApplicationSnapshot]
    policies: dict[str, PolicySnapshot]
    variants: list[VariantSnapshot]
    backends: dict[int, BackendSnapshot]
    processes: ProcessesSnapshot
    placement: PlacementSnapshot
    cameras: list[CameraSnapshot]
    recent: dict[str, list[RecentBatch]] | None


def _parts(live: LiveRouter, now_ns: int, with_batches: bool) -> Slices[_Parts]:
    numbers = live.built.applications
    applications = yield from _sliced(
        numbers, APPLICATIONS, lambda name: _application(live, numbers[name], now_ns)
    )
    policies = yield from _sliced(numbers, APPLICATIONS, lambda name: _policy(live, numbers[name]))
    variants = yield from _variants(live)
    backends = yield from _sliced(
        sorted(live.fleet.backends), BACKENDS, lambda number: _backend(live, number)
    )
    processes = yield from _processes(live)
    placement = live.fleet.placement.snapshot(live.fleet.backends)
    yield
    listed = cameras(live.clients, live.meters)
    yield
    recent = live.meters.recent_batches(now_ns, 0, live.built.variants) if with_batches else None
    yield
    return _Parts(applications, policies, variants, backends, processes, placement, listed, recent)


def _wake_in_ns(engine: Engine, now_ns: int) -> int | None:
    wake_ns = engine.wake_at_ns()
    return None if wake_ns == NEVER else wake_ns - now_ns


def _sliced(
    keys: Iterable[Key], size: int, read: Callable[[Key], Read | None]
) -> Slices[dict[Key, Read]]:
    """Read each of them, some at a time; those that have gone meanwhile are left out."""
    found: dict[Key, Read] = {}
    for place, key in enumerate(keys, 1):
        one = read(key)
        if one is not None:
            found[key] = one
        if place % size == 0:
            yield
    return found


def _application(live: LiveRouter, number: int, now_ns: int) -> ApplicationSnapshot:
    counts = live.engine.ledger.applications[number]
    parts = counts.parts
    meter = live.meters.applications[number]
    streams, worst, worst_bad_rate = meter.streams.worst(now_ns)
    return ApplicationSnapshot(
        slo_ns=live.config.applications[number].slo_ns,
        lead_ns=live.engine.leads[number].ns(1),
        requests=meter.received,
        good=counts.good,
        late=counts.late,
        dropped=dict(counts.drops),
        answered=dict(meter.answered),
        expected_right=meter.expected_right,
        rated=meter.rated,
        latency=meter.latency.snapshot(),
        queue_delay=meter.queue_delay.snapshot(),
        slack=meter.slack.snapshot(),
        streams=StreamsSnapshot(streams, worst, worst_bad_rate),
        policy=live.engine.sources[number].describe(),
        looks=_looks(live, number),
        parts_good=0 if parts is None else parts.good,
        parts_bad=0 if parts is None else parts.bad,
    )


def _looks(live: LiveRouter, number: int) -> LookSnapshot | None:
    estimator = live.built.estimators[number]
    if estimator is None:
        return None
    truths, learnt = estimator.truths, estimator.frequencies
    shares = learnt.settled.tolist()
    most = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)[:CLASSES]
    return LookSnapshot(
        looked=estimator.looked,
        short_circuits=live.meters.applications[number].short_circuits,
        alarms=learnt.alarms,
        truths=truths.count,
        truths_refused=truths.refused,
        judged=truths.looks_told,
        right=truths.looks_right,
        frequencies={each: shares[each] for each in sorted(most)},
    )


def _policy(live: LiveRouter, number: int) -> PolicySnapshot:
    source = live.engine.sources[number]
    name, _ = policy_of(live.config, live.config.applications[number])
    trouble = live.computations.trouble.get(number, "")
    return PolicySnapshot(source.figures(), trouble, source.promise(number), name)


def _variants(live: LiveRouter) -> Slices[list[VariantSnapshot]]:
    costs, names = live.engine.costs, live.built.variants
    owners = [each.name for each in live.config.applications for _ in each.variants]

    def read(number: int) -> VariantSnapshot:
        return VariantSnapshot(
            application=owners[number],
            name=names[number],
            accuracy=live.meters.accuracy[number],
            margin_factor=costs.of(number).factor,
            batch_sizes=dict(sorted(live.meters.sizes[number].items())),
        )

    found = yield from _sliced(range(len(names)), BACKENDS, read)
    return list(found.values())


def _processes(live: LiveRouter) -> Slices[ProcessesSnapshot]:
    meters, fleet = live.meters, live.fleet

    def frontend(number: int) -> FrontendSnapshot | None:
        stats, link = meters.frontends.get(number), fleet.frontends.get(number)
        if stats is None or link is None:
            return None
        return FrontendSnapshot(
            node=link.peer.node,
            open=stats.open,
            payload_bytes=stats.payload_bytes,
            memory_bytes=stats.memory_bytes,
            loop_late_ns=stats.loop_late_ns,
            tasks=stats.tasks,
        )

    def backend(number: int) -> BackendProcessSnapshot | None:
        stats, peer = meters.backends.get(number), fleet.backends.get(number)
        if stats is None or peer is None:
            return None
        return BackendProcessSnapshot(
            node=peer.link.peer.node,
            models_bytes=stats.models_bytes,
            memory_bytes=stats.memory_bytes,
            gpu_memory_bytes=stats.gpu_memory_bytes,
            gpu_memory_bytes_max=stats.gpu_memory_bytes_max,
            gpu_used=stats.gpu_used,
        )

    frontends = yield from _sliced(sorted(meters.frontends), BACKENDS, frontend)
    backends = yield from _sliced(sorted(meters.backends), BACKENDS, backend)
    return ProcessesSnapshot(frontends, backends)


def _spares(live: LiveRouter) -> dict[int, SpareSnapshot]:
    return {
        number: SpareSnapshot(each.first, each.kind, sorted(each.held))
        for number, each in sorted(live.fleet.spares.waiting.items())
    }


def _sub_clusters(live: LiveRouter, now_ns: int) -> list[SubClusterSnapshot]:
    for rank in live.engine.ranks:
        rank.settle(now_ns)
    return [
        SubClusterSnapshot(
            backends=rank.signals.backends,
            backend_up_ns=rank.signals.uptime_ns,
            backend_busy_ns=rank.signals.busy_ns,
            demand=rank.signals.demand + rank.pool.missing(now_ns),
            least=rank.signals.backends_min + rank.pool.missing(now_ns),
            load=rank.signals.load(),
            grants=rank.signals.grants,
            ripe_wait_ns=int(rank.signals.wait_ns),
            pools=pools,
        )
        for rank, pools in zip(live.engine.ranks, _pools(live, now_ns), strict=True)
    ]


def _pools(live: LiveRouter, now_ns: int) -> list[list[PoolSnapshot]]:
    names = list(live.built.applications)
    return [
        [
            PoolSnapshot(
                applications=[names[number] for number in each.applications],
                untold=[names[number] for number in each.untold],
                share=each.share,
                backends=each.backends,
                backend_up_ns=each.uptime_ns,
                backend_busy_ns=each.busy_ns,
                least=each.backends_min,
            )
            for each in pools
        ]
        for pools in read_pools(live.engine, live.built.ownership, now_ns)
    ]


def _backend(live: LiveRouter, number: int) -> BackendSnapshot | None:
    rank = live.engine.backend_rank.get(number)
    if rank is None:
        return None
    state = rank.backends[number]
    return BackendSnapshot(
        sub_cluster=live.engine.ranks.index(rank),
        kind=live.fleet.accelerator_types.name_of(state.kind),
        models=live.fleet.availability.names(number),
        running=state.running is not None,
        queued=bool(state.queued),
        draining=state.draining,
        factor=live.engine.costs.backend_factor.get(number, 1.0),
        runs_in=live.fleet.backends[number].runs_in,
    )
