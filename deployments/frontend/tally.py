"""What a frontend counts: how requests ended, how long they took, in what batches."""

from dataclasses import dataclass, field

from deployments.frontend.entry import Entry
from router.histogram import LATENCY_NS, Histogram
from router.links.messages import Answered, Result

GOOD = "good"
LATE = "ran-late"
"""Served, but after the SLO; `late` is the router's reason for not serving at all."""


class Batches:
    """Requests served in batches of one size, and their run time together."""

    __slots__ = ("requests", "run_ns")

    def __init__(self) -> None:
        self.requests = 0
        self.run_ns = 0


@dataclass(slots=True)
class ApplicationTally:
    """Sums since the start, for one application."""

    good: int = 0
    late: int = 0
    """Served, but after the SLO."""
    refused: dict[str, int] = field(default_factory=dict)
    """By reason."""
    latency_ns: int = 0
    batches: dict[int, Batches] = field(default_factory=dict)
    """By batch size."""
    latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_NS))
    """Of what was served since the router was last told."""
    told: dict[str, int] = field(default_factory=dict)
    """Outcomes that the router has been told of."""

    @property
    def served(self) -> int:
        return self.good + self.late

    @property
    def run_ns(self) -> int:
        """Of what was served: the run time of its batch."""
        return sum(each.run_ns for each in self.batches.values())

    @property
    def queue_ns(self) -> int:
        """Of what was served: latency less run time."""
        return self.latency_ns - self.run_ns

    def outcomes(self) -> dict[str, int]:
        """How many requests ended in each way."""
        return {GOOD: self.good, LATE: self.late, **self.refused}


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
        tally.latency.add(latency_ns)
        batches = tally.batches.get(result.batch_size)
        if batches is None:
            batches = tally.batches[result.batch_size] = Batches()
        batches.requests += 1
        batches.run_ns += result.run_ns

    def take(self) -> tuple[Answered, ...]:
        """What there is to tell since the last call."""
        found: list[Answered] = []
        for name, tally in self.applications.items():
            outcomes = tally.outcomes()
            grown = {
                key: count - tally.told.get(key, 0)
                for key, count in outcomes.items()
                if count > tally.told.get(key, 0)
            }
            if grown:
                tally.told = outcomes
                found.append(Answered(name, grown, *tally.latency.take()))
        return tuple(found)
