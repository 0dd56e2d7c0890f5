"""Matching of ripe bids to backends (Symphony section 4.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fermata.router.core.costs import Costs
from fermata.router.core.events import Batch, Dispatch
from fermata.router.core.lead import Lead
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.standing import Standing
from fermata.router.core.matching.view import RankView
from fermata.router.core.outbox import Outbox
from fermata.router.core.slot import Slot
from fermata.router.core.source import POOL, Bid, Source
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


class BidMatcher(RankView):
    """Grants backends to ripe bids, smallest key first."""

    __slots__ = ("batches", "nodes", "rules", "slot")

    def __init__(
        self,
        costs: Costs,
        timers: Timers,
        outbox: Outbox,
        leads: list[Lead],
        nodes: dict[int, str],
        rules: RankRules,
    ) -> None:
        super().__init__(costs, timers, outbox, leads)
        self.rules = rules
        self.nodes = nodes
        """By backend, where the driver knows them."""
        self.slot = Slot(costs)
        self.batches = 0

    # Bids

    def batches_ahead(self) -> int:
        return self.rules.queued_max

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
        key, losses = bid.key, standing.losses
        if losses is not None and losses.lost > 0.0:
            key -= self.precedence.ahead_ns(losses)
        if standing.ripe_stamp == 0:
            standing.ripe_since_ns = now_ns
        elif standing.key == key and not bid.again:
            return False
        standing.key = key
        return True

    # Backends that can be had

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

    def _offer_ahead(self, now_ns: int, state: BackendState, batch: Batch) -> None:
        """Have the backend offered so early that the next batch, if it is like this one, is there
        when it is free."""
        requests = batch.requests
        lead_ns = self.leads[requests[0].application].ns(len(requests))
        if lead_ns > 0 and len(state.queued) < state.queued_max and not state.trial:
            self.timers.arm(state, max(now_ns + 1, state.free_at_ns - lead_ns))
        else:
            self.timers.disarm(state)

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

    def _alone(self, now_ns: int, state: BackendState) -> bool:
        """Whether those whom a slow backend does not suit have nowhere else to go: in a lane of its
        own, or in a pool that is slow as a whole and idle for it."""
        alone = state.owner is not None
        slow = self.costs.backend_factor
        idle = now_ns - state.free_at_ns >= self.rules.idle_ns
        if not alone and idle and len(slow) >= self.pool.backends:
            pool = [each for each in self.backends.values() if each.owner is None]
            alone = all(each.draining or each.backend in slow for each in pool)
        return alone

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
            if slot.factor != 1.0 and state.running is None:
                # A batch that runs there tells more than what does not fit behind it.
                self.costs.refuse(state.backend, self._alone(now_ns, state))
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
