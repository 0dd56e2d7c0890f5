"""Figures of a run: goodput, bad rate, latency, batches, idleness, accuracy."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fermata.autoscaler.cost import HOUR_NS, CostShare, allocate_cost
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import SECOND
from fermata.router.core.events import DropReason
from fermata.simulator.reports.pipeline_report import PipelineReport, pipeline_reports
from fermata.simulator.reports.utility import right_answers
from fermata.simulator.run import DROPPED, RunLog
from fermata.simulator.scenario.scenario import Scenario

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    name: str
    requests: int
    bad_rate: float
    p50_ms: float | None
    p99_ms: float | None
    accuracy: float | None
    backend_hours: float
    """Time its batches ran, and its part of the time nobody's did."""
    cost: float


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One client's stream; numbered from 1 in order of the scenario."""

    stream: int
    requests: int
    bad_rate: float
    backend_hours: float
    cost: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything counts requests that arrived within the measured time. Latencies are of
    answered requests, from arrival to answer; None where there were none."""

    offered_rps: float
    good_rps: float
    bad_rate: float
    """Dropped or late, of all requests."""
    worst_bad_rate: float
    """Bad rate of the application that fared worst."""
    worst_stream_bad_rate: float | None
    """Bad rate of the client that fared worst, where there are clients."""
    idle_fraction: float
    mean_batch: float | None
    p50_ms: float | None
    p99_ms: float | None
    queue_p50_ms: float | None
    queue_p99_ms: float | None
    accuracy: float | None
    """Mean over the requests answered in time: of real answers where requests have content, else
    of profiles."""
    short_circuited: int
    """Answered at once from evidence, without a backend."""
    requests: int
    late: int
    """Answered after the deadline."""
    drops: Mapping[str, int]
    """Not answered, by reason."""
    wall_s: float
    requests_per_wall_s: float
    backend_hours: float
    """Paid for, warm-up and start-up of backends included."""
    cost: float
    """At the autoscaler's `price_per_hour`."""
    backends_mean: float
    applications: tuple[ApplicationReport, ...]
    streams: tuple[StreamReport, ...]
    pipelines: tuple[PipelineReport, ...] = ()

    def to_dict(self) -> JsonObject:
        return asdict(self)


def report(scenario: Scenario, log: RunLog) -> RunReport:
    """The figures of one run."""
    arrivals = log.arrivals
    measured: Mask = arrivals.at_ns >= scenario.warmup_ns
    cancelled = np.array(
        [rid for rid, reason in log.reasons.items() if reason == DropReason.CANCELLED], np.int64
    )
    measured[cancelled] = False
    answered = measured & (log.end_ns != DROPPED)
    good = answered & (log.end_ns <= arrivals.at_ns + arrivals.slo_ns)
    count = int(measured.sum())
    drops: dict[str, int] = {}
    for rid, reason in log.reasons.items():
        if measured[rid]:
            drops[reason] = drops.get(reason, 0) + 1
    price = 0.0 if scenario.autoscaler is None else scenario.autoscaler.price_per_hour
    spent = _spent(scenario, log, price)
    applications = tuple(
        _of_application(
            log, application.name, measured & (arrivals.application == index), good, spent[index]
        )
        for index, application in enumerate(scenario.applications)
    )
    pipelines = pipeline_reports(scenario, log)
    latency_ms = (log.end_ns - arrivals.at_ns)[answered] / 1e6
    queue_ms = (log.start_ns - arrivals.at_ns)[answered] / 1e6
    duration_s = scenario.duration_ns / SECOND
    return RunReport(
        offered_rps=count / duration_s,
        good_rps=int(good.sum()) / duration_s,
        bad_rate=_bad_rate(measured, good),
        worst_bad_rate=max(
            [each.bad_rate for each in applications] + [each.bad_rate for each in pipelines]
        ),
        worst_stream_bad_rate=_worst_stream(log, measured, good),
        idle_fraction=idle_fraction(scenario, log),
        mean_batch=_mean_batch(scenario, log),
        p50_ms=_percentile(latency_ms, 50),
        p99_ms=_percentile(latency_ms, 99),
        queue_p50_ms=_percentile(queue_ms, 50),
        queue_p99_ms=_percentile(queue_ms, 99),
        accuracy=_accuracy(log, good),
        short_circuited=sum(bool(measured[rid]) for rid in log.answers),
        requests=count,
        late=int((answered & ~good).sum()),
        drops=dict(sorted(drops.items())),
        wall_s=log.wall_s,
        requests_per_wall_s=len(arrivals.at_ns) / log.wall_s if log.wall_s else math.inf,
        backend_hours=log.allocated_ns / HOUR_NS,
        cost=price * log.allocated_ns / HOUR_NS,
        backends_mean=log.allocated_ns / (scenario.warmup_ns + scenario.duration_ns),
        applications=applications,
        streams=_streams(log, measured, good, price),
        pipelines=pipelines,
    )


