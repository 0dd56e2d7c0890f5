"""Counts of a frontend: outcomes of requests, their latencies and batch sizes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fermata.deployments.specs.outcomes import GOOD, LATE
from fermata.router.links.messages import Answered, Result
from fermata.router.telemetry.histogram import LATENCY_NS, Histogram


class Counted(Protocol):
    """A request, or a query, that has ended with a result."""

    application: str
    tenant: int
    arrived_at_ns: int
    deadline_ns: int


class Batches:
    """Requests served in batches of one size, and the sum of their run times."""

    __slots__ = ("requests", "rows", "rows_run_ns", "run_ns")

    def __init__(self) -> None:
        self.requests = 0
        self.run_ns = 0
        self.rows = 0
        self.rows_run_ns = 0
        """The same sum, with each row counted."""

    def add(self, other: "Batches") -> None:
        """Add those of another application."""
        self.requests += other.requests
        self.run_ns += other.run_ns
        self.rows += other.rows
        self.rows_run_ns += other.rows_run_ns


@dataclass(slots=True)
class ApplicationCounts:
    """Sums since the start, for one application."""

    good: int = 0
    late: int = 0
    """Served, but after the SLO."""
    refused: dict[str, int] = field(default_factory=dict)
    """Refusals by reason."""
    latency_ns: int = 0
    batches: dict[int, Batches] = field(default_factory=dict)
    """Served requests by batch size."""
    last_at_ns: int = -1
    """When the last one was served; negative: none was."""
    latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_NS))
    """Latencies of requests served since the last report."""
    reported: dict[str, int] = field(default_factory=dict)
    """Outcomes that the router knows of."""

    @property
    def served(self) -> int:
        return self.good + self.late

    @property
    def rows(self) -> int:
        """Rows of all served requests."""
        return sum(each.rows for each in self.batches.values())

    @property
    def run_ns(self) -> int:
        """Run times of the batches of all served requests, each request counted."""
        return sum(each.run_ns for each in self.batches.values())

    @property
    def queue_ns(self) -> int:
        """Latencies of all served requests, less run times."""
        return self.latency_ns - self.run_ns

    def outcomes(self) -> dict[str, int]:
        """Requests by outcome."""
        return {GOOD: self.good, LATE: self.late, **self.refused}


class TenantCounts:
    """Outcomes of one tenant's requests, for all applications together."""

    __slots__ = ("name", "outcomes", "reported")

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcomes: dict[str, int] = {}
        self.reported: dict[str, int] = {}
        """Outcomes that the router knows of."""

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class OutcomeCounts:
    """Counters of all applications, and of the tenants that are configured."""

    def __init__(self) -> None:
        self.applications: dict[str, ApplicationCounts] = {}
        self.tenants: dict[int, TenantCounts] = {}
        """Configured tenants by number."""
        self.stale_results = 0
        """Results that came after their request had ended."""

    def together(self, applications: Iterable[str]) -> ApplicationCounts:
        """Sums since the start, for some applications."""
        total = ApplicationCounts()
        for each in map(self.applications.get, applications):
            if each is not None:
                total.good += each.good
                total.late += each.late
                total.latency_ns += each.latency_ns
                total.last_at_ns = max(total.last_at_ns, each.last_at_ns)
                for reason, count in each.refused.items():
                    total.refused[reason] = total.refused.get(reason, 0) + count
                for size, batches in each.batches.items():
                    total.batches.setdefault(size, Batches()).add(batches)
        return total

    def of(self, application: str) -> ApplicationCounts:
        found = self.applications.get(application)
        if found is None:
            found = self.applications[application] = ApplicationCounts()
        return found

    def add_tenants(self, tenants: Mapping[int, str]) -> None:
        """Count requests of these tenants too, given as names by number."""
        self.tenants = {number: TenantCounts(name) for number, name in tenants.items()}

    def count_tenant(self, number: int, outcome: str) -> None:
        """Count one request of a tenant, even one that was refused before its model was known."""
        if self.tenants:
            tenant = self.tenants.get(number)
            if tenant is not None:
                tenant.count(outcome)

    def refuse(self, application: str, reason: str, tenant: int = 0) -> None:
        refused = self.of(application).refused
        refused[reason] = refused.get(reason, 0) + 1
        self.count_tenant(tenant, reason)

    def serve(self, now_ns: int, request: Counted, result: Result, rows: int = 1) -> None:
        """Count a request of so many rows, served now."""
        counts = self.of(request.application)
        counts.last_at_ns = now_ns
        if now_ns <= request.deadline_ns:
            counts.good += 1
            self.count_tenant(request.tenant, GOOD)
        else:
            counts.late += 1
            self.count_tenant(request.tenant, LATE)
        latency_ns = now_ns - request.arrived_at_ns
        counts.latency_ns += latency_ns
        counts.latency.add(latency_ns)
        batches = counts.batches.get(result.batch_size)
        if batches is None:
            batches = counts.batches[result.batch_size] = Batches()
        batches.requests += 1
        batches.run_ns += result.run_ns
        batches.rows += rows
        batches.rows_run_ns += rows * result.run_ns

    def take(self, wanted: Callable[[str], bool] = lambda name: True) -> tuple[Answered, ...]:
        """Counts of the applications that are wanted, since they were last taken."""
        found: list[Answered] = []
        for name, counts in self.applications.items():
            if not wanted(name):
                continue
            outcomes = counts.outcomes()
            grown = _grown(outcomes, counts.reported)
            if grown:
                counts.reported = outcomes
                found.append(Answered(name, grown, *counts.latency.take()))
        return tuple(found)

    def take_tenants(self) -> tuple[tuple[str, dict[str, int]], ...]:
        """Counts by tenant since the last call, for tenants that sent any request."""
        found: list[tuple[str, dict[str, int]]] = []
        for tenant in self.tenants.values():
            grown = _grown(tenant.outcomes, tenant.reported)
            if grown:
                tenant.reported = dict(tenant.outcomes)
                found.append((tenant.name, grown))
        return tuple(found)


def _grown(counts: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {
        key: count - before.get(key, 0)
        for key, count in counts.items()
        if count > before.get(key, 0)
    }
