"""Prints docs/metrics.md from the list of metric families.

`python -m fermata.deployments.metrics.reference_page > docs/metrics.md`
"""

from fermata.deployments.metrics.exposition import MetricFamily
from fermata.deployments.metrics.families import SECTIONS

HEAD = """# Metrics

`http://CONTROL:8000/metrics` has every figure of the cluster in Prometheus' text format: counters
and signals of the router, and what frontends and backends tell it once a second over their links.
Times are in seconds, sizes in bytes. Counters start anew when the router does
(`fermata_router_up_seconds`), all of them together. This page is printed by `python -m
fermata.deployments.metrics.reference_page`.

The control plane is one process, so a scrape through a load balancer always meets the same
counters. What each process counts by itself also goes out through Ray's exporter on every node,
beside Ray's own figures of that process: `ray_fermata_frontend_*` and `ray_fermata_backend_*`
(`deployments/metrics/ray_exporter.py`).

Nothing here is counted request by request beyond an entry in a list: the router adds up once a
batch, buckets are filled once a second. `python -m benchmarks.metrics_cost` measures what that
costs at 10,000 requests per second.
"""
OUTCOMES = """
## Outcomes and reasons

`good`: the result was there before the SLO had passed. `ran-late`: it came after. Every other
outcome names why there was no result: `late`, `window`, `shed`, `superseded`, `full`, `floor`,
`failed` and `backend-lost` are the router's (`fermata.router.core.events.DropReason`), `expired`,
`memory`, `too-many`, `no-router`, `draining`, `stalled`, `bad-input`, `not-found`, `rate` and
`denied` the frontend's (`fermata.deployments.frontend.requests.outcomes.RefusalReason`).
`cancelled`, `bad-input`,
`not-found` and `rate` are the client's own doing and count neither as good nor as bad.

Share of good answers of the last five minutes, by application:

```promql
sum by (application) (rate(fermata_answered_total{outcome="good"}[5m]))
  / sum by (application)
      (rate(fermata_answered_total{outcome!~"cancelled|bad-input|not-found|rate"}[5m]))
```

Who asks for more than they may, and whose requests are refused for the load that there is:

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
    return "\n".join(parts) + "\n" + OUTCOMES


def _row(family: MetricFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.full_name}` | {family.kind} | {labels} | {family.about} |"


if __name__ == "__main__":
    print(page(), end="")