def busy_ns(log: RunLog) -> npt.NDArray[np.float64]:
    """Backend time of each request: its part of its batch's; 0 where it never ran."""
    if not log.batches:
        return np.zeros(len(log.end_ns))
    sizes = np.array([size for *_, size in log.batches], np.float64)
    run_ns = np.array([ended - started for _, started, ended, _ in log.batches], np.float64)
    # Answers that needed no backend end when they start, and have no batch.
    ran = (log.end_ns != DROPPED) & (log.end_ns > log.start_ns)
    return np.where(ran, (run_ns / sizes)[log.batch], 0.0)


def _spent(scenario: Scenario, log: RunLog, price: float) -> tuple[CostShare, ...]:
    numbers = log.arrivals.application
    used = np.bincount(numbers, busy_ns(log), len(scenario.applications))
    names = [each.name for each in scenario.applications]
    by_number = {str(number): float(value) for number, value in enumerate(used[: len(names)])}
    return allocate_cost(by_number, log.allocated_ns, price)


def _streams(log: RunLog, measured: Mask, good: Mask, price: float) -> tuple[StreamReport, ...]:
    """Requests, answers and cost of each client; nothing where nobody streams."""
    clients = log.arrivals.client
    if not len(clients) or not clients.max():
        return ()
    sent, answered = good_by_stream(log, measured, good)
    used = np.bincount(clients, busy_ns(log), len(sent) + 1).tolist()
    paid = allocate_cost(
        {str(stream): each for stream, each in enumerate(used)}, log.allocated_ns, price
    )
    return tuple(
        StreamReport(
            stream=number,
            requests=asked,
            bad_rate=1.0 - ok / asked if asked else 0.0,
            backend_hours=paid[number].backend_hours,
            cost=paid[number].cost,
        )
        for number, (asked, ok) in enumerate(zip(sent, answered, strict=True), start=1)
    )


def _of_application(
    log: RunLog, name: str, mine: Mask, good: Mask, bill: CostShare
) -> ApplicationReport:
    answered = mine & (log.end_ns != DROPPED)
    latency_ms = (log.end_ns - log.arrivals.at_ns)[answered] / 1e6
    return ApplicationReport(
        name=name,
        requests=int(mine.sum()),
        bad_rate=_bad_rate(mine, good),
        p50_ms=_percentile(latency_ms, 50),
        p99_ms=_percentile(latency_ms, 99),
        accuracy=_accuracy(log, mine & good),
        backend_hours=bill.backend_hours,
        cost=bill.cost,
    )


def _bad_rate(asked: Mask, good: Mask) -> float:
    count = int(asked.sum())
    return 1.0 - int((asked & good).sum()) / count if count else 0.0


def _percentile(values: npt.NDArray[np.float64], rank: float) -> float | None:
    return float(np.percentile(values, rank)) if len(values) else None


def _accuracy(log: RunLog, good: Mask) -> float | None:
    if log.contents is not None:
        return float(right_answers(log)[good].mean()) if good.any() else None
    used = np.bincount(log.variant[good], minlength=len(log.accuracy))
    total = 0.0
    for variant, times in enumerate(used.tolist()):
        accuracy = log.accuracy[variant]
        if times and accuracy is None:
            return None
        total += times * (accuracy or 0.0)
    return total / int(used.sum()) if used.sum() else None


def good_by_stream(log: RunLog, measured: Mask, good: Mask) -> tuple[list[int], list[int]]:
    """Frames sent and frames answered in time, by stream."""
    streams = log.arrivals.client
    size = int(streams.max()) + 1 if len(streams) else 1
    sent = np.bincount(streams[measured], minlength=size)[1:]
    answered = np.bincount(streams[good], minlength=size)[1:]
    return sent.tolist(), answered.tolist()


def _worst_stream(log: RunLog, measured: Mask, good: Mask) -> float | None:
    sent, answered = good_by_stream(log, measured, good)
    rates = [1.0 - ok / all_ for ok, all_ in zip(answered, sent, strict=True) if all_]
    return max(rates) if rates else None


def idle_fraction(scenario: Scenario, log: RunLog) -> float:
    """Share of backend time without a running batch, within the measured time."""
    begin_ns, end_ns = scenario.warmup_ns, scenario.warmup_ns + scenario.duration_ns
    busy_ns = sum(
        max(0, min(ended, end_ns) - max(started, begin_ns)) for _, started, ended, _ in log.batches
    )
    if scenario.scales:
        # How many there were in the measured time alone nobody has counted: take their mean.
        return 1.0 - busy_ns * end_ns / (scenario.duration_ns * max(1, log.allocated_ns))
    return 1.0 - busy_ns / (scenario.backends * scenario.duration_ns)


def _mean_batch(scenario: Scenario, log: RunLog) -> float | None:
    sizes = [size for _, started, _, size in log.batches if started >= scenario.warmup_ns]
    return sum(sizes) / len(sizes) if sizes else None
