"""The router's snapshot as Prometheus text."""

from collections.abc import Iterator, Mapping
from typing import Any

Samples = list[tuple[dict[str, Any], float]]
SECOND = 1e9


def prometheus_text(snapshot: Mapping[str, Any]) -> str:
    """Every figure with its help line, in the text exposition format."""
    lines: list[str] = []
    for name, kind, about, samples in _families(snapshot):
        lines += [f"# HELP fermata_{name} {about}", f"# TYPE fermata_{name} {kind}"]
        for labels, value in samples:
            shown = ",".join(f'{key}="{text}"' for key, text in labels.items())
            lines.append(
                f"fermata_{name}{{{shown}}} {value}" if shown else f"fermata_{name} {value}"
            )
    return "\n".join(lines) + "\n"


def _families(
    snapshot: Mapping[str, Any],
) -> Iterator[tuple[str, str, str, Samples]]:
    applications = snapshot["applications"].items()
    yield (
        "requests_total",
        "counter",
        "Requests that reached the router.",
        [({"application": name}, each["requests"]) for name, each in applications],
    )
    yield (
        "good_total",
        "counter",
        "Answered in time.",
        [({"application": name}, each["good"]) for name, each in applications],
    )
    bad: Samples = [
        ({"application": name, "reason": reason}, count)
        for name, each in applications
        for reason, count in {"ran-late": each["late"], **each["dropped"]}.items()
    ]
    yield "bad_total", "counter", "Not answered in time, by reason.", bad
    yield (
        "queued",
        "gauge",
        "Requests that wait for a decision.",
        [({}, snapshot["queued"])],
    )
    yield (
        "timer_late_seconds",
        "gauge",
        "How late the router's timer fires.",
        [({"quantile": name}, value / SECOND) for name, value in snapshot["timer_late_ns"].items()],
    )
    yield "lead_seconds", "gauge", "Dispatch and fetch.", [({}, snapshot["lead_ns"] / SECOND)]
    for key, about in (
        ("backends", "Backends up."),
        ("backend_up_ns", "Backend time in nanoseconds."),
        ("backend_busy_ns", "Backend time spent on batches, in nanoseconds."),
        ("demand", "Backends needed with full batches."),
        ("ripe_wait_ns", "Mean wait of ripe bids in nanoseconds."),
    ):
        kind = "counter" if key in ("backend_up_ns", "backend_busy_ns") else "gauge"
        samples: Samples = [
            ({"subcluster": index}, rank[key]) for index, rank in enumerate(snapshot["ranks"])
        ]
        yield key, kind, about, samples
