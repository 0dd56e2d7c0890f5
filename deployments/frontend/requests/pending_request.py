"""One open request, and what the table asks of the world."""

from dataclasses import dataclass

from fermata.deployments.frontend.outcomes import Outcome
from fermata.foundation.units import NEVER
from fermata.router.links.messages import Cancel, Payload, Submit


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """What a client asked for."""

    application: str
    slo_ns: int
    hard_limit_ns: int
    size_bytes: int
    """Memory its input will take until it is answered."""
    priority: int = 0
    client: int = 0
    left_ns: int = NEVER
    """Until its gRPC deadline; bounds both the SLO and the hard limit."""
    accuracy_floor: float = 0.0
    """No variant below it may answer."""
    pinned: str = ""
    """The only variant that may; empty: any."""
    tenant: int = 0
    """Who has sent it, where tenants are known; all its clients share."""


class PendingRequest:
    """A request without an answer. Hot: one for each request."""

    __slots__ = (
        "accuracy_floor",
        "application",
        "arrived_at_ns",
        "client",
        "deadline_ns",
        "epoch",
        "estimate",
        "expires_at_ns",
        "fetched_by",
        "payload",
        "pinned",
        "priority",
        "readers",
        "rid",
        "size_bytes",
        "tenant",
        "waiting",
    )

    def __init__(
        self, rid: int, arrival: RequestTerms, now_ns: int, deadline_ns: int, expires_at_ns: int
    ) -> None:
        self.rid = rid
        self.application = arrival.application
        self.client = arrival.client
        self.priority = arrival.priority
        self.accuracy_floor = arrival.accuracy_floor
        self.pinned = arrival.pinned
        self.tenant = arrival.tenant
        self.size_bytes = arrival.size_bytes
        self.arrived_at_ns = now_ns
        self.deadline_ns = deadline_ns
        self.expires_at_ns = expires_at_ns
        self.epoch = -1
        """Of the router it was last submitted to."""
        self.payload: Payload | None = None
        """None while it is being decoded."""
        self.waiting: list[int] = []
        """Backends that asked for the payload before it was ready."""
        self.estimate = -1.0
        """How likely its answer is thought to be right; negative: unknown."""
        self.fetched_by = -1
        """The backend that has it in a batch; -1 when none has."""
        self.readers = 0
        """How often its payload was handed out and has not been answered for."""


@dataclass(slots=True)
class ToRouter:
    message: Submit | Cancel


@dataclass(slots=True)
class ToBackend:
    """The payload as this process holds it; the driver copies it where memory is not shared."""

    backend: int
    payload: Payload


@dataclass(slots=True)
class SendAnswer:
    """The one end of a request."""

    rid: int
    outcome: Outcome


@dataclass(slots=True)
class Release:
    """Nobody needs this payload any more."""

    payload: Payload


Effect = ToRouter | ToBackend | SendAnswer | Release
