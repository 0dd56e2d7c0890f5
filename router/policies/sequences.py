"""Sequences whose model keeps their state: requests run in order, where the state is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from fermata.foundation.units import NEVER
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Batch, DropReason, EndSession, Request, SequenceStep
from fermata.router.core.sessions.table import (
    ITS_TURN,
    NOWHERE,
    WAITS,
    OpenSequence,
    SessionTable,
    StepEnd,
)
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, Source, SourceTimer, own_lane
from fermata.router.policies.family import Family
from fermata.router.policies.unassigned import Unassigned

SEQUENCES: Final = "sequences"
"""The policy of applications whose models keep state; they have no other."""
IDLE_NS: Final = 60_000_000_000
"""A sequence without a request for so long ends, unless its application says otherwise."""


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """Limits of the sessions of one application."""

    sessions_max: int = 100_000
    """Open sequences; the start of one more is refused."""


class HomeQueue:
    """Requests that run on one backend, at most one of each sequence."""

    __slots__ = ("bid", "lane", "queue")

    def __init__(self, backend: int) -> None:
        self.lane = (own_lane(backend),)
        self.queue = DeadlineQueue()
        self.bid = Bid()


class SequenceQueues(Source):
    """A queue for each backend of the pool. A sequence lives on the backend that it was started on,
    the one with the fewest, until it ends. Requests without one go wherever fewest wait, and to a
    backend that runs out of others. Batches leave as soon as their backend can be had, and mix all
    sequences that live there."""

    shares_backends = True

    def __init__(self, family: Family, options: SequenceOptions) -> None:
        self.variant = family.serving
        self.may_run = frozenset((self.variant,))
        idle_ns = family.spec.sequence_idle_ns or IDLE_NS
        self.sessions: SessionTable[Request] = SessionTable(idle_ns, options.sessions_max)
        self.homes: dict[int, HomeQueue] = {}
        """By backend."""
        self.loose: dict[int, HomeQueue] = {}
        """By request without a sequence, the oldest first: the queue that it waits in."""
        self.leaving: set[int] = set()
        """Backends that are to go, and are given no new sequence."""
        self.stranded = Unassigned(self)
        self.timer = SourceTimer(self)
        """For sessions that are idle."""
        self.moved: list[Request] = []
        """Requests that wait, while their source changes sub-clusters."""
        self.owed: list[int] = []
        """Lanes whose queue has changed while another one was asked for its bid."""

    # Requests

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        step = request.sequence
        if step is None:
            return self._enqueue(request, None)
        self._check_home(now_ns, step.key)
        verdict = self.sessions.enter(now_ns, step, request)
        if self.timer.stamp == 0:
            self.timers.arm(self.timer, self.sessions.wake_at_ns())
        if verdict == WAITS:
            return NO_LANES
        return self._proceed(now_ns, [(request, verdict)])

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        lanes: list[int] = []
        for home in self.homes.values():
            if home.queue.remove(request):
                self.loose.pop(request.rid, None)
                lanes.extend(home.lane)
                break
        if request.sequence is not None:
            found = self.sessions.cancel(now_ns, request.sequence, request)
            lanes.extend(self._proceed(now_ns, found))
        return lanes

    def on_unstarted(self, now_ns: int, step: SequenceStep) -> None:
        self.sessions.void(now_ns, step.key)
        self._tell_closed()

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        return [*self._end(now_ns, batch.requests, StepEnd.RAN), *self._help(backend)]

    def on_failed(self, now_ns: int, backend: int, batch: Batch) -> Sequence[int]:
        return [*self._end(now_ns, batch.requests, StepEnd.BROKEN), *self._help(backend)]

    def on_broken(self, now_ns: int, request: Request) -> Sequence[int]:
        return self._end(now_ns, (request,), StepEnd.BROKEN)

    def _end(self, now_ns: int, requests: Iterable[Request], end: str) -> Sequence[int]:
        lanes: list[int] = []
        for request in requests:
            if request.sequence is not None:
                found = self.sessions.leave(now_ns, request.sequence.key, request, end)
                lanes.extend(self._proceed(now_ns, found))
        return lanes

    def _proceed(self, now_ns: int, found: Sequence[tuple[Request, str]]) -> Sequence[int]:
        """Queue requests whose turn has come, and drop those that have none any more."""
        lanes: list[int] = []
        self._tell_closed()
        for request, verdict in found:
            if verdict != ITS_TURN:
                self.outbox.drop(request, verdict)
                continue
            assert request.sequence is not None
            session = self.sessions.sessions[request.sequence.key]
            if request.expires_at_ns < now_ns + self._alone_ns(request):
                lanes.extend(self._skip(now_ns, request))
            else:
                lanes.extend(self._enqueue(request, session))
        return lanes

    def _skip(self, now_ns: int, request: Request) -> Sequence[int]:
        """Drop a request that there is no time for; its sequence goes on without it."""
        self.drop_late(request, self.variant, request.expires_at_ns)
        return self._end(now_ns, (request,), StepEnd.SKIPPED)

    def _enqueue(self, request: Request, session: OpenSequence[Request] | None) -> Sequence[int]:
        backend = NOWHERE if session is None else session.home
        if backend == NOWHERE:
            backend = self._emptiest(self._wait if session is None else self._load)
            if backend == NOWHERE:
                self.stranded.add(request, self._alone_ns(request))
                return NO_LANES
            if session is not None:
                self.sessions.settle(session, backend)
        home = self.homes.get(backend)
        if home is None:
            home = self.homes[backend] = HomeQueue(backend)
        home.queue.push(request)
        if session is None:
            self.loose[request.rid] = home
        return home.lane

    def _help(self, backend: int) -> Sequence[int]:
        """Give a backend without requests those of other queues that any backend may run."""
        home = self.homes.get(backend)
        # One that drains has no queue any more.
        if not self.loose or home is None or len(home.queue) or backend in self.leaving:
            return NO_LANES
        if not self.desk.runs(backend, self.variant):
            return NO_LANES
        lanes = [*home.lane]
        size_max = self.costs.of(self.variant).size_max
        for rid, other in list(islice(self.loose.items(), size_max)):
            request = self.outbox.queued[rid]
            other.queue.remove(request)
            home.queue.push(request)
            self.loose[rid] = home
            lanes.extend(other.lane)
        return lanes

    def _emptiest(self, load: Callable[[int], tuple[int, int, int]]) -> int:
        """The backend with the least of it; none: `NOWHERE`."""
        able = self.desk.pool_backends(self.variant)
        found = [each for each in able if each not in self.leaving] or able
        return min(found, key=load, default=NOWHERE)

    def _wait(self, backend: int) -> tuple[int, int, int]:
        """Requests that wait there, then whether one runs."""
        home = self.homes.get(backend)
        waiting = 0 if home is None else len(home.queue)
        busy = not self.desk.free_backends(self, own_lane(backend))
        return waiting, int(busy), backend

    def _load(self, backend: int) -> tuple[int, int, int]:
        """Sequences that live there, then requests that wait."""
        home = self.homes.get(backend)
        return self.sessions.at(backend), 0 if home is None else len(home.queue), backend

    # Backends

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        if up:
            lanes = self._take_stranded(now_ns)
            if self.loose and backend not in self.homes:
                self.homes[backend] = HomeQueue(backend)
            return [*lanes, *self._help(backend)]
        self.leaving.discard(backend)
        return self._lose(now_ns, backend)

    def on_plan(self, now_ns: int) -> Sequence[int]:
        lanes: list[int] = []
        moved, self.moved = self.moved, []
        for request in moved:
            if self.outbox.queued.get(request.rid) is request:
                lanes.extend(self.on_request(now_ns, request))
        return lanes

    def on_leave(self) -> None:
        """Give up every session, as their backends stay behind. Requests that wait come along."""
        waiting = [each for each in self.outbox.queued.values() if self._holds(each)]
        self.stranded.take_all()
        self.moved = waiting
        self.sessions = SessionTable(self.sessions.idle_ns, self.sessions.sessions_max)
        self.homes.clear()
        self.loose.clear()
        self.leaving.clear()

    def _holds(self, request: Request) -> bool:
        """Whether a queued request waits here, not among the retries."""
        mine = request.application == self.application
        return mine and not request.retried and request.apart is None

    def _take_stranded(self, now_ns: int) -> Sequence[int]:
        lanes: list[int] = []
        for request in self.stranded.take_all():
            step = request.sequence
            session = None if step is None else self.sessions.sessions[step.key]
            lanes.extend(self._enqueue(request, session))
        return lanes

    def _check_home(self, now_ns: int, key: int) -> None:
        """Lose a session whose model has been unloaded where it was."""
        session = self.sessions.sessions.get(key)
        if session is None or session.home == NOWHERE or session.current is not None:
            return
        if not self.desk.runs(session.home, self.variant):
            self.sessions.settle(session, NOWHERE)
            session.lost = True

    def _lose(self, now_ns: int, backend: int) -> Sequence[int]:
        """Lose the sessions of a backend. Requests that it has been given end with it, or with
        their own answer."""
        home = self.homes.pop(backend, None)
        queued = [] if home is None else home.queue.pop_many(len(home.queue))
        for request in queued:
            self.loose.pop(request.rid, None)
        self.sessions.lose(backend)
        # Its lane too: nothing is bid for there any more.
        lanes: list[int] = [] if home is None else list(home.lane)
        for request in queued:
            if request.sequence is None:
                lanes.extend(self._enqueue(request, None))
            else:
                self.outbox.drop(request, DropReason.SEQUENCE_LOST)
                lanes.extend(self.on_broken(now_ns, request))
        return lanes

    def vacate(self, now_ns: int, backend: int) -> bool:
        self.leaving.add(backend)
        return self.sessions.at(backend) == 0

    def _tell_closed(self) -> None:
        for backend, key in self.sessions.take_closed():
            self.outbox.effects.append(EndSession(backend, self.variant, key))

    # Time, bid and grant

    def on_time(self, now_ns: int) -> Sequence[int]:
        lanes, self.owed = self.owed, []
        lanes.extend(self._end(now_ns, self.stranded.drop_hopeless(now_ns), StepEnd.SKIPPED))
        self.sessions.expire(now_ns)
        self._tell_closed()
        wake_at_ns = self.sessions.wake_at_ns()
        if wake_at_ns != NEVER:
            self.timers.arm(self.timer, max(wake_at_ns, now_ns + 1))
        return lanes

    def _alone_ns(self, request: Request) -> int:
        """Run time of a request alone, from the decision on."""
        lead_ns = self.desk.lead_ns(1, request.application)
        return lead_ns + self.costs.of(self.variant).plan_ns[1]

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        home = self.homes.get(lane - own_lane(0))
        if home is None:
            return None
        self._drop_hopeless(now_ns, home)
        queue, bid = home.queue, home.bid
        if not len(queue):
            return None
        first = queue.first()
        bid.size = min(len(queue), self.costs.of(self.variant).size_max)
        bid.ripe_at_ns = now_ns
        bid.key = bid.expires_at_ns = first.expires_at_ns - self._alone_ns(first)
        return bid

    def _drop_hopeless(self, now_ns: int, home: HomeQueue) -> None:
        queue = home.queue
        while len(queue):
            first = queue.first()
            if first.expires_at_ns >= now_ns + self._alone_ns(first):
                return
            queue.pop()
            self._skip_aside(now_ns, first)

    def _skip_aside(self, now_ns: int, request: Request) -> None:
        """Skip a request while its lane is asked: others hear of the next one right afterwards."""
        self.loose.pop(request.rid, None)
        self.owed.extend(self._skip(now_ns, request))
        if self.owed:
            self.timers.arm(self.timer, now_ns)

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        home = self.homes.get(slot.backend)
        if home is None or not slot.runs(self.variant):
            return None
        queue = home.queue
        while len(queue):
            left_ns = queue.first().expires_at_ns - slot.start_at_ns
            size = slot.size_that_fits(self.variant, left_ns)
            if size:
                requests = queue.pop_many(min(size, len(queue)))
                for request in requests:
                    self.loose.pop(request.rid, None)
                return Batch(self.variant, requests)
            self._skip_aside(now_ns, queue.pop())
        return None

    def figures(self) -> dict[str, float]:
        return {"sequences": float(len(self.sessions))}
