"""The seam between policies and the rank: a policy is a source of bids."""

from collections.abc import Callable, Sequence
from typing import Final

from fermata.router.core.costs import Costs
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import (
    Apart,
    Batch,
    ClientReport,
    DropReason,
    Request,
    SequenceStep,
)
from fermata.router.core.fairness.pool import Pool
from fermata.router.core.fairness.precedence import Precedence
from fermata.router.core.lead import Lead
from fermata.router.core.outbox import Outbox
from fermata.router.core.queries.aim import BatchAim
from fermata.router.core.signals import Promise, Signals
from fermata.router.core.slot import Slot
from fermata.router.core.timers import Timer, Timers

POOL: Final = 0
"""The lane of all backends that no source owns."""
POOL_ONLY: Final[tuple[int, ...]] = (POOL,)
NO_LANES: Final[tuple[int, ...]] = ()


def own_lane(backend: int) -> int:
    """The lane of one backend that a source owns."""
    return 1 + backend


def kind_lane(kind: int) -> int:
    """The part of the pool that is of one kind, for sources that bid for each kind apart."""
    return -1 - kind


class Bid:
    """A source's wish for a backend; at most one for each lane. It holds no requests: the batch
    is formed at the grant, when the backend, its start time and its cost are known."""

    __slots__ = ("again", "application", "expires_at_ns", "key", "ripe_at_ns", "size")

    def __init__(self) -> None:
        self.application = -1
        """The one whose turn it is, where its source serves several."""
        self.again = False
        """Handed back for the sake of those who waited: whoever comes may want the same backend, so
        it is offered again at every change."""
        self.size = 0
        self.ripe_at_ns = 0
        """From then on it wants to be granted."""
        self.expires_at_ns = 0
        """After that it is void and the source is asked again."""
        self.key = 0
        """Among ripe bids the smallest wins: the latest start, unless the policy orders itself."""


class SourceTimer(Timer):
    """A source's own timer: a window's end, a slot, a monitor's tick."""

    __slots__ = ("source",)

    def __init__(self, source: "Source") -> None:
        super().__init__()
        self.source = source

    def fire(self, now_ns: int) -> None:
        source = self.source
        source.desk.refresh(now_ns, source, source.on_time(now_ns))


