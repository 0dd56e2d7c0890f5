"""What a live router tells about itself; metrics, autoscaler and `fermata top` read it."""

from typing import Any

from router.core.units import NEVER
from router.live import LiveRouter

LATENESS = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


def snapshot(live: LiveRouter) -> dict[str, Any]:
    """Every counter and signal as plain values; differences over time are the reader's."""
    engine, now_ns = live.engine, live.clock()
    for rank in engine.ranks:
        rank.settle(now_ns)
    wake_ns = engine.wake_at_ns()
    return {
        "epoch": live.epoch,
        "stale": live.stale,
        "up_ns": now_ns - live.started_at_ns,
        "frontends": sorted(live.frontends),
        "queued": len(engine.outbox.queued),
        "dispatched": len(live.dispatched),
        "unknown_application": live.unknown,
        "stray_messages": live.strays,
        "next_wake_in_ns": None if wake_ns == NEVER else wake_ns - now_ns,
        "lead_ns": engine.ranks[0].lead_start_ns,
        "link_ns": live.lead.link_ns,
        "timer_late_ns": {name: live.lead.late.quantile(share) for name, share in LATENESS},
        "applications": _applications(live),
        "variants": _variants(live),
        "busy_ns": dict(zip(live.built.applications, live.busy_ns, strict=True)),
        "target": live.placement.target,
        "placement": live.placement.describe(live.backends),
        "backends": {number: _backend(live, number) for number in sorted(live.backends)},
        "ranks": [
            {
                "backends": rank.signals.backends,
                "backend_up_ns": rank.signals.uptime_ns,
                "backend_busy_ns": rank.signals.busy_ns,
                "demand": rank.signals.demand,
                "least": rank.signals.least,
                "load": rank.signals.load(),
                "grants": rank.signals.grants,
                "ripe_wait_ns": int(rank.signals.wait_ns),
            }
            for rank in engine.ranks
        ],
    }


def _applications(live: LiveRouter) -> dict[str, Any]:
    counts = live.engine.ledger.applications
    return {
        name: {
            "requests": live.received[number],
            "good": counts[number].good,
            "late": counts[number].late,
            "dropped": dict(counts[number].drops),
        }
        for name, number in live.built.applications.items()
    }


def _variants(live: LiveRouter) -> list[dict[str, Any]]:
    costs = live.engine.costs
    owners = [each.name for each in live.config.applications for _ in each.variants]
    return [
        {
            "application": owners[number],
            "name": name,
            "margin_factor": costs.of(number).factor,
            "batch_sizes": dict(sorted(live.sizes[number].items())),
        }
        for number, name in enumerate(live.built.variants)
    ]


def _backend(live: LiveRouter, number: int) -> dict[str, Any]:
    state = live.engine.backend_rank[number].backends[number]
    return {
        "running": state.running is not None,
        "queued": state.queued is not None,
        "draining": state.draining,
        "factor": live.engine.costs.backend_factor.get(number, 1.0),
    }
