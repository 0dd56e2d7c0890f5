"""RankThread: matches ripe bids to backends for one sub-cluster (Symphony section 4.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fermata.router.core.costs import Costs
from fermata.router.core.events import Apart, Batch, Dispatch
from fermata.router.core.lead import Lead
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.lane import Lane
from fermata.router.core.matching.standing import Standing
from fermata.router.core.matching.time_share import TimeParty, TimeShares
from fermata.router.core.pool import Pool
from fermata.router.core.retries import Retries
from fermata.router.core.source import (
    POOL,
    POOL_ONLY,
    Bid,
    Outbox,
    Slot,
    Source,
    SourceContext,
    SourceTimer,
    kind_lane,
    own_lane,
)
from fermata.router.core.timers import Timers


@dataclass(frozen=True, slots=True)
class RankRules:
    """Limits of how a rank offers backends."""

    tries: int = 16
    """Backends that a ripe bid is offered in one go; the next ones have their turn at the next."""
    idle_ns: int = 500_000_000
    """A slow backend on which nothing has run for so long may have recovered."""
    look_again_ns: int = 200_000
    """A bid that is to be ripe sooner than this is given its exact time."""
    last_ns: int = 100_000_000
    """For which a backend whose batch failed comes after its peers, times its errors in a row."""
    last_ns_max: int = 10_000_000_000
    queued_max: int = 2
    """Batches that wait on a backend behind the one that runs. Where these run shorter than their
    lead, a single one would leave the backend idle."""


RULES: Final = RankRules()


class RankThread(SourceContext):
    """Grants backends to ripe bids, smallest key first. A state machine with timers, no thread."""

    __slots__ = (
        "backends",
        "batches",
        "kinds",
        "lanes",
        "nodes",
        "parties",
        "retries",
        "rules",
        "settled_at_ns",
        "shallow",
        "sharers",
        "slot",
        "standings",
        "vacant",
        "waits_ns",
    )

    def __init__(
        self,
        costs: Costs,
        timers: Timers,
        outbox: Outbox,
        leads: list[Lead],
        nodes: dict[int, str],
        shallow: set[int],
        rules: RankRules = RULES,
    ) -> None:
        super().__init__(costs, timers, outbox, leads)
        self.rules = rules
        self.nodes = nodes
        """By backend, where the driver knows them."""
        self.shallow = shallow
        """Backends on which one batch may wait, whatever the rules say."""
        self.backends: dict[int, BackendState] = {}
        self.lanes: dict[int, Lane] = {POOL: Lane(POOL, costs.swap_in_ns)}
        self.standings: list[dict[int, Standing]] = []
        """By the source's number, then by lane."""
        self.vacant: list[int] = []
        """Numbers of sources that have left."""
        self.parties: dict[Source, TimeParty] = {}
        """Parts in the pool's time, where policies share its backends."""
        self.sharers: list[Source] = []
        """Those of them with a lane for each backend of the pool."""
        self.kinds: tuple[int, ...] = ()
        """Kinds of the pool's backends."""
        self.waits_ns: dict[int, float] = {}
        """By the lane of a kind: moving average of how long ripe bids waited there."""
        self.slot = Slot(costs)
        self.batches = 0
        self.settled_at_ns = 0
        self.retries = Retries()
        self.add_source(self.retries)

    def free_backends(self, source: Source, lane: int = POOL) -> int:
        free = self.lanes[POOL].free
        return (free & self.standings[source.number][lane].able()).bit_count() if free else 0

    def free_of_kind(self, source: Source, kind: int) -> int:
        pool = self.lanes[POOL]
        able = self.standings[source.number][POOL].able()
        return (pool.free & pool.kinds.get(kind, 0) & able).bit_count()

    def backends_of_kind(self, kind: int) -> int:
        pool = self.lanes[POOL]
        return (pool.up & pool.kinds.get(kind, 0)).bit_count()

    def wait_ns(self, kind: int) -> float:
        return self.waits_ns.get(kind_lane(kind), 0.0)

    def batches_ahead(self) -> int:
        return self.rules.queued_max

    def backends_for(self, source: Source) -> int:
        standing = self.standings[source.number][POOL]
        return (standing.lane.up & standing.able()).bit_count()

    def serves(self, source: Source) -> bool:
        if source.owns_backends:
            return source.pool.backends > 0
        return self.backends_for(source) > 0

    def free_at_ns(self, backend: int) -> int:
        return self.backends[backend].free_at_ns

    def resident(self, backend: int) -> frozenset[int] | None:
        return self.backends[backend].resident

    def kind(self, backend: int) -> int:
        return self.backends[backend].kind

    def owner(self, backend: int) -> Source | None:
        return self.backends[backend].owner

    def errors(self, backend: int) -> int:
        return self.backends[backend].errors

    def lanes_of(self, owner: Source | None) -> Sequence[int]:
        if owner is None:
            return POOL_ONLY
        return [each.lane.index for each in self.backends.values() if each.owner is owner]

    def runs_elsewhere(
        self, owner: Source | None, backend: int, variant: int, well: bool = False
    ) -> bool:
        return any(
            each.owner is owner
            and each.backend != backend
            and not each.draining
            and not (well and each.errors)
            and self.runs(each.backend, variant)
            for each in self.backends.values()
        )

    def reaches(self, owner: Source | None, variant: int, apart: Apart) -> bool:
        return any(
            each.owner is owner
            and not each.draining
            and each.backend not in apart.avoid
            and self.runs(each.backend, variant)
            for each in self.backends.values()
        )

    def pool_backends(self, variant: int) -> list[int]:
        return [
            each.backend
            for each in self.backends.values()
            if each.owner is None and not each.draining and self.runs(each.backend, variant)
        ]

    def has_idle(self, owner: Source | None) -> bool:
        return any(
            each.owner is owner and each.running is None and not each.draining
            for each in self.backends.values()
        )

    # Sources and their bids

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

    def refresh(self, now_ns: int, source: Source, lanes: Sequence[int]) -> None:
        standings = self.standings[source.number]
        for lane in lanes:
            standing = standings.get(lane)
            if standing is not None and self._place(now_ns, standing):
                self._seek(now_ns, standing)

    def ask(self, now_ns: int, standing: Standing) -> None:
        """Ask a source for its bid, and grant it if it is ripe and there is a backend."""
        if self._place(now_ns, standing):
            self._seek(now_ns, standing)

    def _place(self, now_ns: int, standing: Standing) -> bool:
        """Ask a source for its bid; true if it is ripe, and wants other than it waits for."""
        bid = standing.source.bid(now_ns, standing.index)
        standing.bid = bid
        if bid is None:
            standing.stamp = 0
            standing.ripe_stamp = 0
            return False
        look_at_ns = bid.ripe_at_ns
        ripe = look_at_ns <= now_ns
        if ripe:
            look_at_ns = bid.expires_at_ns + 1
        else:
            standing.ripe_stamp = 0
        if standing.stamp == 0 or standing.armed_at_ns > look_at_ns:
            # Each request that joins makes its batch ripe, and expire, a little earlier. Looking
            # again at three quarters of the way costs a few wake-ups for each batch, and saves a
            # heap entry for each request.
            away_ns = look_at_ns - now_ns
            assert away_ns > 0, "a bid is void from the start, and would be asked for without end"
            if away_ns > self.rules.look_again_ns:
                look_at_ns -= away_ns >> 2
            standing.armed_at_ns = look_at_ns
            self.timers.arm(standing, look_at_ns)
        if not ripe:
            return False
        if standing.ripe_stamp == 0:
            standing.ripe_since_ns = now_ns
        elif standing.key == bid.key and not bid.again:
            return False
        standing.key = bid.key
        return True

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
        state.lane.remove(state)
        if state.owner is not None:
            self._leave(state.owner, state.lane)
        for sharer in self.sharers if state.owner is None else ():
            self._quit(sharer, own_lane(backend))
        return state.batches()

    def release(self, now_ns: int, state: BackendState) -> None:
        """Take a backend from its owner, or from the pool; what it has it finishes."""
        if not state.draining:
            state.lane.drain(state)
            self._count(now_ns, state, -1)
        self.timers.disarm(state)
        state.lane.remove(state)
        if state.owner is not None:
            self._leave(state.owner, state.lane)
        for sharer in self.sharers if state.owner is None else ():
            self._quit(sharer, own_lane(state.backend))

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

    def _offer_ahead(self, now_ns: int, state: BackendState, batch: Batch) -> None:
        """Have the backend offered so early that the next batch, if it is like this one, is there
        when it is free."""
        requests = batch.requests
        lead_ns = self.leads[requests[0].application].ns(len(requests))
        if lead_ns > 0 and len(state.queued) < state.queued_max and not state.trial:
            self.timers.arm(state, max(now_ns + 1, state.free_at_ns - lead_ns))
        else:
            self.timers.disarm(state)

    def offer(self, now_ns: int, state: BackendState) -> None:
        """This backend can be had from now on: offer it to the bids that wait for such a one."""
        overdue = state.running is not None and state.free_at_ns <= now_ns
        if state.draining or len(state.queued) >= state.queued_max or overdue:
            return
        lane, weak = state.lane, self._weak(state)
        if state.running is None and state.last_until_ns > now_ns:
            weak = True
            self.timers.arm(state, state.last_until_ns)
        lane.offer(state, weak)
        declined: list[Standing] = []
        while state.free and (lane.ripe or lane.narrow):
            standing = lane.first_ripe(state)
            if standing is None:
                break
            standing.ripe_stamp = 0
            bid = standing.bid
            assert bid is not None
            lead = self._lead_of(standing.source, bid)
            if bid.expires_at_ns < now_ns:
                self.ask(now_ns, standing)
            elif lead.by_node and self._too_far(now_ns, state, bid, lead):
                declined.append(standing)
            elif self._grant(now_ns, state, standing, bid, lead):
                self.ask(now_ns, standing)
                if standing.index < POOL:
                    self._ask_beside(now_ns, standing)
            else:
                declined.append(standing)
        for standing in declined:
            self._stay(now_ns, standing)

    def _weak(self, state: BackendState) -> bool:
        """Whether it is slower, or has less memory, than its peers."""
        costs, backend = self.costs, state.backend
        return backend in costs.backend_factor or backend in costs.backend_room

    # Matching

    def _seek(self, now_ns: int, standing: Standing) -> None:
        """Offer a ripe bid the backends that can be had and may serve it, one after the other:
        what fits one of them may not fit another. If none takes it, it waits."""
        lane = standing.lane
        standing.ripe_stamp = 0
        declined = 0
        while lane.free and declined < self.rules.tries:
            state = self._first_free(now_ns, standing)
            if state is None:
                standing.passed = 0
                break
            bid = standing.bid
            assert bid is not None
            lead = self._lead_of(standing.source, bid)
            if lead.by_node and self._too_far(now_ns, state, bid, lead):
                standing.passed |= state.bit
                continue
            if self._grant(now_ns, state, standing, bid, lead):
                standing.passed = declined = 0
                if standing.index < POOL:
                    self._ask_beside(now_ns, standing)
                if not self._place(now_ns, standing):
                    return
            else:
                declined += 1
                # A busy, weak or far backend speaks for itself alone.
                alone = state.running is not None or bool(lead.by_node) or self._weak(state)
                standing.passed |= state.bit if alone else lane.no_better(state, standing.source)
        if declined:
            self._stay(now_ns, standing)
        else:
            lane.wait(standing)

    def _ask_beside(self, now_ns: int, standing: Standing) -> None:
        """Ask for a source's bids in the other parts of the pool: its queue is another now."""
        for index, each in list(self.standings[standing.source.number].items()):
            if index < POOL and each is not standing:
                self.ask(now_ns, each)

    def _stay(self, now_ns: int, standing: Standing) -> None:
        """Keep a bid in the race that has handed every slot back, but only for the next one."""
        since_ns = standing.ripe_since_ns
        if self._place(now_ns, standing):
            standing.ripe_since_ns = since_ns
            standing.lane.wait(standing)

    def _first_free(self, now_ns: int, standing: Standing) -> BackendState | None:
        lane, among = standing.lane, standing.able() & ~standing.passed
        while True:
            state = lane.first_free(among)
            if state is None or state.running is None or state.free_at_ns > now_ns:
                return state
            # An overdue backend is not offered a batch that could not start; its end will be.
            lane.withdraw(state)

    def _weigh_refusal(self, now_ns: int, state: BackendState) -> int:
        """It weighs much where whoever was refused has nowhere else to go: in a lane of its own, or
        in a pool that is slow as a whole and idle for it."""
        alone = state.owner is not None
        slow = self.costs.backend_factor
        idle = now_ns - state.free_at_ns >= self.rules.idle_ns
        if not alone and idle and len(slow) >= self.pool.backends:
            pool = [each for each in self.backends.values() if each.owner is None]
            alone = all(each.draining or each.backend in slow for each in pool)
        return self.costs.rules.refusals // 2 if alone else 1

    def _lead_of(self, source: Source, bid: Bid) -> Lead:
        return source.lead if bid.application < 0 else self.leads[bid.application]

    def _too_far(self, now_ns: int, state: BackendState, bid: Bid, lead: Lead) -> bool:
        """Whether inputs would come too late to this backend's node; others may be nearer."""
        there = lead.by_node.get(self.nodes.get(state.backend, ""), lead)
        return now_ns + there.ns(bid.size) - lead.ns(bid.size) > bid.expires_at_ns

    def _learn_wait(self, standing: Standing, waited_ns: int) -> None:
        """Count how long a granted bid was ripe; of those for one kind also by kind."""
        self.signals.on_grant(waited_ns)
        if standing.index < POOL:
            mean_ns = self.waits_ns.get(standing.index, 0.0)
            mean_ns += self.signals.wait_weight * (waited_ns - mean_ns)
            self.waits_ns[standing.index] = mean_ns

    def _grant(
        self, now_ns: int, state: BackendState, standing: Standing, bid: Bid, lead: Lead
    ) -> bool:
        slot = self.slot
        source = standing.source
        if lead.by_node:
            lead = lead.by_node.get(self.nodes.get(state.backend, ""), lead)
        ready_at_ns = now_ns + lead.ns(1)
        start_at_ns = max(ready_at_ns, state.free_at_ns)
        assert state.free
        assert start_at_ns >= now_ns, "a lead is negative"
        slot.offer(state.backend, state.kind, start_at_ns, state.resident)
        if lead.per_request_ns:
            slot.fetch(ready_at_ns, lead.per_request_ns)
        batch = source.grant(now_ns, slot)
        if batch is None:
            if slot.factor != 1.0:
                self.costs.refuse(state.backend, self._weigh_refusal(now_ns, state))
            return False
        state.lane.withdraw(state)
        self._learn_wait(standing, now_ns - standing.ripe_since_ns)
        self.batches += 1
        batch.batch_id = self.batches
        size = batch.size
        assert 0 < size <= slot.size_max(batch.variant)
        batch.ready_at_ns = ready_at_ns
        batch.start_at_ns = start_at_ns
        batch.plan_ns = slot.plan_ns(batch.variant, size)
        if lead.per_request_ns:
            wait_ns = slot.wait_ns(size)
            batch.ready_at_ns += lead.per_request_ns * (size - 1)
            batch.start_at_ns += wait_ns
            batch.plan_ns -= wait_ns
        batch.expect_ns = slot.expect_ns(batch.variant, size)
        if standing.party is not None and state.lane.shares is not None:
            state.lane.shares.charge(standing.party, batch.expect_ns)
        if self.costs.trials:
            self.costs.end_trial(batch.variant)
        batch.swap_in_ns = slot.swap_in_ns(batch.variant)
        if state.resident is not None and batch.variant not in state.resident:
            # The next grant will find it there.
            state.lane.hold(state, frozenset((batch.variant,)))
        state.free_at_ns = batch.start_at_ns + batch.expect_ns
        if state.running is None:
            state.running = batch
        else:
            assert len(state.queued) < state.queued_max
            state.queued.append(batch)
        self._offer_ahead(now_ns, state, batch)
        queued, granted = self.outbox.queued, self.outbox.granted
        first = batch.requests[0]
        assert first.expires_at_ns >= now_ns
        assert first.application == batch.requests[-1].application
        for request in batch.requests:
            rid = request.rid
            held = queued.pop(rid, None)
            assert held is request, "a request is granted once, and only while it is queued"
            granted.add(rid)
        self.outbox.effects.append(Dispatch(state.backend, batch))
        return True
