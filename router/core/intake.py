"""Applications of an engine, and the requests that come for them."""

from collections.abc import Callable, Sequence

from fermata.router.core.costs import Costs
from fermata.router.core.events import Apart, ClientReport, DropReason, Estimate, Request
from fermata.router.core.fairness.admission import Admission
from fermata.router.core.lead import Lead
from fermata.router.core.matching.rank import RankThread
from fermata.router.core.outbox import Outbox
from fermata.router.core.source import POOL_ONLY, Source
from fermata.router.core.timers import Timers


class Intake:
    """Takes requests and news of them, and hands them to the sources of their applications."""

    def __init__(self, costs: Costs, ranks: int = 1) -> None:
        self.costs = costs
        self.timers = Timers()
        self.outbox = Outbox(self._is_unserved)
        self.ledger = self.outbox.ledger
        self.leads: list[Lead] = []
        """By application."""
        self.nodes: dict[int, str] = {}
        """By backend, where the driver knows them."""
        self.near: set[int] = set()
        """Backends of nodes that requests come from."""
        self.shallow: set[int] = set()
        """Backends of an earlier version, which refuse a second batch that waits."""
        known = self.timers, self.outbox, self.leads, self.nodes, self.near, self.shallow
        self.ranks = [RankThread(costs, *known) for _ in range(ranks)]
        self.sources: list[Source] = []
        """By application."""
        self.admissions: list[Admission | None] = []
        """By application; None admits everything at no cost."""
        self.admits = False
        """Some application has one."""
        self.runs: list[frozenset[int] | None] = []
        """By application: variants that any of its requests may meet with; None: its source runs
        each request only on what that request allows."""
        self.away: frozenset[int] = frozenset()
        """Applications that live at other routers: whatever would wait for them is handed back."""

    # Applications

    def add_application(
        self,
        source: Source,
        rank: int = 0,
        admission: Admission | None = None,
        runs: frozenset[int] | None = None,
    ) -> int:
        """Serve one more application from this source; returns its number."""
        self.leads.append(Lead())
        assert source.number < 0 or source in self.sources, "a source belongs to one engine"
        if source.number < 0:
            source.application = len(self.sources)
            self.ranks[rank].add_source(source)
        self.sources.append(source)
        self.admissions.append(admission)
        self.admits = self.admits or admission is not None
        self.runs.append(runs)
        self.ledger.open()
        assert len(self.leads) == len(self.runs) == len(self.ledger.applications)
        return len(self.sources) - 1

    def move_application(self, now_ns: int, application: int, rank: int) -> None:
        """Serve an application from another sub-cluster from now on; whoever is queued goes with
        it, and batches that run where it was end there."""
        source = self.sources[application]
        home = self.ranks[rank]
        if source.desk is home:
            return
        before = source.pool
        source.desk.remove_source(source)
        source.on_leave()
        home.add_source(source)
        admission = self.admissions[application]
        if admission is not None:
            admission.on_move(before)
        source.on_plan(now_ns)
        home.refresh(now_ns, source, POOL_ONLY)

    def set_away(self, now_ns: int, applications: frozenset[int]) -> None:
        """These applications live at other routers from now on. Their queued requests are handed
        back, and so are those that would be queued again; batches that run end here."""
        left, self.away = applications - self.away, applications
        queued = self.outbox.queued.values() if left else ()
        for request in [each for each in queued if each.application in left]:
            self._withdraw(now_ns, request, DropReason.MOVED)

    # Requests

    def on_request(self, now_ns: int, request: Request) -> None:
        application = request.application
        queued = self.outbox.queued
        assert request.rid not in queued
        queued[request.rid] = request
        admission = self.admissions[application]
        if request.allowed is not None and not self._keeps(application, request.allowed):
            if admission is not None:
                admission.on_queued(request)
            self.outbox.drop(request, DropReason.FLOOR)
            self.on_refused(now_ns, request)
            return
        if admission is not None and not self._admit(now_ns, request, admission):
            return
        if request.apart is not None:
            self._queue_apart(now_ns, request, request.apart)
            return
        source = self.sources[application]
        lanes = source.on_request(now_ns, request)
        if lanes:
            source.desk.refresh(now_ns, source, lanes)

    def on_requests(self, now_ns: int, requests: Sequence[Request]) -> None:
        """Requests of one application that come together, and were let in with their query: none
        of them is offered before all are there. None asks for variants."""
        application = requests[0].application
        source, admission = self.sources[application], self.admissions[application]
        changed: dict[int, None] = {}
        apart: dict[int, None] = {}
        for request in requests:
            assert request.application == application
            assert request.rid not in self.outbox.queued
            assert request.allowed is None
            self.outbox.queued[request.rid] = request
            if admission is not None:
                admission.let_in(now_ns, request)
            if request.apart is not None:
                apart.update(dict.fromkeys(self._add_apart(request, request.apart)))
                continue
            changed.update(dict.fromkeys(source.on_request(now_ns, request)))
        source.desk.refresh(now_ns, source, tuple(changed))
        if apart:
            rank = self.home(source)
            rank.refresh(now_ns, rank.retries, tuple(apart))

    def on_refused(self, now_ns: int, request: Request) -> None:
        """A request never reaches its source. Where it would have started a sequence, those that
        follow it belong to none."""
        step = request.sequence
        if step is not None and step.start:
            self.sources[request.application].on_unstarted(now_ns, step)

    def _queue_apart(self, now_ns: int, request: Request, apart: Apart) -> None:
        rank = self.home(self.sources[request.application])
        rank.refresh(now_ns, rank.retries, self._add_apart(request, apart))

    def _add_apart(self, request: Request, apart: Apart) -> Sequence[int]:
        """Have a request wait with others of its kind; returns the lanes to be asked again."""
        source = self.sources[request.application]
        owner = source if source.owns_backends else None
        return self.home(source).retries.add_apart(owner, request, apart)

    def _keeps(self, application: int, allowed: frozenset[int]) -> bool:
        """Whether nothing else can happen to a request than what it allows."""
        runs = self.runs[application]
        return runs is None or runs <= allowed

    def _admit(self, now_ns: int, request: Request, admission: Admission) -> bool:
        reason = admission.admit(now_ns, request)
        if reason is not None:
            self.outbox.drop(request, reason)
            self.on_refused(now_ns, request)
            return False
        older = admission.superseded(request)
        if older is not None:
            self._withdraw(now_ns, older, DropReason.SUPERSEDED)
        return True

    def _is_unserved(self, request: Request) -> bool:
        """Whether no backend is up for a request, or none was when it came."""
        source = self.sources[request.application]
        return request.arrived_at_ns < source.pool.up_since_ns or not source.desk.serves(source)

    def on_cancel(self, now_ns: int, rid: int) -> bool:
        """The client has left; false if the request is not queued any more."""
        return self.withdraw(now_ns, rid, DropReason.CANCELLED)

    def withdraw(self, now_ns: int, rid: int, reason: str) -> bool:
        """End a queued request for a reason of the driver's; false if it is not queued."""
        request = self.outbox.queued.get(rid)
        if request is None:
            return False
        self._withdraw(now_ns, request, reason)
        return True

    def _withdraw(self, now_ns: int, request: Request, reason: str) -> None:
        source = self._holder(request)
        lanes = source.on_cancel(now_ns, request)
        self.outbox.drop(request, reason)
        source.desk.refresh(now_ns, source, lanes)

    def on_update(
        self,
        now_ns: int,
        rid: int,
        accuracies: tuple[float, ...],
        estimate: Estimate | None = None,
    ) -> bool:
        """Evidence for a queued request; false if it came too late to matter."""
        request = self.outbox.queued.get(rid)
        if request is None:
            return False
        request.accuracies = accuracies
        request.estimate = estimate
        source = self._holder(request)
        lanes = source.on_update(now_ns, request)
        source.desk.refresh(now_ns, source, lanes)
        return True

    def _holder(self, request: Request) -> Source:
        """The source that a queued request waits in."""
        if request.retried or request.apart is not None:
            for rank in self.ranks:
                if request.rid in rank.retries.of_request:
                    return rank.retries
        return self.sources[request.application]

    def on_report(self, now_ns: int, application: int, report: ClientReport) -> None:
        """A client of this application has said how fast it sends, and over what network."""
        source = self.sources[application]
        source.desk.refresh(now_ns, source, source.on_report(now_ns, report))

    def on_plan(self, now_ns: int, application: int) -> None:
        source = self.sources[application]
        source.desk.refresh(now_ns, source, source.on_plan(now_ns))

    def on_computed(self, now_ns: int, application: int, result: object) -> None:
        """Take the result of a `Compute` effect of this application's source."""
        source = self.sources[application]
        source.desk.refresh(now_ns, source, source.on_computed(now_ns, result))

    def on_compute_failed(self, now_ns: int, application: int, work: Callable[[], object]) -> None:
        """A `Compute` effect could not be carried out."""
        source = self.sources[application]
        source.desk.refresh(now_ns, source, source.on_compute_failed(now_ns, work))

    def home(self, source: Source) -> RankThread:
        """The sub-cluster that a source is in."""
        return next(rank for rank in self.ranks if rank is source.desk)
