"""What a frontend counts: how requests ended, how long they took, in what batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fermata.deployments.frontend.requests.pending_request import PendingRequest
from fermata.deployments.specs.outcomes import GOOD, LATE
from fermata.router.links.messages import Answered, Result
from fermata.router.telemetry.histogram import LATENCY_NS, Histogram


class Batches:
    """Requests served in batches of one size, and their run time together."""

    __slots__ = ("requests", "run_ns")

    def __init__(self) -> None:
        self.requests = 0
        self.run_ns = 0


@dataclass(slots=True)
class ApplicationCounts:
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


class TenantCounts:
    """How requests of one tenant ended, of whatever application."""

    __slots__ = ("name", "outcomes", "told")

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcomes: dict[str, int] = {}
        self.told: dict[str, int] = {}
        """Of those, what the router has been told of."""

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class OutcomeCounts:
    """Counters of all applications, and of the tenants that are configured."""

    def __init__(self) -> None:
        self.applications: dict[str, ApplicationCounts] = {}
        self.tenants: dict[int, TenantCounts] = {}
        """By number."""
        self.stale_results = 0
        """Results of requests that had ended before."""

    def of(self, application: str) -> ApplicationCounts:
        found = self.applications.get(application)
        if found is None:
            found = self.applications[application] = ApplicationCounts()
        return found

    def add_tenants(self, tenants: Mapping[int, str]) -> None:
        """Count by these tenants too, named by number."""
        self.tenants = {number: TenantCounts(name) for number, name in tenants.items()}

    def count_tenant(self, number: int, outcome: str) -> None:
        """One more of a tenant's ended; one that got no further than the door has no application.
        Where nobody has to say who they are, there are none."""
        if self.tenants:
            tenant = self.tenants.get(number)
            if tenant is not None:
                tenant.count(outcome)

    def refuse(self, application: str, reason: str, tenant: int = 0) -> None:
        refused = self.of(application).refused
        refused[reason] = refused.get(reason, 0) + 1
        self.count_tenant(tenant, reason)

    def serve(self, now_ns: int, entry: PendingRequest, result: Result) -> None:
        counts = self.of(entry.application)
        if now_ns <= entry.deadline_ns:
            counts.good += 1
            self.count_tenant(entry.tenant, GOOD)
        else:
            counts.late += 1
            self.count_tenant(entry.tenant, LATE)
        latency_ns = now_ns - entry.arrived_at_ns
        counts.latency_ns += latency_ns
        counts.latency.add(latency_ns)
        batches = counts.batches.get(result.batch_size)
        if batches is None:
            batches = counts.batches[result.batch_size] = Batches()
        batches.requests += 1
        batches.run_ns += result.run_ns

    def take(self) -> tuple[Answered, ...]:
        """What there is to tell since the last call."""
        found: list[Answered] = []
        for name, counts in self.applications.items():
            outcomes = counts.outcomes()
            grown = _grown(outcomes, counts.told)
            if grown:
                counts.told = outcomes
                found.append(Answered(name, grown, *counts.latency.take()))
        return tuple(found)

    def take_tenants(self) -> tuple[tuple[str, dict[str, int]], ...]:
        """The same by tenant, of those who have asked for anything since the last call."""
        found: list[tuple[str, dict[str, int]]] = []
        for tenant in self.tenants.values():
            grown = _grown(tenant.outcomes, tenant.told)
            if grown:
                tenant.told = dict(tenant.outcomes)
                found.append((tenant.name, grown))
        return tuple(found)


def _grown(counts: Mapping[str, int], told: Mapping[str, int]) -> dict[str, int]:
    return {
        key: count - told.get(key, 0) for key, count in counts.items() if count > told.get(key, 0)
    }
