"""When a version that is tried out has shown itself bad. Pure: snapshots in, withdrawals out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fermata.applications.reader import router_names
from fermata.applications.server_options import CanarySpec
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.router.core.events import GOOD
from fermata.router.links.unavailability import UnavailableCause
from fermata.router.telemetry.snapshot import ApplicationSnapshot, RouterSnapshot


@dataclass(slots=True)
class Canaries:
    """Every version on trial, by what the router calls it."""

    tried: Mapping[str, CanarySpec]
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
                reason = reason or _verdict(limits, snapshot.applications[name])
            elif not reason and unavailable.cause is UnavailableCause.WITHDRAWN:
                # By another control plane: the next router has to hear of it from this one.
                reason, told = self.withdrawn[name] = (unavailable.detail, term)
            if reason and told != term:
                # For the next router, should this one not live to hear of it.
                self.withdrawn[name] = (reason, told)
                found[name] = reason
        return found

    def on_told(self, name: str, term: int) -> None:
        """The router of this term has heard of it; until then it is told again."""
        reason, _ = self.withdrawn[name]
        self.withdrawn[name] = (reason, term)


def canaries(config: DeploymentConfig) -> Canaries:
    pairs = zip(router_names(config.applications), config.applications, strict=True)
    return Canaries({name: each.canary for name, each in pairs if each.canary is not None})


def _verdict(limits: CanarySpec, application: ApplicationSnapshot) -> str:
    """Why it has to go; empty where it may stay, or it is too early to say."""
    bad = application.answered_bad
    total = application.answered.get(GOOD, 0) + bad
    if total < limits.requests_min or bad <= limits.bad_rate_max * total:
        return ""
    return f"{bad} of {total} answers were bad, more than bad_rate_max={limits.bad_rate_max:g}"
