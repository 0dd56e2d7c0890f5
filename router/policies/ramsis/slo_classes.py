"""Requests of several SLOs: tables and backends for each (RAMSIS section 6)."""

from collections.abc import Callable, Sequence

from fermata.router.core.events import Batch, Request
from fermata.router.core.signals import Promise
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, Source, SourceContext, own_lane
from fermata.router.policies.family import Family
from fermata.router.policies.ramsis.laws import check_queue
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.source import Ramsis, mean_promise
from fermata.router.policies.ramsis.tables import Made, SolveJob


class SloClasses(Source):
    """One application whose clients differ in SLO.

    A table promises for requests of one SLO alone: those that share a worker with others would
    break each other's promises. So each class has workers and tables of its own, and a request
    goes to the longest SLO that is no longer than what its client asked for.
    """

    owns_backends = True
    respects_client_limits = True

    def __init__(
        self,
        family: Family,
        options: RamsisOptions,
        slos_ns: Sequence[int],
        shares: Sequence[float],
    ) -> None:
        """`slos_ns` ascending, with the share of the backends that each gets."""
        self.slos_ns = list(slos_ns)
        self.shares = list(shares)
        self.members = [Ramsis(family.with_slo(slo_ns), options) for slo_ns in slos_ns]
        self.reply_ns = family.reply_ns
        self.home: dict[int, Ramsis] = {}
        """The class of each backend."""

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        for member in self.members:
            # The rank knows one source; whatever a member's timer changes is that source's.
            member.number = self.number
            member.application = self.application
            if self.shares_backends:
                member.share_backends(self.share)
            member.attach(desk)

    def _member_for(self, request: Request) -> Ramsis:
        left_ns = request.deadline_ns - request.arrived_at_ns
        fitting = [
            member
            for own_ns, member in zip(self.slos_ns, self.members, strict=True)
            if own_ns <= left_ns + self._lost_ns(own_ns)
        ]
        ordered = [*reversed(fitting), *self.members]
        return next((member for member in ordered if member.order), ordered[0])

    def _lost_ns(self, slo_ns: int) -> int:
        """Time that a client's request of this SLO may have lost before it came here: the reply,
        and on its way as much of a client's own timeout, up to 2 %."""
        return self.reply_ns + min(self.reply_ns, slo_ns // 50)

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        return self._member_for(request).on_request(now_ns, request)

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        for member in self.members:
            lanes = member.on_cancel(now_ns, request)
            if lanes:
                return lanes
        return NO_LANES

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        if up and backend not in self.home:
            held = [len(member.order) for member in self.members]
            self.home[backend] = self.members[poorest(held, self.shares)]
        member = self.home.get(backend)
        if member is None:
            return NO_LANES
        if not up:
            del self.home[backend]
        lanes = list(member.on_backend(now_ns, backend, up))
        if self.home:
            # Requests that wait where no backend is left are served by another class.
            for each in self.members:
                for request in each.stranded.take_all() if not each.order else ():
                    lanes.extend(self.on_request(now_ns, request))
        return lanes

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        member = self.home.get(backend)
        return NO_LANES if member is None else member.on_done(now_ns, backend, batch, run_ns)

    def on_computed(self, now_ns: int, result: object) -> Sequence[int]:
        assert isinstance(result, Made)
        return self._member_of(result.job).on_computed(now_ns, result)

    def on_compute_failed(self, now_ns: int, work: Callable[[], object]) -> Sequence[int]:
        assert isinstance(work, SolveJob)
        return self._member_of(work).on_compute_failed(now_ns, work)

    def _member_of(self, job: SolveJob) -> Ramsis:
        return self.members[self.slos_ns.index(job.slo_ns)]

    def figures(self) -> dict[str, float]:
        """Those of every class, by its SLO."""
        return {
            f"{name}_{slo_ns / 1e6:g}ms": value
            for slo_ns, member in zip(self.slos_ns, self.members, strict=True)
            for name, value in member.figures().items()
        }

    def promise(self, application: int) -> Promise | None:
        """Those of the classes that have requests, by how many."""
        busy = [each for each in self.members if each.rate_rps > 0.0] or self.members
        told = [(each.promise(application), each.rate_rps or 1.0) for each in busy]
        known = [(one, rate_rps) for one, rate_rps in told if one is not None]
        return mean_promise(known) if known and len(known) == len(told) else None

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        member = self.home.get(lane - own_lane(0))
        return None if member is None else member.bid(now_ns, lane)

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        return self.home[slot.backend].grant(now_ns, slot)


def poorest(held: Sequence[int], shares: Sequence[float]) -> int:
    """Which class the next backend goes to."""
    return min(range(len(shares)), key=lambda each: (1 + held[each]) / shares[each])


def share_out(backends: int, shares: Sequence[float]) -> list[int]:
    """How many of the backends each class has once all have come."""
    held = [0] * len(shares)
    for _ in range(backends):
        held[poorest(held, shares)] += 1
    return held


def slos_of(options: RamsisOptions, slo_ns: int) -> list[tuple[int, float]]:
    """Each SLO that the options name, ascending, with its share of the backends; the application's
    own where they name none."""
    if not options.slos_ms:
        return [(slo_ns, 1.0)]
    slos_ns = [round(1e6 * slo_ms) for slo_ms in options.slos_ms]
    shares = options.slo_shares or (1.0,) * len(slos_ns)
    return sorted(
        (slo_ns, share / sum(shares)) for slo_ns, share in zip(slos_ns, shares, strict=True)
    )


def classes_of(family: Family, options: RamsisOptions) -> Source:
    """RAMSIS for the application's own SLO, or for each that the options name."""
    check_queue(options, family.spec.variants)
    if not options.slos_ms:
        return Ramsis(family, options)
    slos_ns, shares = zip(*slos_of(options, family.slo_ns), strict=True)
    return SloClasses(family, options, slos_ns, shares)
