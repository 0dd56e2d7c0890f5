"""Figures of each process for Ray's metrics agent.

Ray prefixes names with `ray_`, and adds the node, the worker and the component. Figures of the
cluster are on the control plane's page alone (`fermata.deployments.metrics.families`).
"""

from typing import Any

from ray.util.metrics import Counter, Gauge

from fermata.router.links.messages import BackendStats, FrontendStats

SECOND = 1e9


class FrontendExport:
    """Exports the reports of one frontend."""

    def __init__(self, number: int) -> None:
        self.tags = {"frontend": str(number)}
        keys = ("frontend", "application", "outcome")
        self.answered: Any = Counter(
            "fermata_frontend_answered", "Requests that this frontend has answered.", keys
        )
        self.latency: Any = Counter(
            "fermata_frontend_latency_seconds", "Sum of latencies.", keys[:2]
        )
        self.open: Any = Gauge(
            "fermata_frontend_open", "Requests without an answer at this frontend.", keys[:1]
        )
        self.payload: Any = Gauge(
            "fermata_frontend_payload_bytes", "Memory of the inputs of open requests.", keys[:1]
        )
        self.late: Any = Gauge(
            "fermata_frontend_loop_late_seconds", "Delay of the event loop.", keys[:1]
        )

    def __call__(self, stats: FrontendStats) -> None:
        for answered in stats.applications:
            tags = {**self.tags, "application": answered.application}
            for outcome, count in answered.outcomes.items():
                self.answered.inc(count, {**tags, "outcome": outcome})
            if answered.latency_ns > 0:
                self.latency.inc(answered.latency_ns / SECOND, tags)
        self.open.set(stats.open, self.tags)
        self.payload.set(stats.payload_bytes, self.tags)
        self.late.set(stats.loop_late_ns / SECOND, self.tags)


class BackendExport:
    """Exports the reports of one backend."""

    def __init__(self, number: int) -> None:
        self.tags = {"backend": str(number)}
        keys = ("backend", "variant")
        self.loads: Any = Counter("fermata_backend_loads", "Loads of models on this backend.", keys)
        self.failures: Any = Counter(
            "fermata_backend_failures", "Batches and loads that failed.", keys[:1]
        )
        self.models: Any = Gauge(
            "fermata_backend_models_bytes", "Memory of models on its accelerator.", keys[:1]
        )
        self.gpu: Any = Gauge(
            "fermata_backend_gpu_used", "Share of time in which its GPU runs a kernel.", keys[:1]
        )

    def __call__(self, stats: BackendStats) -> None:
        for variant, count, _ in stats.loads:
            self.loads.inc(count, {**self.tags, "variant": variant})
        if stats.failures:
            self.failures.inc(stats.failures, self.tags)
        self.models.set(stats.models_bytes, self.tags)
        if stats.gpu_used >= 0:
            self.gpu.set(stats.gpu_used, self.tags)
