"""The last minute of a router's counters, for figures that are rates: bad, idle, per second."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fermata.deployments.frontend.requests.outcome_counts import GOOD
from fermata.deployments.frontend.requests.outcomes import RefusalReason
from fermata.router.core.events import DropReason

SPAN_S = 60
RECENTLY_NS = 500_000_000
NOT_BAD = frozenset(
    (
        GOOD,
        DropReason.CANCELLED,
        RefusalReason.BAD_INPUT,
        RefusalReason.NOT_FOUND,
        RefusalReason.RATE,
    )
)
"""Outcomes that are no fault of the server's."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Good and bad answers."""

    good: int
    bad: int


def answered(application: Mapping[str, Any]) -> Counted:
    """What clients of one application were told so far."""
    outcomes = application["answered"]
    bad = sum(count for outcome, count in outcomes.items() if outcome not in NOT_BAD)
    return Counted(outcomes.get(GOOD, 0), bad)


class History:
    """Snapshots of the last minute, one a second; a router that starts anew starts it anew."""

    def __init__(self) -> None:
        self.seen: deque[Mapping[str, Any]] = deque(maxlen=SPAN_S + 1)

    def add(self, snapshot: Mapping[str, Any]) -> None:
        if self.seen and self.seen[-1]["epoch"] != snapshot["epoch"]:
            self.seen.clear()
        self.seen.append(snapshot)

    def before(self, now: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The oldest one that can be compared with now."""
        if not self.seen or self.seen[0]["epoch"] != now["epoch"]:
            return None
        return self.seen[0]

    def last(self, now: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The newest one that can be compared with now, at least half a second ago."""
        if self.before(now) is None:
            return None
        older = (each for each in reversed(self.seen) if now["up_ns"] - each["up_ns"] > RECENTLY_NS)
        return next(older, None)

    def bad_rates(self, now: Mapping[str, Any]) -> dict[str, float]:
        """Share of bad answers of each application, over the last minute; 0 where none came."""
        before = self.before(now)
        found: dict[str, float] = {}
        for name, application in now["applications"].items():
            after = answered(application)
            first = Counted(0, 0) if before is None else answered(before["applications"][name])
            good, bad = after.good - first.good, after.bad - first.bad
            found[name] = bad / (good + bad) if good + bad else 0.0
        return found

    def idle_fractions(self, now: Mapping[str, Any]) -> list[float]:
        """Share of backend time without a batch, of each sub-cluster; 1 where nothing is known."""
        before = self.before(now)
        found: list[float] = []
        for rank, after in enumerate(now["ranks"]):
            first = {"backend_up_ns": 0, "backend_busy_ns": 0}
            if before is not None:
                first = before["ranks"][rank]
            up_ns = after["backend_up_ns"] - first["backend_up_ns"]
            busy_ns = after["backend_busy_ns"] - first["backend_busy_ns"]
            found.append(min(1.0, max(0.0, 1.0 - busy_ns / up_ns)) if up_ns > 0 else 1.0)
        return found
