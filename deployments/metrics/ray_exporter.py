"""Each process' own figures through Ray's metrics agent, beside Ray's own of the same process.

Ray prefixes names with `ray_`, and adds the node, the worker and the component. What is
cluster-wide stands on the control plane's page alone (`fermata.deployments.metrics.families`).
"""

from typing import Any

from ray.util.metrics import Counter, Gauge

from fermata.router.links.messages import BackendStats, FrontendStats

SECOND = 1e9


class FrontendExport:
    """What one frontend tells, once a second."""

    def __init__(self, number: int) -> None:
        self.tags = {"frontend": str(number)}
        keys = ("frontend", "application", "outcome")
        self.answered: Any = Counter(
            "fermata_frontend_answered", "Requests that this frontend has answered.", keys
        )
        self.latency: Any = Counter(
            "fermata_frontend_latency_seconds", "Latencies together.", keys[:2]
        )
        self.open: Any = Gauge(
            "fermata_frontend_open", "Requests without an answer here.", keys[:1]
        )
        self.payload: Any = Gauge(
            "fermata_frontend_payload_bytes", "Inputs of requests under way.", keys[:1]
        )
        self.late: Any = Gauge(
            "fermata_frontend_loop_late_seconds", "How late its event loop is.", keys[:1]
        )

    def __call__(self, stats: FrontendStats) -> None:
        for told in stats.applications:
            tags = {**self.tags, "application": told.application}
            for outcome, count in told.outcomes.items():
                self.answered.inc(count, {**tags, "outcome": outcome})
            if told.latency_ns > 0:
                self.latency.inc(told.latency_ns / SECOND, tags)
        self.open.set(stats.open, self.tags)
        self.payload.set(stats.payload_bytes, self.tags)
        self.late.set(stats.loop_late_ns / SECOND, self.tags)


class BackendExport:
    """What one backend tells, once a second."""

    def __init__(self, number: int) -> None:
        self.tags = {"backend": str(number)}
        keys = ("backend", "variant")
        self.loads: Any = Counter("fermata_backend_loads", "Models loaded here.", keys)
        self.failures: Any = Counter(
            "fermata_backend_failures", "Batches and loads that failed.", keys[:1]
        )
        self.models: Any = Gauge(
            "fermata_backend_models_bytes", "Held by models on its accelerator.", keys[:1]
        )
        self.gpu: Any = Gauge(
            "fermata_backend_gpu_used", "Share of time in which its GPU works.", keys[:1]
        )

    def __call__(self, stats: BackendStats) -> None:
        for variant, count, _ in stats.loads:
            self.loads.inc(count, {**self.tags, "variant": variant})
        if stats.failures:
            self.failures.inc(stats.failures, self.tags)
        self.models.set(stats.models_bytes, self.tags)
        if stats.gpu_used >= 0:
            self.gpu.set(stats.gpu_used, self.tags)
