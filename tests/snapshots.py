"""Snapshots for tests: a live router's as a plain dictionary, and made-up ones."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fermata.deployments.control.page.history import History
from fermata.deployments.specs.status import DeploymentStatus
from fermata.router.live.driver import LiveRouter
from fermata.router.live.snapshot import take_snapshot
from fermata.router.telemetry.histogram import HistogramSnapshot
from fermata.router.telemetry.snapshot import (
    ApplicationSnapshot,
    PlacementSnapshot,
    ProcessesSnapshot,
    RouterSnapshot,
    StreamsSnapshot,
    SubClusterSnapshot,
)

EMPTY = HistogramSnapshot((), (0,), 0)


def snapshot(live: LiveRouter) -> dict[str, Any]:
    """The whole of it, for tests that look at single figures."""
    return asdict(take_snapshot(live))


def rated(live: LiveRouter, history: History, with_batches: bool = False) -> DeploymentStatus:
    """The status that the control plane makes of it."""
    taken = take_snapshot(live, with_batches=with_batches)
    return DeploymentStatus(
        taken,
        history.bad_rates(taken),
        history.idle_fractions(taken),
        promises=history.promises(taken),
    )


def application(**counts: Any) -> ApplicationSnapshot:
    blank = ApplicationSnapshot(
        slo_ns=0,
        lead_ns=0,
        requests=0,
        good=0,
        late=0,
        dropped={},
        answered={},
        expected_right=0.0,
        rated=0,
        latency=EMPTY,
        queue_delay=EMPTY,
        slack=EMPTY,
        streams=StreamsSnapshot(0, 0, 0.0),
        policy={},
    )
    return replace(blank, **counts)


def sub_cluster(**figures: Any) -> SubClusterSnapshot:
    blank = SubClusterSnapshot(0, 0, 0, 0.0, 0.0, 0.0, 0, 0)
    return replace(blank, **figures)


def router(applications: Mapping[str, ApplicationSnapshot], **more: Any) -> RouterSnapshot:
    """A router of term 1 with nothing else to show, unless given."""
    blank = RouterSnapshot(
        term=1,
        stale="",
        up_ns=0,
        frontends=[],
        queued=0,
        dispatched=0,
        unknown_application=0,
        stray_messages=0,
        hung_backends=[],
        lost_backends=[],
        retired_backends={},
        ejected_backends={},
        next_wake_in_ns=None,
        lead_ns=0,
        link_ns=0,
        timer_late_ns={},
        timer_late=EMPTY,
        link_round_trip=EMPTY,
        loads={},
        failures=0,
        applications=applications,
        tenants={},
        absent={},
        policies={},
        variants=[],
        busy_ns={},
        target=None,
        wanted=[],
        placement=PlacementSnapshot({}, {}, []),
        processes=ProcessesSnapshot({}, {}),
        backends={},
        ranks=[],
    )
    return replace(blank, **more)