class Source:
    """A policy, or one model's part of it. Every `on_*` returns the lanes whose bid may have
    changed; the rank then asks `bid` for each. May own several applications."""

    owns_backends = False
    """True: one lane for each backend the plan gives it. False: the pool."""
    shares_backends = False
    """True: it has a lane for each backend of the pool, and takes turns there with others."""
    share = 1.0
    """Part of its backends' time that it may count on; less than 1 where it shares them."""
    respects_client_limits = False
    """True: it runs no request on a variant that the request does not allow."""
    tells_demand = False
    """True: it tells how many backends it needs at the least (`SourceDemand`)."""
    by_kind = False
    """True: where the pool has several kinds of backends, it bids for each of them apart."""
    hears_kinds = False
    """True: it bids for all kinds together, and is told which there are."""
    maps_clients = False
    """True: it decides itself which clients are served when not all can be."""
    unused_variants: Sequence[int] = ()
    """Variants that it never runs, since another one is better in every way."""
    choices: tuple[tuple[int, float], ...] = ()
    """Variants that pipelines may choose for it (`aim_at`), with their accuracies, the most
    accurate first; empty: it runs what it runs."""
    number = -1
    """Given by its rank."""
    may_run: frozenset[int] | None = None
    """Variants of which a backend must be able to run one to be offered at all; None: every backend
    is offered. Set before it is attached, and never changed."""
    application = 0
    """Given by its engine; the first where it serves several. Negative: each bid names its own."""

    def share_backends(self, share: float) -> None:
        """Have only this part of the backends' time from now on; called before it is attached."""
        self.share = share
        if self.owns_backends:
            self.owns_backends, self.shares_backends = False, True

    def attach(self, desk: "SourceContext") -> None:
        """Called once, before any event, with what a source may use of its surroundings."""
        assert self.may_run is None or self.may_run, "a source that may run nothing waits for ever"
        self.desk = desk
        self.costs = desk.costs
        self.timers = desk.timers
        self.outbox = desk.outbox
        self.signals = desk.signals
        if self.application >= 0:
            self.lead = desk.leads[self.application]
        self.pool = Pool() if self.owns_backends else desk.pool

    def on_leave(self) -> None:
        """It is about to be attached to another desk: take back what it told this one."""

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        raise NotImplementedError

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        """A queued request is gone; forget it. The engine accounts for it."""
        raise NotImplementedError

    def on_update(self, now_ns: int, request: Request) -> Sequence[int]:
        """Evidence for a queued request has come in (`request.accuracies`)."""
        return NO_LANES

    def on_report(self, now_ns: int, report: ClientReport) -> Sequence[int]:
        """A client has said how fast it sends, and over what network."""
        return NO_LANES

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        return NO_LANES

    def on_failed(self, now_ns: int, backend: int, batch: Batch) -> Sequence[int]:
        """A batch gave no results. It has taken what was expected, as far as anybody learns."""
        return self.on_done(now_ns, backend, batch, batch.expect_ns)

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        """A backend of one of its lanes has come or gone."""
        return NO_LANES

    def on_broken(self, now_ns: int, request: Request) -> Sequence[int]:
        """A request of a sequence that was granted has no result, and is not run again."""
        return NO_LANES

    def on_unstarted(self, now_ns: int, step: SequenceStep) -> None:
        """The request that would have started this sequence was refused on arrival."""

    def vacate(self, now_ns: int, backend: int) -> bool:
        """Begin nothing on a backend that lasts, as it is to go; returns whether it holds nothing
        that lasts any more."""
        return True

    def on_kinds(self, now_ns: int, kinds: tuple[int, ...]) -> Sequence[int]:
        """The pool has backends of these kinds from now on; told to sources that are `by_kind`
        or `hears_kinds`."""
        return NO_LANES

    def on_plan(self, now_ns: int) -> Sequence[int]:
        """Placement, applications or knobs have changed."""
        return NO_LANES

    def on_computed(self, now_ns: int, result: object) -> Sequence[int]:
        """A `Compute` of this source has been carried out."""
        return NO_LANES

    def on_compute_failed(self, now_ns: int, work: Callable[[], object]) -> Sequence[int]:
        """It could not be carried out; ask again, but not at once."""
        return NO_LANES

    def losses(self) -> DeadlineQueue | None:
        """The queue whose losses bring its bids forward (`Precedence`); None: nothing does."""
        return None

    def queued_places(self) -> int:
        """Places that the requests in its queue would take; 0 where it does not tell."""
        return 0

    def aim_at(self, aim: BatchAim) -> None:
        """Form such batches from now on, as a stage of pipelines; sources may know better."""

    def figures(self) -> dict[str, float]:
        """Figures for an operator."""
        return {}

    def promise(self, application: int) -> Promise | None:
        """The outcome that it expects for one of its applications; None where it cannot tell."""
        return None

    def on_time(self, now_ns: int) -> Sequence[int]:
        """A `SourceTimer` of this source is due."""
        return NO_LANES

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        """The wish for a backend of this lane as things stand; drops what has become hopeless."""
        raise NotImplementedError

    def drop_late(self, request: Request, variant: int, until_ns: int, kind: int = 0) -> None:
        """Drop a request that not even a batch of its own could serve by then. A margin that lets
        nothing run is never refuted by a run: where it alone is to blame, it is doubted."""
        cost = self.costs.of(variant, kind)
        lead_ns = self.desk.lead_ns(1, request.application)
        slo_ns = until_ns - request.arrived_at_ns - lead_ns
        rows = min(request.rows, cost.size_max)
        if cost.p50_ns[rows] <= slo_ns < cost.plan_ns[rows]:
            self.costs.relax_margin(variant)
        self.outbox.drop(request, DropReason.LATE)

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        """Form the batch for this slot; None hands the slot back."""
        raise NotImplementedError

    def describe(self) -> dict[str, float]:
        """Counters of its own, for observers."""
        return {}


