"""Counters of a live router: a few sums for each batch, never work for each request beyond a list.

Readers take differences over windows of their own; see `fermata.router.telemetry.snapshot`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fermata.router.assembly import Assembly, RouterConfig
from fermata.router.core.events import Batch, Drop, DropReason, Request
from fermata.router.links.messages import BackendStats, FrontendStats
from fermata.router.telemetry.histogram import LATENCY_NS, SHORT_NS, SLACK_NS, Histogram
from fermata.router.telemetry.stream_counts import StreamCounts

EndedBatch = tuple[int, int, int, int, int, int, int]
"""(number, end, run time, variant, size, earliest deadline, how many were late)."""


@dataclass(frozen=True, slots=True)
class RecentBatch:
    """A batch that has ended lately; its times are durations before now."""

    batch: int
    ended_ns: int
    run_ns: int
    variant: str
    size: int
    deadline_ns: int
    late: int


class ApplicationMeter:
    """Sums since the start, of one application."""

    __slots__ = (
        "answered",
        "expected_right",
        "latency",
        "queue_delay",
        "rated",
        "received",
        "short_circuits",
        "slack",
        "streams",
    )

    def __init__(self) -> None:
        self.received = 0
        self.expected_right = 0.0
        """Right answers that variants' accuracies, or evidence, lead one to expect."""
        self.rated = 0
        """Requests that `expected_right` speaks of."""
        self.queue_delay = Histogram(LATENCY_NS)
        self.slack = Histogram(SLACK_NS)
        self.latency = Histogram(LATENCY_NS)
        """As frontends see it."""
        self.answered: dict[str, int] = {}
        """Outcomes that frontends reported: `good`, `late`, or a reason."""
        self.streams = StreamCounts()
        self.short_circuits = 0
        """Requests that a look was the answer to."""


class Meters:
    """Fed by the live router, batch by batch."""

    def __init__(self, config: RouterConfig, built: Assembly, recent_max: int = 96) -> None:
        """`recent_max` batches of each backend are kept, for the page."""
        self.built = built
        self.recent_max = recent_max
        self.names = [each.name for each in config.applications]
        self.applications = [ApplicationMeter() for _ in config.applications]
        self.accuracy = [one.accuracy for each in config.applications for one in each.variants]
        self.sizes: list[dict[int, int]] = [{} for _ in built.variants]
        """Batches dispatched, by variant and size."""
        self.queries: dict[str, dict[str, int]] = {name: {} for name in config.pipelines}
        """By pipeline: outcomes of queries, as frontends count them."""
        self.round_trip = Histogram(SHORT_NS)
        self.timer_late = Histogram(SHORT_NS)
        self.recent: dict[int, deque[EndedBatch]] = {}
        self.frontends: dict[int, FrontendStats] = {}
        """The last report of each."""
        self.tenants: dict[str, dict[str, int]] = {}
        """Outcomes of each configured tenant that has sent requests."""
        self.backends: dict[int, BackendStats] = {}
        self.loads: dict[str, list[int]] = {}
        """By variant: loads and the time they took, over all backends."""
        self.failures = 0
        """Batches and loads that failed on backends."""
        self.non_finite: dict[str, int] = {}
        """By variant: requests whose outputs held a NaN or an infinity."""

    # Batches

    def on_dispatch(self, now_ns: int, backend: int, batch: Batch) -> None:
        sizes, size = self.sizes[batch.variant], batch.size
        sizes[size] = sizes.get(size, 0) + 1

    def on_done(
        self, now_ns: int, backend: int, batch: Batch, run_ns: int, link_ns: int, ran: bool
    ) -> None:
        """A batch has ended; one that has not `ran` gave no results."""
        requests = batch.requests
        meter = self.applications[requests[0].application]
        if not ran:
            return
        started_at_ns = now_ns - run_ns - link_ns
        slack = [request.deadline_ns - now_ns for request in requests]
        meter.slack.add_all(slack)
        meter.queue_delay.add_all([started_at_ns - request.arrived_at_ns for request in requests])
        self._rate(meter, batch)
        least_ns = min(slack)
        late = sum([each < 0 for each in slack]) if least_ns < 0 else 0
        recent = self.recent.get(backend)
        if recent is None:
            recent = self.recent[backend] = deque(maxlen=self.recent_max)
        recent.append(
            (batch.batch_id, now_ns, run_ns, batch.variant, len(slack), now_ns + least_ns, late)
        )
        if any(request.client for request in requests):
            for request, left_ns in zip(requests, slack, strict=True):
                meter.streams.count(now_ns, request.client, left_ns >= 0)

    def _rate(self, meter: ApplicationMeter, batch: Batch) -> None:
        """The expected worth of its answers."""
        requests, accuracy = batch.requests, self.accuracy[batch.variant]
        if self.built.estimators[requests[0].application] is not None:
            found = [self.built.expected(request, batch.variant) for request in requests]
            rated = [accuracy if each is None else each for each in found]
            known = [each for each in rated if each is not None]
            meter.expected_right += sum(known)
            meter.rated += len(known)
        elif accuracy is not None:
            meter.expected_right += accuracy * len(requests)
            meter.rated += len(requests)

    def on_short_circuit(self, request: Request) -> None:
        self.applications[request.application].short_circuits += 1

    def on_drop(self, now_ns: int, drop: Drop) -> None:
        request = drop.request
        if request.client and drop.reason != DropReason.CANCELLED:
            self.applications[request.application].streams.count(now_ns, request.client, False)

    # Counts of other processes

    def on_frontend(self, number: int, stats: FrontendStats) -> bool:
        """Add what a frontend has counted; false where its buckets are not ours."""
        if any(len(told.latency) != len(LATENCY_NS) + 1 for told in stats.applications):
            return False
        self.frontends[number] = stats
        for told in stats.applications:
            application = self.built.applications.get(told.application)
            if application is not None:
                meter = self.applications[application]
                add_counts(meter.answered, told.outcomes)
                meter.latency.merge(told.latency, told.latency_ns)
            elif told.application in self.queries:
                add_counts(self.queries[told.application], told.outcomes)
        for tenant, outcomes in stats.tenants:
            add_counts(self.tenants.setdefault(tenant, {}), outcomes)
        return True

    def on_backend(self, number: int, stats: BackendStats) -> None:
        self.backends[number] = stats
        self.failures += stats.failures
        add_counts(self.non_finite, dict(stats.non_finite))
        for variant, count, took_ns in stats.loads:
            known = self.loads.setdefault(variant, [0, 0])
            known[0] += count
            known[1] += took_ns

    def on_gone(self, role: str, number: int) -> None:
        """The counts of a process that is gone stay; its gauges do not."""
        if role == "frontend":
            self.frontends.pop(number, None)
        else:
            self.backends.pop(number, None)
            self.recent.pop(number, None)

    def recent_batches(
        self, now_ns: int, after: int, names: Sequence[str]
    ) -> dict[str, list[RecentBatch]]:
        """By backend: batches with a number above `after`, in times before now."""
        return {
            str(backend): [
                RecentBatch(
                    number,
                    now_ns - ended_at_ns,
                    run_ns,
                    names[variant],
                    size,
                    now_ns - deadline_ns,
                    late,
                )
                for number, ended_at_ns, run_ns, variant, size, deadline_ns, late in recent
                if number > after
            ]
            for backend, recent in self.recent.items()
        }


def add_counts(counts: dict[str, int], more: dict[str, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count
