"""A simulated run as frames, one a second: what the page would have shown, had it been live.

Made of the run's log afterwards, so that recording changes nothing. The log does not say when a
request was given up; it counts as bad from its deadline on.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fermata.foundation.units import SECOND
from fermata.router.core.events import DropReason
from fermata.router.telemetry.dashboard_frames import (
    ApplicationFrame,
    BackendFrame,
    BatchFrame,
    DashboardFrame,
    SubClusterFrame,
)
from fermata.simulator.run import DROPPED, RunLog
from fermata.simulator.scenario.scenario import Scenario

MINUTE_NS = 60 * SECOND
SHOWN_NS = 2 * SECOND
"""Batches of so long ago are still in a frame."""
STREAM_REQUESTS_MIN = 5
Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Recorder:
    """Reads one run's log at one time after the other."""

    def __init__(self, scenario: Scenario, log: RunLog, title: str) -> None:
        self.scenario = scenario
        self.log = log
        self.title = title
        arrivals = log.arrivals
        self.deadline_ns: Times = arrivals.at_ns + arrivals.slo_ns
        self.ran: Mask = log.end_ns != DROPPED
        self.ended_ns: Times = np.where(self.ran, log.end_ns, self.deadline_ns)
        self.good: Mask = self.ran & (log.end_ns <= self.deadline_ns)
        reasons = np.full(len(self.ran), "ran-late", dtype=object)
        for rid, reason in log.reasons.items():
            reasons[rid] = reason
        self.reasons = reasons
        self.names = [each.name for app in scenario.applications for each in app.variants]
        self.batch_ends = np.array([end for _, _, end, _ in log.batches], np.int64)
        self.batch_variant, self.batch_deadline, self.batch_late = self._batches()
        self.backends = 1 + max((backend for backend, *_ in log.batches), default=-1)
        self.backends = max(self.backends, scenario.backends)

    def _batches(self) -> tuple[Times, Times, Times]:
        """Each batch: its variant, its earliest deadline, how many were late."""
        log, count = self.log, len(self.log.batches)
        in_batch = self.ran.copy()
        in_batch[list(log.answers)] = False
        place = log.batch[in_batch]
        variant = np.zeros(count, np.int64)
        variant[place] = log.variant[in_batch]
        deadline = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(deadline, place, self.deadline_ns[in_batch])
        late = np.bincount(place, ~self.good[in_batch], minlength=count).astype(np.int64)
        return variant, deadline, late

    def frames(self) -> Iterator[DashboardFrame]:
        """From the first second to the last answer."""
        last_ns = int(self.ended_ns.max(initial=0))
        for at_ns in range(SECOND, last_ns + SECOND, SECOND):
            yield self._frame(at_ns)

    def _frame(self, at_ns: int) -> DashboardFrame:
        log, arrivals = self.log, self.log.arrivals
        here = arrivals.at_ns <= at_ns
        open_ones = here & (self.ended_ns > at_ns)
        started = self.ran & (log.start_ns <= at_ns)
        return DashboardFrame(
            at_s=at_ns / SECOND,
            title=self.title,
            queued=int((open_ones & ~started).sum()),
            under_way=int((open_ones & started).sum()),
            applications=tuple(
                self._application(number, at_ns, here)
                for number in range(len(self.scenario.applications))
            ),
            sub_clusters=self._sub_clusters(at_ns),
            backends=tuple(self._backend(number, at_ns) for number in range(self.backends)),
        )

    def _application(self, number: int, at_ns: int, here: Mask) -> ApplicationFrame:
        told = self.scenario.applications[number]
        log, arrivals = self.log, self.log.arrivals
        mine = here & (arrivals.application == number)
        ended = mine & (self.ended_ns <= at_ns)
        reasons, counts = np.unique(
            self.reasons[ended & ~self.good].astype(str), return_counts=True
        )
        lately = ended & (self.ended_ns > at_ns - MINUTE_NS)
        counted = lately & (self.reasons != DropReason.CANCELLED)
        served = lately & self.ran
        latency_ms = (log.end_ns - arrivals.at_ns)[served] / 1e6
        first = log.first_variant[number]
        shares = np.bincount(log.variant[served] - first, minlength=len(told.variants))
        known = [log.accuracy[first + place] for place in range(len(told.variants))]
        rated = [(count, each) for count, each in zip(shares.tolist(), known, strict=True) if each]
        weight = sum(count for count, _ in rated)
        batches = len(np.unique(log.batch[served]))
        streams, worst = self._streams(counted)
        second = self.ended_ns > at_ns - SECOND
        return ApplicationFrame(
            name=told.name,
            slo_ms=told.slo_ns / 1e6,
            requests=int(mine.sum()),
            good=int((ended & self.good).sum()),
            bad=dict(zip(reasons.tolist(), counts.tolist(), strict=True)),
            rps=float((mine & (arrivals.at_ns > at_ns - SECOND)).sum()),
            good_rps=float((ended & self.good & second).sum()),
            bad_rate=float((counted & ~self.good).sum() / max(1, counted.sum())),
            p50_ms=float(np.percentile(latency_ms, 50)) if len(latency_ms) else None,
            p99_ms=float(np.percentile(latency_ms, 99)) if len(latency_ms) else None,
            mean_batch=float(served.sum() / batches) if batches else None,
            accuracy=sum(count * each for count, each in rated) / weight if weight else None,
            streams=streams,
            worst_stream_bad_rate=worst,
            variants={
                each.name: count / served.sum()
                for each, count in zip(told.variants, shares.tolist(), strict=True)
                if served.any()
            },
        )

    def _streams(self, counted: Mask) -> tuple[int, float]:
        """How many there were, and the bad rate of the worst."""
        client = self.log.arrivals.client[counted]
        if not client.any():
            return 0, 0.0
        total = np.bincount(client)
        bad = np.bincount(client, ~self.good[counted], minlength=len(total))
        enough = (total >= STREAM_REQUESTS_MIN) & (np.arange(len(total)) > 0)
        return int(enough.sum()), float((bad[enough] / total[enough]).max(initial=0.0))

    def _sub_clusters(self, at_ns: int) -> tuple[SubClusterFrame, ...]:
        windows = [each for each in self.log.windows if each.ends_at_ns <= at_ns]
        if not windows:
            idle = self._idle(at_ns, self.scenario.backends)
            return (SubClusterFrame(self.scenario.backends, idle, None, None),)
        newest = {each.sub_cluster: each for each in windows}
        return tuple(
            SubClusterFrame(
                backends=each.allocated,
                idle=self._idle(at_ns, max(1, sum(one.allocated for one in newest.values()))),
                demand=each.advice.demand,
                advised=each.advice.target,
                reason=each.advice.reason,
            )
            for _, each in sorted(newest.items())
        )

    def _idle(self, at_ns: int, backends: int) -> float:
        """Share of the last minute's backend time without a batch."""
        span_ns = min(at_ns, MINUTE_NS)
        last = int(np.searchsorted(self.batch_ends, at_ns, side="right"))
        busy_ns = sum(
            end - max(start, at_ns - span_ns)
            for _, start, end, _ in self.log.batches[:last]
            if end > at_ns - span_ns
        )
        return min(1.0, max(0.0, 1.0 - busy_ns / (span_ns * backends)))

    def _backend(self, number: int, at_ns: int) -> BackendFrame:
        # Batches are logged in the order in which they end.
        first = int(np.searchsorted(self.batch_ends, at_ns - SHOWN_NS))
        last = int(np.searchsorted(self.batch_ends, at_ns, side="right"))
        shown: list[BatchFrame] = []
        for place in range(first, last):
            backend, start, end, size = self.log.batches[place]
            if backend == number:
                shown.append(
                    BatchFrame(
                        start_s=start / SECOND,
                        end_s=end / SECOND,
                        variant=self.names[int(self.batch_variant[place])],
                        size=size,
                        deadline_s=int(self.batch_deadline[place]) / SECOND,
                        late=int(self.batch_late[place]),
                    )
                )
        running = bool(shown) and shown[-1].end_s >= (at_ns - SECOND) / SECOND
        state = "running" if running else "idle"
        return BackendFrame(str(number), 0, "emulated", state, (), tuple(shown))
