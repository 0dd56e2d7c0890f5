"""The last minute of a router's counters, for figures that are rates: bad, idle, per second."""

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from fermata.deployments.specs.status import PromiseStatus
from fermata.router.core.events import GOOD
from fermata.router.core.signals import Promise
from fermata.router.telemetry.snapshot import RouterSnapshot

SPAN_S = 60
RECENTLY_NS = 500_000_000


class History:
    """Snapshots of the last minute, one a second; a router that starts anew starts it anew."""

    def __init__(self) -> None:
        self.seen: deque[RouterSnapshot] = deque(maxlen=SPAN_S + 1)

    def add(self, snapshot: RouterSnapshot) -> None:
        if self.seen and self.seen[-1].term != snapshot.term:
            self.seen.clear()
        self.seen.append(snapshot)

    def before(self, now: RouterSnapshot) -> RouterSnapshot | None:
        """The oldest one that can be compared with now."""
        if not self.seen or self.seen[0].term != now.term:
            return None
        return self.seen[0]

    def last(self, now: RouterSnapshot) -> RouterSnapshot | None:
        """The newest one that can be compared with now, at least half a second ago."""
        if self.before(now) is None:
            return None
        older = (each for each in reversed(self.seen) if now.up_ns - each.up_ns > RECENTLY_NS)
        return next(older, None)

    def bad_rates(self, now: RouterSnapshot) -> dict[str, float]:
        """Share of bad answers of each application, over the last minute; 0 where none came."""
        before = self.before(now)
        found: dict[str, float] = {}
        for name, after in now.applications.items():
            good, bad = after.answered.get(GOOD, 0), after.answered_bad
            if before is not None:
                first = before.applications[name]
                good -= first.answered.get(GOOD, 0)
                bad -= first.answered_bad
            found[name] = bad / (good + bad) if good + bad else 0.0
        return found

    def idle_fractions(self, now: RouterSnapshot) -> list[float]:
        """Share of backend time without a batch, of each sub-cluster; 1 where nothing is known."""
        before = self.before(now)
        found: list[float] = []
        for rank, after in enumerate(now.ranks):
            up_ns, busy_ns = after.backend_up_ns, after.backend_busy_ns
            if before is not None:
                up_ns -= before.ranks[rank].backend_up_ns
                busy_ns -= before.ranks[rank].backend_busy_ns
            found.append(min(1.0, max(0.0, 1.0 - busy_ns / up_ns)) if up_ns > 0 else 1.0)
        return found

    def router_busy(self, now: RouterSnapshot) -> float:
        """Share of a core that a router of one sub-cluster takes; 0 where it does not tell."""
        before, cpu_ns, up_ns = self.before(now), now.ranks[0].router_cpu_ns, now.up_ns
        if before is not None:
            cpu_ns -= before.ranks[0].router_cpu_ns
            up_ns -= before.up_ns
        return max(0.0, cpu_ns / up_ns) if up_ns > 0 else 0.0

    def promises(self, now: RouterSnapshot) -> dict[str, PromiseStatus]:
        """Promises of the last minute beside what was observed, where policies promise anything."""
        found: dict[str, PromiseStatus] = {}
        for name, policy in now.policies.items():
            if policy.promise is not None and name in now.applications:
                seconds = list(pairwise([*self.seen, now])) if self.before(now) else []
                found[name] = _kept(name, policy.promise, seconds)
        return found


def _kept(
    name: str, latest: Promise, seconds: Iterable[tuple[RouterSnapshot, RouterSnapshot]]
) -> PromiseStatus:
    """One application's promise and outcome, over the seconds in which there was a promise."""
    requests, right, rated, good, bad = 0, 0.0, 0, 0, 0
    accuracy, violation = 0.0, 0.0
    for before, after in seconds:
        policy = after.policies.get(name)
        if policy is None or policy.promise is None:
            continue
        old, new = before.applications[name], after.applications[name]
        came = new.requests - old.requests
        requests += came
        accuracy += came * policy.promise.accuracy
        violation += came * policy.promise.violation
        right += new.expected_right - old.expected_right
        rated += new.rated - old.rated
        good += new.answered.get(GOOD, 0) - old.answered.get(GOOD, 0)
        bad += new.answered_bad - old.answered_bad
    return PromiseStatus(
        Promise(accuracy / requests, violation / requests) if requests else latest,
        right / rated if rated else None,
        bad / (good + bad) if good + bad else None,
    )
