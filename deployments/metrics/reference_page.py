"""Prints docs/metrics.md from the list of metric families.

`python -m fermata.deployments.metrics.reference_page > docs/metrics.md`
"""

from collections.abc import Iterable

from fermata.deployments.metrics.exposition import MetricFamily
from fermata.deployments.metrics.families import SECTIONS
from fermata.deployments.specs.outcomes import CLIENT_FAULTS, RefusalReason
from fermata.router.core.events import DropReason


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _reasons(listed: type) -> str:
    """Values of a class's constants, in order."""
    return _quoted(value for name, value in vars(listed).items() if name.isupper())


HEAD = """# Metrics

`http://CONTROL:8000/metrics` has every figure of the cluster in Prometheus' text format. The
router's counters and signals are there, and the reports that frontends and backends send it once a
second. Times are in seconds, sizes in bytes. All counters start anew when the router does
(`fermata_router_up_seconds`). This page is printed by
`python -m fermata.deployments.metrics.reference_page`.

The control plane is one process, so a scrape through a load balancer always meets the same
counters. Each process also exports its own counts through Ray's exporter on every node, beside
Ray's figures of that process. They are called `ray_fermata_frontend_*` and `ray_fermata_backend_*`
(`deployments/metrics/ray_exporter.py`).

Metrics cost a request no more than an entry in a list. The router adds up once a batch, and fills
buckets once a second. `python -m benchmarks.metrics_cost` measures the cost at 10,000 requests per
second.
"""
OUTCOMES = f"""
## Outcomes and reasons

`good`: the result was there before the SLO had passed. `ran-late`: it came after. Every other
outcome is the reason of a refusal.

| refused by | reasons | explained in |
| --- | --- | --- |
| router | {_reasons(DropReason)} | `router/core/events.py` |
| frontend | {_reasons(RefusalReason)} | `deployments/specs/outcomes.py` |

Clients cause {_quoted(CLIENT_FAULTS)} themselves. These count neither as good nor as bad.
"""
QUERIES = """
Share of good answers in the last five minutes, by application:

```promql
sum by (application) (rate(fermata_answered_total{outcome="good"}[5m]))
  / sum by (application)
      (rate(fermata_answered_total{outcome!~"cancelled|bad-input|not-found|rate"}[5m]))
```

Tenants above their rate limit, and tenants whose requests are refused because of overload:

```promql
topk(5, sum by (tenant) (rate(fermata_tenant_answered_total{outcome="rate"}[5m])))
topk(5, sum by (tenant) (rate(fermata_tenant_answered_total{outcome=~"shed|window|full"}[5m])))
```

99th percentile of latency:

```promql
histogram_quantile(0.99, sum by (application, le) (rate(fermata_latency_seconds_bucket[5m])))
```
"""


def page() -> str:
    """The whole file."""
    parts = [HEAD]
    for title, families in SECTIONS:
        parts.append(
            f"\n## {title}\n\n| metric | kind | labels | meaning |\n| --- | --- | --- | --- |"
        )
        parts += [_row(family) for family in families]
    return "\n".join(parts) + "\n" + OUTCOMES + QUERIES


def _row(family: MetricFamily) -> str:
    labels = _quoted(family.labels)
    return f"| `{family.full_name}` | {family.kind} | {labels} | {family.about} |"


if __name__ == "__main__":
    print(page(), end="")
