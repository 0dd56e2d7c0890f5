"""One open request, and the effects of the request table."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from fermata.deployments.frontend.outcomes import Outcome
from fermata.foundation.units import NEVER
from fermata.router.core.events import SequenceStep
from fermata.router.links.messages import Cancel, Payload, QueryPart, Submit


class QueryBond:
    """Whether a router knows a query. Once that router is gone, its parts stand alone."""

    __slots__ = ("home", "is_known", "pipeline", "told")

    def __init__(self, pipeline: str, is_known: bool = True) -> None:
        self.pipeline = pipeline
        self.home = 0
        """The sub-cluster whose router was told of it."""
        self.is_known = is_known
        """The router keeps the query, or will: parts are told as such."""
        self.told = False
        """It has been told of the query."""

    def loosen(self) -> None:
        """The link to the router has ended, or another one leads."""
        self.is_known = self.is_known and not self.told


class PartTicket:
    """A request's part in a query."""

    __slots__ = ("bond", "parent", "stage", "told")

    def __init__(self, bond: QueryBond, stage: int = 0, parent: int = -1) -> None:
        self.bond = bond
        self.stage = stage
        self.parent = parent
        """Request whose result it is made of; -1: it begins the query."""
        self.told = False

    def tell(self, home: int = 0) -> QueryPart | None:
        """Its part as the router of a sub-cluster is told, once: when it comes again, the router
        knows it by its id, or knows nothing of the query. No second router hears of a query."""
        bond = self.bond
        if self.told or not bond.is_known or (bond.told and bond.home != home):
            return None
        self.told = bond.told = True
        bond.home = home
        return QueryPart(bond.pipeline, self.stage, self.parent)

    def on_moved(self, home: int, ran: bool) -> None:
        """The router of a sub-cluster has handed it back, and keeps nothing of its query. A query
        that nothing has run of begins anew at its next home; otherwise all parts stand alone.
        `ran`: it was in a batch."""
        bond = self.bond
        if not bond.told or bond.home != home:
            return
        if self.begins_anew and not ran:
            self.told = bond.told = False
        else:
            bond.is_known = False

    @property
    def begins_anew(self) -> bool:
        """Whether nothing else of its query can have been told."""
        return self.parent < 0


class CallTicket(PartTicket):
    """The part in a query of a call that its function has made."""

    __slots__ = ("begins", "query")

    def __init__(self, bond: QueryBond, stage: int, query: int) -> None:
        super().__init__(bond, stage)
        self.query = query
        self.begins = False
        """The router has heard of the query by it."""

    def tell(self, home: int = 0) -> QueryPart | None:
        # The first one that is told begins the query: those before it may never have been.
        self.begins = not self.bond.told and not self.told
        told = super().tell(home)
        if told is None:
            self.begins = False
            return None
        return QueryPart(told.pipeline, self.stage, -1 if self.begins else self.query, self.query)

    @property
    def begins_anew(self) -> bool:
        # Other calls may run, or may have run.
        return False


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """Terms of a request: its application, time limits, size and constraints."""

    application: str
    slo_ns: int
    hard_limit_ns: int
    size_bytes: int
    """Memory of its input until it is answered."""
    priority: int = 0
    client: int = 0
    left_ns: int = NEVER
    """Time until its gRPC deadline; bounds both the SLO and the hard limit."""
    accuracy_floor: float = 0.0
    """The lowest accuracy of a variant that may answer."""
    pinned: str = ""
    """The only variant that may answer; empty: any."""
    tenant: int = 0
    """Number of the tenant that sent it; 0 without tenants."""
    usual_slo_ns: int = 0
    """SLO of its application, which it may be held for whatever its own is."""
    rows: int = 1
    """Places that it takes in a batch."""
    sequence: SequenceStep | None = None
    """Its part in a sequence; None: it stands alone."""
    part: PartTicket | None = None
    """Its part in a query; None: it stands alone."""


