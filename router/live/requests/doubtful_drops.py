"""Drops for want of backends, while every backend that could have run them is overdue."""

from collections.abc import Iterable
from heapq import heappop, heappush

from fermata.foundation.units import NEVER
from fermata.router.assembly import Assembly
from fermata.router.core.events import Drop, DropReason
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.outbox import FOR_WANT
from fermata.router.live.fleet.fleet import Fleet


class DoubtfulDrops:
    """Holds their answers back until it shows whether these backends are slow or dead.

    The link of a process that was killed may end a quarter of a second later, and until then
    nothing but a batch that does not end tells of it. An answer waits to its deadline at most.
    """

    def __init__(self, built: Assembly, fleet: Fleet) -> None:
        self.engine = built.engine
        self.built = built
        self.fleet = fleet
        self.held: dict[int, Drop] = {}
        """By request."""
        self.rids: dict[int, set[int]] = {}
        """The same requests by application."""
        self.deadlines: list[tuple[int, int]] = []
        """The same requests, the earliest deadline first, and some that are held no longer."""
        self.stale = False
        """A batch has ended, or the plan is another one, since it was looked who is overdue."""
        self.in_time: dict[int, int] = {}
        """By application: a backend that was not overdue the last time."""

    def hold(self, now_ns: int, drop: Drop) -> bool:
        """Whether the answer is to wait; `release` gives it then."""
        request = drop.request
        if drop.reason not in FOR_WANT or now_ns >= request.deadline_ns:
            return False
        # A request that is sent again after its application has gone is handed back at once, which
        # would be a second answer.
        application = request.application
        if application in self.engine.away:
            return False
        # What has been held for the same reason, and nothing that has changed since, tell as much.
        known = self.rids.get(application) and not (self.stale or self.fleet.changed)
        if not known and not self._is_overdue(now_ns, application):
            return False
        self.held[request.rid] = drop
        self.rids.setdefault(application, set()).add(request.rid)
        heappush(self.deadlines, (request.deadline_ns, request.rid))
        return True

    def hand_back(self) -> list[Drop]:
        """Drops of applications that live at other routers now, where they may still be served."""
        taken = self._take(self.engine.away.intersection(self.rids))
        return [Drop(each.request, DropReason.MOVED) for each in taken]

    def release(self, now_ns: int) -> list[Drop]:
        """Drops whose reason is known now, or that can wait no longer."""
        found: list[Drop] = []
        # Time alone ends no batch: whoever was overdue is so still.
        if self.stale or self.fleet.changed:
            self.stale = False
            known = [each for each in self.rids if not self._is_overdue(now_ns, each)]
            found = self._take(known)
        silent: dict[int, bool] = {}
        while self.wake_at_ns() <= now_ns:
            drop = self.held.pop(heappop(self.deadlines)[1])
            application = drop.request.application
            self.rids[application].remove(drop.request.rid)
            if application not in silent:
                silent[application] = self._is_overdue(now_ns, application, plans=2)
            reason = DropReason.NO_BACKEND if silent[application] else drop.reason
            found.append(Drop(drop.request, reason))
        true_reason = self.engine.outbox.true_reason
        return [Drop(each.request, true_reason(each.request, each.reason)) for each in found]

    def wake_at_ns(self) -> int:
        deadlines = self.deadlines
        while deadlines:
            deadline_ns, rid = deadlines[0]
            if rid in self.held and self.held[rid].request.deadline_ns == deadline_ns:
                return deadline_ns
            heappop(deadlines)
        return NEVER

    def _take(self, applications: Iterable[int]) -> list[Drop]:
        """Hold nothing of these applications back any longer."""
        rids = [rid for each in applications for rid in sorted(self.rids.pop(each))]
        return [self.held.pop(rid) for rid in rids]

    def _is_overdue(self, now_ns: int, application: int, plans: int = 1) -> bool:
        """Whether each backend that may run it has a batch that should have ended: one that had so
        many times its planned run time."""
        source = self.engine.sources[application]
        rank, may_run = self.engine.home(source), source.may_run
        family = self.built.families[application].variants
        variants = [each for each in family if may_run is None or each in may_run]
        owner = source if source.owns_backends else None

        def runs_it(state: BackendState) -> bool:
            if state.draining or state.owner is not owner:
                return False
            return any(rank.runs(state.backend, each) for each in variants)

        # In overload every drop asks: one backend answers for all, mostly the same.
        known = rank.backends.get(self.in_time.get(application, -1))
        if known is not None and not _is_late(now_ns, known, plans) and runs_it(known):
            return False
        found = False
        for backend, state in rank.backends.items():
            late = _is_late(now_ns, state, plans)
            if (late and found) or not runs_it(state):
                continue
            if not late:
                self.in_time[application] = backend
                return False
            found = True
        return found


def _is_late(now_ns: int, state: BackendState, plans: int) -> bool:
    running = state.running
    return running is not None and now_ns >= running.start_at_ns + plans * running.plan_ns
