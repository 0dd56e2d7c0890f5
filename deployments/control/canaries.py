"""When a version that is tried out has shown itself bad. Pure: snapshots in, withdrawals out."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt

from fermata.applications.reader import router_names
from fermata.applications.server_options import CanarySpec
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.router.core.events import GOOD
from fermata.router.links.unavailability import UnavailableCause
from fermata.router.telemetry.snapshot import ApplicationSnapshot, RouterSnapshot


@dataclass(frozen=True, slots=True)
class WindowRules:
    """Windows over which a version is judged, beside its whole life."""

    looks: int = 600
    """Looks that are kept, one a second."""
    grow: int = 4
    """Each window has so many times the answers of the one before; the first `requests_min`."""
    deviations: float = 4.0
    """Standard deviations above `bad_rate_max`: windows are judged again at every look, and a
    version that is good enough must not fall to chance."""


@dataclass(slots=True)
class AnswerHistory:
    """Answers of one version, as one router has counted them."""

    rules: WindowRules
    term: int = 0
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """All answers and bad ones at each look, the latest last."""

    def add(self, term: int, total: int, bad: int) -> None:
        if term != self.term or (self.marks and total < self.marks[-1][0]):
            self.term = term
            self.marks.clear()
        self.marks.append((total, bad))
        if len(self.marks) > self.rules.looks:
            self.marks.popleft()

    def windows(self, size: int) -> Iterable[tuple[int, int]]:
        """The last answers and the bad ones of them, in larger and larger windows."""
        total, bad = self.marks[-1]
        for before, bad_before in reversed(self.marks):
            if total - before >= size:
                yield total - before, bad - bad_before
                size = self.rules.grow * (total - before)


@dataclass(slots=True)
class Canaries:
    """Every version on trial, by what the router calls it."""

    tried: Mapping[str, CanarySpec]
    rules: WindowRules = field(default_factory=WindowRules)
    answered: dict[str, AnswerHistory] = field(default_factory=dict)
    withdrawn: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Why, and which router has been told."""

    def judge(self, snapshot: RouterSnapshot) -> dict[str, str]:
        """Versions to be withdrawn now, each with why. A router that starts anew knows of no
        withdrawal, and is told again."""
        term = snapshot.term
        found: dict[str, str] = {}
        for name, limits in self.tried.items():
            reason, told = self.withdrawn.get(name, ("", 0))
            unavailable = snapshot.absent.get(name)
            if unavailable is None:
                reason = reason or self._verdict(name, limits, term, snapshot.applications[name])
            elif not reason and unavailable.cause is UnavailableCause.WITHDRAWN:
                # By another control plane: the next router has to hear of it from this one.
                reason, told = self.withdrawn[name] = (unavailable.detail, term)
            if reason and told != term:
                # For the next router, should this one not live to hear of it.
                self.withdrawn[name] = (reason, told)
                found[name] = reason
        return found

    def _verdict(
        self, name: str, limits: CanarySpec, term: int, application: ApplicationSnapshot
    ) -> str:
        """Why it has to go; empty where it may stay, or it is too early to say."""
        most, bad = limits.bad_rate_max, application.answered_bad
        total = application.answered.get(GOOD, 0) + bad
        history = self.answered.setdefault(name, AnswerHistory(self.rules))
        history.add(term, total, bad)
        if total >= limits.requests_min and bad > most * total:
            return f"{bad} of {total} answers were bad, more than bad_rate_max={most:g}"
        for recent, bad_recent in history.windows(limits.requests_min):
            chance = self.rules.deviations * sqrt(recent * most * (1 - most))
            if bad_recent > most * recent + chance:
                return (
                    f"{bad_recent} of the last {recent} answers were bad, far more than"
                    f" bad_rate_max={most:g}"
                )
        return ""

    def on_told(self, name: str, term: int) -> None:
        """The router of this term has heard of it; until then it is told again."""
        reason, _ = self.withdrawn[name]
        self.withdrawn[name] = (reason, term)


def canaries(config: DeploymentConfig) -> Canaries:
    pairs = zip(router_names(config.served), config.served, strict=True)
    return Canaries({name: each.canary for name, each in pairs if each.canary is not None})