class PendingRequest:
    """A request without an answer. Hot: one for each request."""

    __slots__ = (
        "accuracy_floor",
        "application",
        "arrived_at_ns",
        "client",
        "deadline_ns",
        "estimate",
        "expires_at_ns",
        "fetched_by",
        "home",
        "part",
        "payload",
        "pinned",
        "placed",
        "plan_by_ns",
        "priority",
        "readers",
        "retried",
        "returned_by",
        "rid",
        "rows",
        "sequence",
        "size_bytes",
        "tenant",
        "term",
        "unread",
        "waiting",
    )

    def __init__(
        self, rid: int, terms: RequestTerms, now_ns: int, deadline_ns: int, expires_at_ns: int
    ) -> None:
        self.rid = rid
        self.application = terms.application
        self.client = terms.client
        self.priority = terms.priority
        self.accuracy_floor = terms.accuracy_floor
        self.pinned = terms.pinned
        self.tenant = terms.tenant
        self.size_bytes = terms.size_bytes
        self.rows = terms.rows
        self.sequence = terms.sequence
        self.part = terms.part
        self.arrived_at_ns = now_ns
        self.deadline_ns = deadline_ns
        self.expires_at_ns = expires_at_ns
        self.plan_by_ns = deadline_ns
        """Deadline that the router is told. An input is not held in memory for as long as any
        client likes, so it may come before the client's own."""
        self.home = 0
        """The sub-cluster whose router has it, or will have it."""
        self.term = -1
        """Term of the router it was last submitted to over the present link; -1: none."""
        self.payload: Payload | None = None
        """None while it is being decoded."""
        self.waiting: list[int] = []
        """Backends that asked for the payload before it was ready."""
        self.estimate = -1.0
        """Estimated probability that its answer is right; negative: unknown."""
        self.retried = False
        """A batch of it has failed, or taken its backend down, at a home that it has left."""
        self.fetched_by = -1
        """The backend that has it in a batch; -1: none."""
        self.returned_by = -1
        """The backend that returned it last; -1: none."""
        self.placed = False
        """A router was told where its payload lies, for one backend. That counts as a reader."""
        self.unread = False
        """That router has told no backend, and will not."""
        self.readers = 0
        """Backends that have its payload, or may have it, and have not answered."""

    @property
    def is_told(self) -> bool:
        """Whether a backend may know the place of its payload without having asked."""
        return self.placed and not self.unread

    @property
    def progress(self) -> str:
        """How far it has come, for a client that is told that it expired."""
        if self.payload is None:
            return "its input was still being decoded"
        if self.fetched_by >= 0:
            return "its batch was still running"
        # A backend that knows the place does not say that it has begun.
        return "it was still queued or running" if self.is_told else "it was still queued"

    def tell_place(self) -> Payload | None:
        """The place of its payload for a router; None where it has none, or was told before.

        A second backend has to ask, or nobody would know when both have read it.
        """
        payload = self.payload
        if self.placed or payload is None or not payload.segment:
            return None
        self.placed = True
        self.readers += 1
        return payload

    def submit(self, now_ns: int, reply_ns: int, tells_place: bool) -> Submit:
        """The request as its router gets it, which has the time that the reply does not take."""
        sequence = self.sequence
        return Submit(
            self.rid,
            self.application,
            # After its deadline, but before its hard limit, a request is still served soon.
            max(1, self.plan_by_ns - now_ns - reply_ns),
            max(1, self.expires_at_ns - now_ns - reply_ns),
            self.client,
            self.priority,
            self.accuracy_floor,
            self.pinned,
            self.tenant,
            self.rows,
            self.tell_place() if tells_place else None,
            None if sequence is None else (sequence.key, sequence.start, sequence.end),
            None if self.part is None else self.part.tell(self.home),
            self.retried,
        )


def submit_together(
    now_ns: int, entries: Sequence[PendingRequest], reply_ns: int, tells_places: bool
) -> Submit:
    """Parts of one result at one stage, as their router gets them in one message."""
    first, *others = entries
    beside: list[Payload | int] = []
    for each in others:
        assert each.part is not None
        each.part.tell(each.home)
        place = each.tell_place() if tells_places else None
        beside.append(each.rid if place is None else place)
    submit = first.submit(now_ns, reply_ns, tells_places)
    return msgspec.structs.replace(submit, beside=tuple(beside))


@dataclass(slots=True)
class ToRouter:
    """Send a message to the router of a sub-cluster."""

    message: Submit | Cancel
    home: int = 0


@dataclass(slots=True)
class ToBackend:
    """Send a payload to a backend; the driver copies it if they share no memory."""

    backend: int
    payload: Payload


@dataclass(slots=True)
class SendAnswer:
    """Answer a request, once."""

    rid: int
    outcome: Outcome


@dataclass(slots=True)
class Release:
    """Free the memory of a payload."""

    payload: Payload


Effect = ToRouter | ToBackend | SendAnswer | Release
