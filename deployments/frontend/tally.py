"""What a frontend counts: how requests ended, how long they took, in what batches."""

from bisect import bisect_left
from dataclasses import dataclass, field

from deployments.frontend.entry import Entry
from router.links.messages import Result

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000)


@dataclass(slots=True)
class ApplicationTally:
    """Sums since the start, for one application."""

    good: int = 0
    late: int = 0
    """Served, but after the SLO."""
    refused: dict[str, int] = field(default_factory=dict)
    """By reason."""
    latency_ns: int = 0
    queue_ns: int = 0
    """Of what was served: latency less run time."""
    run_ns: int = 0
    latency_buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    batches: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each batch size: requests served in such batches, and their run time together."""
    variants: dict[str, int] = field(default_factory=dict)

    @property
    def served(self) -> int:
        return self.good + self.late


class Tally:
    """Counters of all applications."""

    def __init__(self) -> None:
        self.applications: dict[str, ApplicationTally] = {}
        self.stale_results = 0
        """Results of requests that had ended before."""

    def of(self, application: str) -> ApplicationTally:
        found = self.applications.get(application)
        if found is None:
            found = self.applications[application] = ApplicationTally()
        return found

    def refuse(self, application: str, reason: str) -> None:
        refused = self.of(application).refused
        refused[reason] = refused.get(reason, 0) + 1

    def serve(self, now_ns: int, entry: Entry, result: Result) -> None:
        tally = self.of(entry.application)
        if now_ns <= entry.deadline_ns:
            tally.good += 1
        else:
            tally.late += 1
        latency_ns = now_ns - entry.arrived_at_ns
        tally.latency_ns += latency_ns
        tally.queue_ns += latency_ns - result.run_ns
        tally.run_ns += result.run_ns
        tally.latency_buckets[bisect_left(LATENCY_BOUNDS_MS, latency_ns / 1e6)] += 1
        count, run_ns = tally.batches.get(result.batch_size, (0, 0))
        tally.batches[result.batch_size] = (count + 1, run_ns + result.run_ns)
        tally.variants[result.variant] = tally.variants.get(result.variant, 0) + 1
