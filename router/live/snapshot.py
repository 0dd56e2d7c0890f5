"""Takes the snapshot of a live router."""

import os

from fermata.foundation.units import NEVER
from fermata.router.core.rank import RankThread
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.pool_signals import read_pools
from fermata.router.telemetry.snapshot import (
    ApplicationSnapshot,
    BackendProcessSnapshot,
    BackendSnapshot,
    FrontendSnapshot,
    PolicySnapshot,
    PoolSnapshot,
    ProcessesSnapshot,
    RouterSnapshot,
    StreamsSnapshot,
    SubClusterSnapshot,
    VariantSnapshot,
)

LATENESS = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


def take_snapshot(
    live: LiveRouter,
    standby: bool = False,
    tasks: int = 0,
    links_refused: int = 0,
    with_batches: bool = False,
) -> RouterSnapshot:
    """Read every counter and signal; `with_batches` also lists the last ones of each backend."""
    engine, now_ns = live.engine, live.clock()
    for rank in engine.ranks:
        rank.settle(now_ns)
    wake_ns = engine.wake_at_ns()
    recent = None
    if with_batches:
        recent = live.meters.recent_batches(now_ns, 0, live.built.variants)
    return RouterSnapshot(
        term=live.term,
        stale=live.stale,
        up_ns=now_ns - live.started_at_ns,
        frontends=sorted(live.fleet.frontends),
        queued=len(engine.outbox.queued),
        dispatched=len(live.fleet.in_flight.rids),
        unknown_application=live.unknown,
        stray_messages=live.strays,
        hung_backends=sorted(set(live.supervisor.given_up)),
        lost_backends=[f"{number}: {reason}" for number, reason in live.supervisor.losses],
        retired_backends=dict(live.supervisor.retired),
        ejected_backends=dict(live.supervisor.outliers.ejected),
        next_wake_in_ns=None if wake_ns == NEVER else wake_ns - now_ns,
        lead_ns=live.lead.lead_ns,
        link_ns=live.lead.link_ns,
        timer_late_ns={name: live.lead.late.quantile(share) for name, share in LATENESS},
        timer_late=live.meters.timer_late.snapshot(),
        link_round_trip=live.meters.round_trip.snapshot(),
        loads={name: list(counts) for name, counts in sorted(live.meters.loads.items())},
        failures=live.meters.failures,
        applications=_applications(live, now_ns),
        tenants={name: dict(told) for name, told in sorted(live.meters.tenants.items())},
        absent=dict(live.fleet.availability.unavailable),
        policies=_policies(live),
        variants=_variants(live),
        busy_ns={
            name: live.meters.applications[number].busy_ns
            for name, number in live.built.applications.items()
        },
        target=live.fleet.placement.target,
        wanted=list(live.fleet.placement.wanted),
        placement=live.fleet.placement.snapshot(live.fleet.backends),
        processes=_processes(live),
        backends={number: _backend(live, number) for number in sorted(live.fleet.backends)},
        ranks=_sub_clusters(live, now_ns),
        pid=os.getpid(),
        standby=standby,
        tasks=tasks,
        links_refused=links_refused,
        recent=recent,
    )


def _applications(live: LiveRouter, now_ns: int) -> dict[str, ApplicationSnapshot]:
    found: dict[str, ApplicationSnapshot] = {}
    slo_ns = [each.slo_ns for each in live.config.applications]
    for name, number in live.built.applications.items():
        counts = live.engine.ledger.applications[number]
        meter = live.meters.applications[number]
        streams, worst, worst_bad_rate = meter.streams.worst(now_ns)
        found[name] = ApplicationSnapshot(
            slo_ns=slo_ns[number],
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
        )
    return found


def _policies(live: LiveRouter) -> dict[str, PolicySnapshot]:
    return {
        name: PolicySnapshot(
            figures=live.engine.sources[number].figures(),
            trouble=live.trouble.get(number, ""),
        )
        for name, number in live.built.applications.items()
    }


def _variants(live: LiveRouter) -> list[VariantSnapshot]:
    costs = live.engine.costs
    owners = [each.name for each in live.config.applications for _ in each.variants]
    return [
        VariantSnapshot(
            application=owners[number],
            name=name,
            accuracy=live.meters.accuracy[number],
            margin_factor=costs.of(number).factor,
            batch_sizes=dict(sorted(live.meters.sizes[number].items())),
        )
        for number, name in enumerate(live.built.variants)
    ]


def _processes(live: LiveRouter) -> ProcessesSnapshot:
    frontends, backends = live.meters.frontends, live.meters.backends
    return ProcessesSnapshot(
        frontends={
            number: FrontendSnapshot(
                node=live.fleet.frontends[number].peer.node,
                open=stats.open,
                payload_bytes=stats.payload_bytes,
                memory_bytes=stats.memory_bytes,
                loop_late_ns=stats.loop_late_ns,
                tasks=stats.tasks,
            )
            for number, stats in sorted(frontends.items())
            if number in live.fleet.frontends
        },
        backends={
            number: BackendProcessSnapshot(
                node=live.fleet.backends[number].link.peer.node,
                models_bytes=stats.models_bytes,
                memory_bytes=stats.memory_bytes,
                gpu_memory_bytes=stats.gpu_memory_bytes,
                gpu_memory_bytes_max=stats.gpu_memory_bytes_max,
                gpu_used=stats.gpu_used,
            )
            for number, stats in sorted(backends.items())
            if number in live.fleet.backends
        },
    )


def _sub_clusters(live: LiveRouter, now_ns: int) -> list[SubClusterSnapshot]:
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
            pools=_pools(live, rank, now_ns),
        )
        for rank in live.engine.ranks
    ]


def _pools(live: LiveRouter, rank: RankThread, now_ns: int) -> list[PoolSnapshot]:
    names = list(live.built.applications)
    return [
        PoolSnapshot(
            applications=[names[number] for number in each.applications],
            share=each.share,
            backends=each.backends,
            backend_up_ns=each.uptime_ns,
            backend_busy_ns=each.busy_ns,
            untold_busy_ns=each.untold_ns,
            least=each.backends_min,
        )
        for each in read_pools(live.engine, live.built.ownership, rank, now_ns)
    ]


def _backend(live: LiveRouter, number: int) -> BackendSnapshot:
    rank = live.engine.backend_rank[number]
    state = rank.backends[number]
    kinds = {kind: name for name, kind in live.fleet.accelerator_types.numbers.items()}
    return BackendSnapshot(
        sub_cluster=live.engine.ranks.index(rank),
        kind=kinds.get(state.kind, ""),
        models=sorted(live.fleet.availability.held.get(number, ())),
        running=state.running is not None,
        queued=state.queued is not None,
        draining=state.draining,
        factor=live.engine.costs.backend_factor.get(number, 1.0),
    )
