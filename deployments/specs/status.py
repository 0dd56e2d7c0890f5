"""The state of a deployment, as `/status`, `/metrics` and the page show it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from fermata.autoscaler.cost import CostShare
from fermata.foundation.json_types import Json
from fermata.router.core.signals import Promise
from fermata.router.telemetry.snapshot import RouterSnapshot


@dataclass(frozen=True, slots=True)
class AdviceStatus:
    """The autoscaler's last advice for one sub-cluster."""

    target: int
    change: int
    reason: str
    demand: float


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """Autoscaler and placement."""

    dry_run: bool
    advice: list[AdviceStatus]
    plan: Mapping[str, str]
    moved: int
    bill: list[CostShare]
    router_rps_max: float | None = None
    """Requests a second that one of several routers carries, as learnt from their CPU time."""
    routers_needed: int | None = None
    """Sub-clusters that the last epoch's rates need, where their number is not given."""


@dataclass(frozen=True, slots=True)
class ReplanningStatus:
    """The mapping of clients to variants."""

    decisions: int
    decided_ms: float
    failures: int
    trouble: str
    """The last failure; empty while there is none."""


@dataclass(frozen=True, slots=True)
class PromiseStatus:
    """The promise of a policy beside what was observed meanwhile, over the last minute."""

    promised: Promise
    """The mean over the requests that came."""
    accuracy: float | None
    """Of the answers; None while there are none whose accuracy is known."""
    bad_rate: float | None
    """Share of answers that were late or refused; None while there are none."""


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """The router of one sub-cluster, where there are several."""

    sub_cluster: int
    term: int
    pid: int
    address: str
    applications: Mapping[str, float]
    """Applications that live there, each with the share of its requests that it gets."""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """The leading router's snapshot, and figures of the last minute that follow from it."""

    router: RouterSnapshot
    bad_rates: Mapping[str, float]
    """Share of bad answers, by application."""
    idle_fractions: list[float]
    """Share of backend time without a batch, by sub-cluster."""
    scaling: ScalingStatus | None = None
    replanning: ReplanningStatus | None = None
    """None where no policy maps clients."""
    promises: Mapping[str, PromiseStatus] = field(default_factory=dict)
    """By application whose policy promises anything."""
    routers: list[RouterStatus] = field(default_factory=list)
    """Those that answer, where there are several sub-clusters; `router` is then the sum of all."""

    def to_json(self) -> dict[str, Json]:
        """The object that `/status` answers with."""
        told = asdict(self.router)
        told["absent"] = {name: str(why) for name, why in self.router.absent.items()}
        if told["recent"] is None:
            del told["recent"]
        told |= {"bad_rates": dict(self.bad_rates), "idle_fractions": self.idle_fractions}
        told["promises"] = {name: asdict(each) for name, each in self.promises.items()}
        if self.scaling is not None:
            told["scaling"] = asdict(self.scaling)
        if self.replanning is not None:
            told["replanning"] = asdict(self.replanning)
        if self.routers:
            told |= {"routers": [asdict(each) for each in self.routers]}
        return told
