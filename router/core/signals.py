"""Signals of the core: how idle, how bad, how long ripe bids waited, what is promised."""

from collections.abc import Sequence
from dataclasses import dataclass

from fermata.router.core.events import Request, is_bad


class ApplicationCount:
    """How the requests of one application have ended so far, and the time that they took."""

    __slots__ = ("busy_ns", "drops", "good", "late", "parts")

    def __init__(self) -> None:
        self.busy_ns = 0
        """Backend time of its batches that have ended."""
        self.good = 0
        self.late = 0
        """Ran, but ended after the deadline."""
        self.drops: dict[str, int] = {}
        self.parts: ApplicationCount | None = None
        """Those among them that are parts of queries; None where it runs no stage."""

    @property
    def direct_good(self) -> int:
        """Good ones that are no part of a query."""
        return self.good - (0 if self.parts is None else self.parts.good)

    @property
    def direct_bad(self) -> int:
        """Bad ones that are no part of a query."""
        return self.bad - (0 if self.parts is None else self.parts.bad)

    @property
    def bad(self) -> int:
        """Ended without a result in time, through no wish of the client's own."""
        return self.late + sum(count for reason, count in self.drops.items() if is_bad(reason))


class Ledger:
    """The account of every request, by application; readers take differences over time."""

    __slots__ = ("applications",)

    def __init__(self) -> None:
        self.applications: list[ApplicationCount] = []

    def open(self) -> None:
        self.applications.append(ApplicationCount())

    def count_parts(self, application: int) -> None:
        """Count parts of queries apart, too: the application runs a stage."""
        self.applications[application].parts = ApplicationCount()

    def on_drop(self, request: Request, reason: str) -> None:
        count = self.applications[request.application]
        count.drops[reason] = count.drops.get(reason, 0) + 1
        if count.parts is not None and request.is_part:
            count.parts.drops[reason] = count.parts.drops.get(reason, 0) + 1

    def on_answer(self, request: Request) -> None:
        count = self.applications[request.application]
        count.good += 1
        if count.parts is not None and request.is_part:
            count.parts.good += 1

    def on_done(self, now_ns: int, requests: Sequence[Request]) -> None:
        applications = self.applications
        for request in requests:
            if request.deadline_ns >= now_ns:
                applications[request.application].good += 1
            else:
                applications[request.application].late += 1
        # A batch has requests of one application.
        parts = applications[requests[0].application].parts if requests else None
        if parts is not None:
            in_time = [each.deadline_ns >= now_ns for each in requests if each.is_part]
            parts.good += sum(in_time)
            parts.late += len(in_time) - sum(in_time)


@dataclass(frozen=True, slots=True)
class Promise:
    """The outcome that a policy expects for the load and the backends there are."""

    accuracy: float
    """Mean accuracy of the answers."""
    violation: float
    """Share of requests that are late or refused."""


class Signals:
    """How one sub-cluster fares; readers take differences over their own windows."""

    __slots__ = (
        "backends",
        "backends_min",
        "busy_ns",
        "demand",
        "grants",
        "uptime_ns",
        "usual_demand",
        "wait_ns",
        "wait_weight",
    )

    def __init__(self, wait_weight: float = 1 / 32) -> None:
        self.wait_weight = wait_weight
        """Weight of the newest grant in `wait_ns`."""
        self.backends = 0
        """Backends up now, those that a source runs by itself among them."""
        self.uptime_ns = 0
        """Backend time, up to when the rank last settled it."""
        self.busy_ns = 0
        """Backend time spent on batches that have ended."""
        self.demand = 0.0
        """Backends needed if every batch were of its model's target size, as sources see it."""
        self.usual_demand = 0.0
        """The same without the margins that deadlines need: what batches take of backends."""
        self.backends_min = 0.0
        """Backends that would just do, were all of them always busy: what autoscalers ask for."""
        self.grants = 0
        self.wait_ns = 0.0
        """Moving average of how long ripe bids waited for a backend."""

    def on_grant(self, waited_ns: int) -> None:
        assert waited_ns >= 0
        self.grants += 1
        self.wait_ns += self.wait_weight * (waited_ns - self.wait_ns)

    def load(self) -> float:
        """Demand over what there is; 1 is full."""
        return self.demand / self.backends if self.backends else 1.0


class SourceDemand:
    """One source's part of its rank's demand."""

    __slots__ = ("backends", "backends_min", "usual")

    def __init__(self) -> None:
        self.backends = 0.0
        self.backends_min = 0.0
        self.usual = 0.0

    def set(
        self,
        signals: Signals,
        backends: float,
        backends_min: float = 0.0,
        usual: float | None = None,
    ) -> None:
        """Replace what the source needed so far; `usual` is without margins, where that is
        known."""
        usual = backends if usual is None else usual
        signals.demand += backends - self.backends
        signals.backends_min += backends_min - self.backends_min
        signals.usual_demand += usual - self.usual
        self.backends, self.backends_min, self.usual = backends, backends_min, usual
