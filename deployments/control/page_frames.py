"""Frames for the page, made of the router's snapshots: now, a second ago and a minute ago."""

from collections.abc import Mapping
from typing import Any

from fermata.deployments.control.history import NOT_BAD, History
from fermata.deployments.frontend.requests.outcome_counts import LATE
from fermata.router.telemetry.dashboard_frames import (
    ApplicationFrame,
    BackendFrame,
    BatchFrame,
    DashboardFrame,
    SubClusterFrame,
)
from fermata.router.telemetry.histogram import quantile

SECOND = 1e9
Snapshot = Mapping[str, Any]
NOTHING: Mapping[str, Any] = {"requests": 0, "good": 0, "expected_right": 0.0, "rated": 0}


def live_frame(now: Snapshot, history: History, title: str) -> DashboardFrame:
    """What there is to see now; `now` is rated, and has `recent` batches where somebody looks."""
    minute = history.before(now) or {}
    second = history.last(now) or {}
    span_s = max(0.1, (now["up_ns"] - second.get("up_ns", 0)) / SECOND)
    at_s = now["up_ns"] / SECOND
    return DashboardFrame(
        at_s=at_s,
        title=title,
        queued=now["queued"],
        under_way=now["dispatched"],
        applications=tuple(
            _application(name, now, minute, second, span_s) for name in now["applications"]
        ),
        sub_clusters=_sub_clusters(now),
        backends=tuple(
            _backend(number, told, now, at_s) for number, told in now["backends"].items()
        ),
    )


def _application(
    name: str, now: Snapshot, minute: Snapshot, second: Snapshot, span_s: float
) -> ApplicationFrame:
    told = now["applications"][name]
    old = minute.get("applications", {}).get(name, NOTHING)
    last = second.get("applications", {}).get(name, NOTHING)
    bounds, counts = told["latency"]["bounds"], told["latency"]["counts"]
    if "latency" in old:
        counts = [a - b for a, b in zip(counts, old["latency"]["counts"], strict=True)]
    p50_ns, p99_ns = quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)
    rated = told["rated"] - old["rated"]
    served, batches = _served(now, minute, name)
    total = sum(served.values())
    ended = {LATE: told["late"], **told["dropped"]}
    return ApplicationFrame(
        name=name,
        slo_ms=told["slo_ns"] / 1e6,
        requests=told["requests"],
        good=told["good"],
        bad={reason: count for reason, count in ended.items() if reason not in NOT_BAD},
        rps=(told["requests"] - last["requests"]) / span_s,
        good_rps=(told["good"] - last["good"]) / span_s,
        bad_rate=now["bad_rates"][name],
        p50_ms=None if p50_ns is None else p50_ns / 1e6,
        p99_ms=None if p99_ns is None else p99_ns / 1e6,
        mean_batch=total / batches if batches else None,
        accuracy=(told["expected_right"] - old["expected_right"]) / rated if rated else None,
        streams=told["streams"]["seen"],
        worst_stream_bad_rate=told["streams"]["worst_bad_rate"],
        variants={each: count / total for each, count in served.items() if total},
    )


def _served(now: Snapshot, before: Snapshot, application: str) -> tuple[dict[str, int], int]:
    """Requests of the last minute by variant, and the batches that they were in."""
    old = {each["name"]: each["batch_sizes"] for each in before.get("variants", ())}
    served: dict[str, int] = {}
    batches = 0
    for told in now["variants"]:
        if told["application"] == application:
            known = old.get(told["name"], {})
            grown = {size: n - known.get(size, 0) for size, n in told["batch_sizes"].items()}
            served[told["name"]] = sum(int(size) * n for size, n in grown.items())
            batches += sum(grown.values())
    return served, batches


def _sub_clusters(now: Snapshot) -> tuple[SubClusterFrame, ...]:
    advice = now.get("scaling", {}).get("advice", [])
    return tuple(
        SubClusterFrame(
            backends=told["backends"],
            idle=now["idle_fractions"][rank],
            demand=told["demand"],
            advised=advice[rank]["target"] if rank < len(advice) else None,
            reason=advice[rank]["reason"] if rank < len(advice) else "",
        )
        for rank, told in enumerate(now["ranks"])
    )


def _backend(number: int, told: Snapshot, now: Snapshot, at_s: float) -> BackendFrame:
    state = "draining" if told["draining"] else "running" if told["running"] else "idle"
    own = now["processes"]["backends"].get(number, {})
    used = own.get("gpu_used", -1.0)
    return BackendFrame(
        name=str(number),
        sub_cluster=told["sub_cluster"],
        kind=told["kind"],
        state=state,
        models=tuple(told["models"]),
        gpu_used=used if used >= 0 else None,
        batches=tuple(
            BatchFrame(
                start_s=at_s - (each["ended_ns"] + each["run_ns"]) / SECOND,
                end_s=at_s - each["ended_ns"] / SECOND,
                variant=each["variant"],
                size=each["size"],
                deadline_s=at_s - each["deadline_ns"] / SECOND,
                late=each["late"],
            )
            for each in now.get("recent", {}).get(str(number), ())
        ),
    )
