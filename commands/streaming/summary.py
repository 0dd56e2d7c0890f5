"""Figures of one stream."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fermata.clients.pending import FrameResult

KEPT = 4096
"""Latencies that quantiles are taken of: the last ones, so that a stream may run for weeks."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Quantiles over frames with a result; None where there are none."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The figures of one stream."""

    requests: int
    good: int
    bad_rate: float
    slo_ms: float
    latency_ms: LatencySummary
    statuses: Mapping[str, int]
    variants: Mapping[str, int]

    def __str__(self) -> str:
        latency = self.latency_ms
        shown = "" if latency.p50 is None else f", p50 {latency.p50} ms, p99 {latency.p99} ms"
        return f"{self.good} of {self.requests} frames within {self.slo_ms:g} ms{shown}"


class ResultCounts:
    """Counts the results of one stream as they come."""

    def __init__(self, slo_ns: int) -> None:
        self.slo_ns = slo_ns
        self.requests = self.good = 0
        self.statuses: Counter[str] = Counter()
        self.variants: Counter[str] = Counter()
        self.latencies_ns: deque[int] = deque(maxlen=KEPT)
        self.last: FrameResult | None = None

    def add(self, result: FrameResult) -> None:
        self.requests += 1
        self.statuses[result.status] += 1
        self.last = result
        if result.ok:
            self.variants[result.variant] += 1
            self.latencies_ns.append(result.latency_ns)
            self.good += result.latency_ns <= self.slo_ns

    def summary(self) -> StreamSummary:
        latency_ms = LatencySummary(None, None)
        if self.latencies_ns:
            p50, p99 = np.percentile(np.array(self.latencies_ns), (50, 99)) / 1e6
            latency_ms = LatencySummary(round(float(p50), 3), round(float(p99), 3))
        return StreamSummary(
            requests=self.requests,
            good=self.good,
            bad_rate=1 - self.good / self.requests if self.requests else 0.0,
            slo_ms=self.slo_ns / 1e6,
            latency_ms=latency_ms,
            statuses=dict(self.statuses),
            variants=dict(self.variants),
        )