class SourceContext:
    """The rank as its sources see it."""

    __slots__ = ("costs", "leads", "outbox", "pool", "precedence", "signals", "timers")

    def __init__(
        self, costs: Costs, timers: Timers, outbox: Outbox, leads: list[Lead] | None = None
    ) -> None:
        self.costs = costs
        self.timers = timers
        self.outbox = outbox
        self.signals = Signals()
        self.pool = Pool()
        """The pool of the backends that no source owns."""
        self.precedence = Precedence()
        """Among those who bid for them."""
        self.leads: list[Lead] = [] if leads is None else leads
        """By application, whichever rank serves it."""

    def lead_ns(self, size: int, application: int = 0) -> int:
        """From a decision to the earliest start of a batch of that size: dispatch and fetch."""
        return self.leads[application].ns(size)

    @property
    def lead_start_ns(self) -> int:
        """Where all applications are alike: the part of their lead that every batch has."""
        return self.leads[0].start_ns

    @lead_start_ns.setter
    def lead_start_ns(self, start_ns: int) -> None:
        for lead in self.leads:
            lead.start_ns = start_ns

    @property
    def lead_per_request_ns(self) -> int:
        """The part that comes with each request."""
        return self.leads[0].per_request_ns

    @lead_per_request_ns.setter
    def lead_per_request_ns(self, per_request_ns: int) -> None:
        for lead in self.leads:
            lead.per_request_ns = per_request_ns

    def free_at_ns(self, backend: int) -> int:
        """When a backend is predicted to have ended all it has been given."""
        raise NotImplementedError

    def resident(self, backend: int) -> frozenset[int] | None:
        """Variants that the next batch on a backend will find there; None: every variant."""
        raise NotImplementedError

    def runs(self, backend: int, variant: int) -> bool:
        """Whether a backend has the variant, or can swap it in."""
        held = self.resident(backend)
        return held is None or variant in held or variant in self.costs.swap_in_ns

    def kind(self, backend: int) -> int:
        """Which of the profiles holds on a backend."""
        raise NotImplementedError

    def owner(self, backend: int) -> Source | None:
        """The source that runs a backend by itself; None in the pool."""
        raise NotImplementedError

    def errors(self, backend: int) -> int:
        """Batches in a row that failed on a backend, whoever was to blame."""
        raise NotImplementedError

    def lanes_of(self, owner: Source | None) -> Sequence[int]:
        """The lanes of an owner's backends; None: of the pool."""
        raise NotImplementedError

    def runs_elsewhere(
        self, owner: Source | None, backend: int, variant: int, well: bool = False
    ) -> bool:
        """Whether another backend of this owner may be given the variant; `well`: one whose last
        batch did not fail."""
        raise NotImplementedError

    def reaches(self, owner: Source | None, variant: int, apart: Apart) -> bool:
        """Whether a backend of this owner may run the variant for those who are kept apart."""
        raise NotImplementedError

    def has_idle(self, owner: Source | None) -> bool:
        """Whether a backend of this owner has nothing to do."""
        raise NotImplementedError

    def pool_backends(self, variant: int) -> list[int]:
        """Backends of the pool that may be given the variant."""
        raise NotImplementedError

    def batches_ahead(self) -> int:
        """Batches that may wait on a backend behind the one that runs."""
        raise NotImplementedError

    def backends_for(self, source: Source) -> int:
        """How many backends of the pool may serve this source."""
        raise NotImplementedError

    def serves(self, source: Source) -> bool:
        """Whether any backend that is up may serve this source."""
        raise NotImplementedError

    def free_backends(self, source: Source, lane: int = POOL) -> int:
        """How many of them can be had, at most; in a grant the one offered counts."""
        raise NotImplementedError

    def free_of_kind(self, source: Source, kind: int) -> int:
        """The same of one kind alone."""
        raise NotImplementedError

    def backends_of_kind(self, kind: int) -> int:
        """How many backends of a kind the pool has."""
        raise NotImplementedError

    def wait_ns(self, kind: int) -> float:
        """How long ripe bids have lately waited for a backend of this kind alone."""
        raise NotImplementedError

    def refresh(self, now_ns: int, source: Source, lanes: Sequence[int]) -> None:
        raise NotImplementedError

    def remove_source(self, source: Source) -> None:
        raise NotImplementedError
