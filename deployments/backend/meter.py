"""Counts of one backend, for the router's sums and for Ray's exporter."""

import threading
from collections.abc import Callable

from fermata.deployments.backend.execution.runners.finite import NonFiniteCounts
from fermata.deployments.backend.gpu_meter import GpuMeter
from fermata.foundation.logs import LOG, fields
from fermata.foundation.process_memory import resident_bytes
from fermata.router.links.messages import BackendStats

OTHERS = "other reasons, too many to list"


class LoadCounts:
    """Loads of each variant and the time that they took; models load in threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, tuple[int, int]] = {}

    def add(self, variant: str, took_ns: int) -> None:
        with self.lock:
            count, before_ns = self.counts.get(variant, (0, 0))
            self.counts[variant] = (count + 1, before_ns + took_ns)

    def take(self) -> tuple[tuple[str, int, int], ...]:
        """(variant, loads, time) since the last call."""
        with self.lock:
            taken, self.counts = self.counts, {}
        return tuple((name, *counts) for name, counts in sorted(taken.items()))


class BackendMeter:
    """Makes the report that a backend sends once a second."""

    def __init__(
        self,
        loads: LoadCounts,
        models_bytes: Callable[[], int],
        gpu: GpuMeter | None = None,
        non_finite: NonFiniteCounts | None = None,
    ) -> None:
        self.loads = loads
        self.models_bytes = models_bytes
        self.gpu = gpu
        self.non_finite = non_finite or NonFiniteCounts()
        self.failures = 0
        """Failures since the last report."""

    def take(self) -> BackendStats:
        failures, self.failures = self.failures, 0
        held, most = (-1, -1) if self.gpu is None else self.gpu.memory_bytes()
        return BackendStats(
            loads=self.loads.take(),
            failures=failures,
            models_bytes=self.models_bytes(),
            memory_bytes=resident_bytes(),
            gpu_memory_bytes=held,
            gpu_memory_bytes_max=most,
            gpu_used=-1.0 if self.gpu is None else self.gpu.used(),
            non_finite=self.non_finite.take(),
        )


class FailureReasons:
    """Counts batches and loads that failed, by reason."""

    def __init__(self, meter: BackendMeter, reasons_max: int) -> None:
        """Beyond `reasons_max` of them, reasons are counted as one."""
        self.meter = meter
        self.reasons_max = reasons_max
        self.counts: dict[str, int] = {}

    def count(self, reason: str) -> None:
        if len(self.counts) >= self.reasons_max and reason not in self.counts:
            reason = OTHERS
        before = self.counts.get(reason, 0)
        self.counts[reason] = before + 1
        if not before:
            # Logged once: a model that fails may do so with every batch.
            LOG.warning("batch or load failed", extra=fields(reason=reason))
        self.meter.failures += 1
