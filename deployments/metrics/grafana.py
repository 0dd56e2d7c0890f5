"""The Grafana dashboard.

`python -m fermata.deployments.metrics.grafana` prints k8s/monitoring/dashboard.json.
"""

import json
from dataclasses import dataclass

from fermata.deployments.specs.outcomes import CLIENT_FAULTS
from fermata.foundation.json_types import JsonObject

WIDTH, HEIGHT, COLUMNS = 8, 7, 3
SOURCE = {"type": "prometheus", "uid": "${source}"}
SPAN = "$__rate_interval"
OF = 'application=~"$application"'
OWN = "|".join(CLIENT_FAULTS)
"""Outcomes that clients cause themselves, as a pattern."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """(expression, legend) of each line."""
    about: str = ""


def _quantile(share: float, name: str, by: str = "application", where: str = OF) -> str:
    labels = f"{by}, le" if by else "le"
    inner = f"sum by ({labels}) (rate(fermata_{name}_bucket{{{where}}}[{SPAN}]))"
    return f"histogram_quantile({share}, {inner})"


def _rate(name: str, by: str, where: str = OF) -> str:
    return f"sum by ({by}) (rate(fermata_{name}{{{where}}}[{SPAN}]))"


PANELS = (
    Panel(
        "Answers in time",
        "percentunit",
        (
            (
                _rate("answered_total", "application", f'{OF}, outcome="good"')
                + " / "
                + _rate("answered_total", "application", f'{OF}, outcome!~"{OWN}"'),
                "{{application}}",
            ),
        ),
        "Share of all answers, without those that clients cause themselves.",
    ),
    Panel(
        "Requests per second",
        "reqps",
        ((_rate("requests_total", "application"), "{{application}}"),),
    ),
    Panel(
        "Bad answers per second",
        "reqps",
        (
            (
                _rate("answered_total", "application, outcome", f'{OF}, outcome!~"good|{OWN}"'),
                "{{application}}: {{outcome}}",
            ),
        ),
    ),
    Panel(
        "Refused, by tenant",
        "reqps",
        (
            (
                _rate(
                    "tenant_answered_total",
                    "tenant, outcome",
                    'outcome!~"good|ran-late|cancelled"',
                ),
                "{{tenant}}: {{outcome}}",
            ),
        ),
        "Noisy tenants: `rate` is above the rate limit, `shed` above the fair share.",
    ),
    Panel(
        "Latency and SLO",
        "s",
        (
            (_quantile(0.99, "latency_seconds"), "{{application}} p99"),
            (_quantile(0.5, "latency_seconds"), "{{application}} p50"),
            (f"fermata_slo_seconds{{{OF}}}", "{{application}} SLO"),
        ),
    ),
    Panel(
        "Wait for a batch's start",
        "s",
        (
            (_quantile(0.99, "queue_delay_seconds"), "{{application}} p99"),
            (_quantile(0.5, "queue_delay_seconds"), "{{application}} p50"),
        ),
        "Batches are held on purpose: a long wait is bad only if no slack is left.",
    ),
    Panel(
        "Slack left at the end of a batch",
        "s",
        (
            (_quantile(0.01, "slack_seconds"), "{{application}} p1"),
            (_quantile(0.5, "slack_seconds"), "{{application}} p50"),
        ),
        "Below zero: too late.",
    ),
    Panel(
        "Worst stream",
        "percentunit",
        ((f"fermata_worst_stream_bad_rate{{{OF}}}", "{{application}}"),),
        "Highest bad rate of any stream.",
    ),
    Panel(
        "Cameras",
        "short",
        ((f"fermata_cameras{{{OF}}}", "{{application}}: {{state}}"),),
        "Clients that report their network: served, or the reason of being left out.",
    ),
    Panel(
        "Uplinks of cameras",
        "bps",
        ((f"fermata_camera_bandwidth_bps{{{OF}}}", "{{camera}}"),),
    ),
    Panel(
        "Sides of frames, asked and sent",
        "short",
        (
            (f"fermata_camera_size_asked{{{OF}}}", "{{camera}} asked"),
            (f"fermata_camera_size_sent{{{OF}}}", "{{camera}} sent"),
        ),
    ),
    Panel(
        "Missed frames of cameras",
        "percentunit",
        ((f"fermata_camera_missed_ratio{{{OF}}}", "{{camera}}"),),
    ),
    Panel(
        "Mean batch",
        "short",
        (
            (
                _rate("batch_size_sum", "application, variant")
                + " / "
                + _rate("batch_size_count", "application, variant"),
                "{{variant}}",
            ),
        ),
    ),
    Panel(
        "Variants",
        "reqps",
        ((_rate("variant_requests_total", "application, variant"), "{{variant}}"),),
    ),
    Panel(
        "Expected accuracy",
        "percentunit",
        (
            (
                _rate("expected_right_total", "application")
                + " / "
                + _rate("rated_total", "application"),
                "{{application}}",
            ),
        ),
    ),
    Panel(
        "Promises",
        "percentunit",
        (
            (f"fermata_promised_accuracy{{{OF}}}", "{{application}}: accuracy promised"),
            (f"fermata_observed_accuracy{{{OF}}}", "{{application}}: accuracy observed"),
            (f"fermata_promised_violation{{{OF}}}", "{{application}}: violations promised"),
            (f"fermata_observed_violation{{{OF}}}", "{{application}}: violations observed"),
        ),
        "The policy's own expectation beside what was observed, over the last minute.",
    ),
    Panel(
        "Idle backends",
        "percentunit",
        (("fermata_idle_fraction", "sub-cluster {{subcluster}}"),),
    ),
    Panel(
        "Backends",
        "short",
        (
            ("fermata_backends", "up, sub-cluster {{subcluster}}"),
            (
                "fermata_advised_backends or fermata_backends",
                "advised, sub-cluster {{subcluster}}",
            ),
            ("fermata_demand", "needed with full batches, sub-cluster {{subcluster}}"),
        ),
    ),
    Panel(
        "Requests in flight",
        "short",
        (
            ("fermata_queued", "queued"),
            ("fermata_dispatched", "at backends"),
            ("fermata_frontend_open", "open at frontend {{frontend}}"),
        ),
    ),
    Panel(
        "Margins",
        "short",
        (
            (f"fermata_margin_factor{{{OF}}}", "{{variant}}"),
            ("fermata_backend_factor", "backend {{backend}}"),
        ),
        "Planned over profiled run time; a backend's over its peers'.",
    ),
    Panel(
        "Delays of the router",
        "s",
        (
            (_quantile(0.99, "timer_late_seconds", "", ""), "timer late, p99"),
            (_quantile(0.99, "link_round_trip_seconds", "", ""), "link, p99"),
            ("fermata_lead_seconds", "lead"),
            ("fermata_frontend_loop_late_seconds", "loop of frontend {{frontend}}"),
        ),
    ),
    Panel(
        "Memory",
        "bytes",
        (
            ("fermata_process_memory_bytes", "{{role}} {{number}}"),
            ("fermata_backend_models_bytes", "models of backend {{backend}}"),
        ),
    ),
    Panel(
        "GPU utilization",
        "percentunit",
        (("fermata_gpu_used or 0 * fermata_backend_running", "backend {{backend}}"),),
        "From the driver; 0 without a GPU.",
    ),
    Panel(
        "Loads and failures",
        "short",
        (
            (f"increase(fermata_model_loads_total[{SPAN}])", "loads of {{variant}}"),
            (f"increase(fermata_failures_total[{SPAN}])", "failures"),
        ),
    ),
)


def _drawn(number: int, panel: Panel) -> JsonObject:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": None}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": text,
                "legendFormat": name,
            }
            for place, (text, name) in enumerate(panel.queries)
        ],
    }


def dashboard() -> JsonObject:
    """The whole document."""
    variables: list[JsonObject] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "application",
            "type": "query",
            "datasource": SOURCE,
            "query": "label_values(fermata_requests_total, application)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": "fermata",
        "title": "Fermata",
        "tags": ["fermata"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": variables},
        "panels": [_drawn(number, panel) for number, panel in enumerate(PANELS)],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
