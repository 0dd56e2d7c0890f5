"""RankThread: the rank of one sub-cluster (Symphony section 4.5), with its sources and backends."""

from fermata.router.core.costs import Costs
from fermata.router.core.events import Batch
from fermata.router.core.fairness.pool import Pool
from fermata.router.core.lead import Lead
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.lane import Lane
from fermata.router.core.matching.matcher import RULES, BidMatcher, RankRules
from fermata.router.core.matching.standing import Standing
from fermata.router.core.matching.time_share import TimeParty, TimeShares
from fermata.router.core.outbox import Outbox
from fermata.router.core.retries import Retries
from fermata.router.core.source import POOL, Source, SourceTimer, kind_lane, own_lane
from fermata.router.core.timers import Timers


class RankThread(BidMatcher):
    """Sources and backends that come and go, and batches that end. A state machine with timers, no
    thread."""

    __slots__ = (
        "kinds",
        "near",
        "parties",
        "retries",
        "settled_at_ns",
        "shallow",
        "sharers",
        "vacant",
    )

    def __init__(
        self,
        costs: Costs,
        timers: Timers,
        outbox: Outbox,
        leads: list[Lead],
        nodes: dict[int, str],
        near: set[int],
        shallow: set[int],
        rules: RankRules = RULES,
    ) -> None:
        super().__init__(costs, timers, outbox, leads, nodes, rules)
        self.near = near
        """Backends of nodes that requests come from."""
        self.shallow = shallow
        """Backends on which one batch may wait, whatever the rules say."""
        self.vacant: list[int] = []
        """Numbers of sources that have left."""
        self.parties: dict[Source, TimeParty] = {}
        """Parts in the pool's time, where policies share its backends."""
        self.sharers: list[Source] = []
        """Those of them with a lane for each backend of the pool."""
        self.kinds: tuple[int, ...] = ()
        """Kinds of the pool's backends."""
        self.settled_at_ns = 0
        self.retries = Retries()
        self.add_source(self.retries)

    # Sources

    def add_source(self, source: Source) -> None:
        if self.vacant:
            source.number = self.vacant.pop()
        else:
            source.number = len(self.standings)
            self.standings.append({})
        pool = self.lanes[POOL]
        if source.share < 1.0:
            pool.shares = pool.shares or TimeShares()
            lone, share = source.shares_backends, source.share
            party = pool.shares.add(share) if lone else pool.shares.add_to_pool(share)
            self.parties[source] = party
        if not source.owns_backends:
            self._join(source, pool)
        if source.shares_backends:
            self.sharers.append(source)
            for backend in (each.backend for each in pool.members):
                self._join(source, pool, own_lane(backend))
        source.attach(self)
        if self.kinds:
            self._tell_kinds(self.settled_at_ns, source)

    def tell_pool(self, now_ns: int, source: Source) -> None:
        """Tell a source that has come to share the pool of the backends there."""
        for state in [each for each in self.lanes[POOL].members if not each.draining]:
            self.refresh(now_ns, source, source.on_backend(now_ns, state.backend, True))

    def remove_source(self, source: Source) -> None:
        """Forget a source of the pool, with its bid; its queue stays with it."""
        assert not source.owns_backends
        for index in list(self.standings[source.number]):
            self._quit(source, index)
        self.sharers = [each for each in self.sharers if each is not source]
        self.vacant.append(source.number)

    def retire(self, source: Source) -> None:
        """Forget a source for good, with its bids and timers; who waits there is taken over."""
        for index in list(self.standings[source.number]):
            self._quit(source, index)
        # Its number is not given again: whatever of it is still known must reach nobody else.
        number = source.number
        self.timers.disarm_all(
            lambda timer: isinstance(timer, SourceTimer) and timer.source.number == number
        )
        self.sharers = [each for each in self.sharers if each is not source]
        self.parties.pop(source, None)
        source.on_leave()

    def _join(self, source: Source, lane: Lane, index: int | None = None) -> None:
        standing = Standing(self.ask, source, lane, index)
        standing.party = self.parties.get(source)
        standings = self.standings[source.number]
        assert standing.index not in standings, "a source bids once in a lane"
        standings[standing.index] = standing
        lane.join(standing)

    def _quit(self, source: Source, index: int) -> None:
        standing = self.standings[source.number].pop(index)
        self.timers.disarm(standing)
        standing.lane.leave(standing)
        standing.bid = None

    def _tell_kinds(self, now_ns: int, source: Source) -> None:
        """Tell a source of the pool's kinds of backends, where it plans with them."""
        if source.by_kind:
            self._part(source)
        if source.by_kind or source.hears_kinds:
            self.refresh(now_ns, source, source.on_kinds(now_ns, self.kinds))

    def _part(self, source: Source) -> None:
        """Have a source bid for each kind of the pool apart, if there are several."""
        kinds = self.kinds if len(self.kinds) > 1 else ()
        wanted, standings = [kind_lane(kind) for kind in kinds], self.standings[source.number]
        for index in [each for each in standings if each < POOL and each not in wanted]:
            self._quit(source, index)
        for index in wanted:
            if index not in standings:
                self._join(source, self.lanes[POOL], index)

    def _leave(self, source: Source, lane: Lane) -> None:
        assert not lane.members
        for each in (source, self.retries):
            self._quit(each, lane.index)
        del self.lanes[lane.index]

    # Backends

    def add_backend(
        self,
        now_ns: int,
        backend: int,
        kind: int = 0,
        owner: Source | None = None,
        resident: frozenset[int] | None = None,
    ) -> None:
        lane = self._lane_for(backend, owner)
        queued_max = 1 if backend in self.shallow else self.rules.queued_max
        state = BackendState(self.offer, backend, kind, lane, owner, queued_max)
        lane.add(state)
        lane.set_near(state, state.backend in self.near)
        lane.hold(state, resident)
        self.backends[backend] = state
        self._count(now_ns, state, 1)
        self._tell(now_ns, state, up=True)
        self.offer(now_ns, state)

    def _lane_for(self, backend: int, owner: Source | None) -> Lane:
        """The lane of a backend that comes, with those who bid in it."""
        index = POOL if owner is None else own_lane(backend)
        lane = self.lanes.get(index)
        if lane is None:
            lane = self.lanes[index] = Lane(index, self.costs.swap_in_ns)
        if owner is not None:
            self._join(owner, lane)
            self._join(self.retries, lane)
        for sharer in self.sharers if owner is None else ():
            self._join(sharer, lane, own_lane(backend))
        return lane

    def remove_backend(self, now_ns: int, backend: int) -> list[Batch]:
        """Forget a backend; the batches it never ended come back."""
        self.drain(now_ns, backend)
        state = self.backends.pop(backend)
        self.timers.disarm(state)
        self.costs.forget(backend)
        self._part_from(state)
        return state.batches()

    def _part_from(self, state: BackendState) -> None:
        """Take a backend out of its lane, and end the bids for it alone."""
        # First: a bid may wait for it still.
        for sharer in self.sharers if state.owner is None else ():
            self._quit(sharer, own_lane(state.backend))
        state.lane.remove(state)
        if state.owner is not None:
            self._leave(state.owner, state.lane)

    def release(self, now_ns: int, state: BackendState) -> None:
        """Take a backend from its owner, or from the pool; what it has it finishes."""
        if not state.draining:
            state.lane.drain(state)
            self._count(now_ns, state, -1)
        self.timers.disarm(state)
        self._part_from(state)

    def adopt(
        self,
        now_ns: int,
        state: BackendState,
        owner: Source | None,
        resident: frozenset[int] | None,
    ) -> None:
        """Give a backend that was released to another owner; None: to the pool."""
        lane = self._lane_for(state.backend, owner)
        state.lane, state.owner = lane, owner
        lane.add(state)
        lane.set_near(state, state.backend in self.near)
        lane.hold(state, resident)
        if state.draining:
            lane.drain(state)
            return
        self._count(now_ns, state, 1)
        self._tell(now_ns, state, up=True)
        if state.running is None:
            self.offer(now_ns, state)
        else:
            self._offer_ahead(now_ns, state, state.running)

    def drain(self, now_ns: int, backend: int) -> None:
        """Give this backend nothing more; what it has it finishes."""
        state = self.backends[backend]
        if not state.draining:
            state.draining = True
            state.lane.drain(state)
            self._count(now_ns, state, -1)
            self._tell(now_ns, state, up=False)

    def undrain(self, now_ns: int, backend: int) -> None:
        """Have it back that was to be given nothing more; it may still have something to finish."""
        state = self.backends[backend]
        assert state.draining
        state.draining = False
        state.lane.undrain(state)
        self._count(now_ns, state, 1)
        self._tell(now_ns, state, up=True)
        if state.running is None:
            self.offer(now_ns, state)

    def set_resident(self, now_ns: int, backend: int, resident: frozenset[int] | None) -> None:
        """These variants now run on the backend without a swap-in; None: all do."""
        state = self.backends[backend]
        state.lane.hold(state, resident)
        if state.free:
            self.offer(now_ns, state)

    def set_near(self) -> None:
        """Requests come from other nodes now."""
        for backend, state in self.backends.items():
            state.lane.set_near(state, backend in self.near)

    def _tell(self, now_ns: int, state: BackendState, up: bool) -> None:
        # Sources of the pool need not know: they see the number of backends in the signals.
        owner = state.owner
        for source in self.sharers if owner is None else (owner,):
            self.refresh(now_ns, source, source.on_backend(now_ns, state.backend, up))
        if self.retries.of_request:
            self.refresh(now_ns, self.retries, self.lanes_of(owner))

    def pool_of(self, state: BackendState) -> Pool:
        """The pool that a backend belongs to."""
        return self.pool if state.owner is None else state.owner.pool

    def _count(self, now_ns: int, state: BackendState, change: int) -> None:
        """Count on one backend more from now on, or on one less."""
        self.settle(now_ns)
        self.signals.backends += change
        self.pool_of(state).count(now_ns, change)
        assert self.signals.backends == sum(each.up.bit_count() for each in self.lanes.values())
        if state.owner is None:
            self._count_kinds(now_ns)

    def _count_kinds(self, now_ns: int) -> None:
        """Tell those whom it concerns where the pool has other kinds of backends now."""
        pool = self.lanes[POOL]
        kinds = tuple(sorted(kind for kind, each in pool.kinds.items() if each & pool.up))
        if not kinds or kinds == self.kinds:
            return
        self.kinds = kinds
        for standings in self.standings:
            if POOL in standings:
                self._tell_kinds(now_ns, standings[POOL].source)

    def settle(self, now_ns: int) -> None:
        """Bring the backends' uptime up to now."""
        assert now_ns >= self.settled_at_ns
        self.signals.uptime_ns += self.signals.backends * (now_ns - self.settled_at_ns)
        self.settled_at_ns = now_ns

    # Batches

    def finish(self, backend: int, run_ns: int, size: int = -1) -> Batch:
        """The running batch has ended after `run_ns`: learn from it, if so many of it ran."""
        state = self.backends[backend]
        batch = state.running
        assert batch is not None
        state.running = None
        self.signals.busy_ns += run_ns
        self.pool_of(state).busy_ns += run_ns
        if size < 0:
            size = batch.size
        if size > 0 and batch.swap_in_ns > 0:
            # The swap-in is the less certain of the two: its time is learnt, not blamed on the run.
            self.costs.observe_swap(batch.variant, run_ns - batch.expect_ns + batch.swap_in_ns)
        elif size > 0:
            self.costs.observe(batch.variant, state.kind, backend, size, run_ns)
        return batch

    def note_end(self, now_ns: int, backend: int, failed: bool) -> None:
        """A batch has given results there, or none."""
        state = self.backends[backend]
        if failed:
            state.errors += 1
            last_ns = min(state.errors * self.rules.last_ns, self.rules.last_ns_max)
            state.last_until_ns = now_ns + last_ns
        else:
            state.errors = state.last_until_ns = 0
            state.trial = False

    def start_next(self, now_ns: int, backend: int) -> None:
        """Start what waits on the backend, or offer it."""
        state = self.backends[backend]
        assert state.running is None
        if not state.queued:
            state.free_at_ns = now_ns
            self.offer(now_ns, state)
            return
        state.running, ends_at_ns = state.queued.pop(0), now_ns
        for batch in state.batches():
            ends_at_ns = max(ends_at_ns, batch.ready_at_ns) + batch.expect_ns
        state.free_at_ns = ends_at_ns
        self._offer_ahead(now_ns, state, batch)
