"""Seeded bugs of backends, of the sets that lanes keep of them, and of bids."""

from core_bugs import Owner, backend, breaks, busy, request, waiting
from told import Told, advance, make, send

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.lane import Lane
from fermata.router.core.matching.matcher import RULES
from fermata.router.core.matching.standing import Standing
from fermata.router.core.slot import Slot
from fermata.router.core.source import POOL, own_lane


class Crowder(Told):
    """Gives a busy backend a batch behind the rank's back."""

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        batch = super().grant(now_ns, slot)
        state = self.engine.backend(slot.backend)
        if state.running is not None and batch is not None:
            state.queued = [batch] * RULES.queued_max
        return batch

    engine: Engine


class Forgetter(Told):
    """Takes its bid back in the midst of a grant."""

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        standing(self.engine, self).bid = None
        return None

    engine: Engine


def standing(engine: Engine, source: Told) -> Standing:
    return engine.ranks[0].standings[source.number][POOL]


# Backends


@breaks("BidMatcher._grant", "state.free")
def busy_backend_is_granted() -> None:
    source = Told()
    engine = busy(source)
    send(engine, 1)
    waits = standing(engine, source)
    assert waits.bid is not None
    engine.ranks[0]._grant(0, backend(engine), waits, waits.bid, engine.leads[0])


@breaks("BidMatcher._grant", "len(state.queued) < state.queued_max")
def too_many_batches_wait_on_a_backend() -> None:
    source = Crowder()
    source.engine = make(source, lead_ns=ms(2))
    send(source.engine, 0)
    send(source.engine, 1)
    advance(source.engine, ms(5))


@breaks("BidMatcher._grant", "start_at_ns >= now_ns")
def lead_is_negative() -> None:
    engine = make(Told())
    engine.leads[0].start_ns = -ms(1)
    send(engine, 0, ms(10))


@breaks("RankThread.start_next", "state.running is None")
def next_batch_starts_beside_the_running_one() -> None:
    busy().ranks[0].start_next(ms(1), 0)


@breaks("Engine.on_backend_up", "backend not in self.backend_rank")
def backend_is_in_two_sub_clusters() -> None:
    engine = Engine(Costs(), ranks=2)
    engine.on_backend_up(0, 0, rank=0)
    engine.on_backend_up(0, 0, rank=1)


@breaks("RankThread.undrain", "state.draining")
def backend_is_given_back_that_never_went() -> None:
    make(Told()).ranks[0].undrain(0, 0)


@breaks("RankThread._count", "self.signals.backends == sum(")
def backend_is_counted_twice() -> None:
    engine = make(Told())
    engine.ranks[0].signals.backends += 1
    engine.on_backend_up(0, 1)


@breaks("RankThread._leave", "not lane.members")
def lane_goes_that_has_a_backend() -> None:
    engine = make(Owner(), backends=0)
    engine.on_backend_up(0, 0, owner=0)
    lane = engine.ranks[0].lanes[own_lane(0)]
    lane.members.append(BackendState(engine.ranks[0].offer, 1, 0, lane, None))
    engine.on_backend_down(0, 0)


# A lane's sets


@breaks("Lane.add", "self.members[at].backend != state.backend")
def backend_is_in_a_lane_twice() -> None:
    make(Told()).ranks[0].add_backend(0, 0)


@breaks("Lane.remove", "state.bit == 1 << at")
def members_are_in_another_order_than_their_bits() -> None:
    engine = make(Told(), backends=2)
    backend(engine).lane.members.reverse()
    engine.on_backend_down(0, 0)


@breaks("_narrow", "backends == ANY or not backends & bit")
def set_keeps_a_backend_that_has_gone() -> None:
    engine = busy()
    backend(engine).lane.weak |= backend(engine).bit
    engine.on_backend_down(0, 0)


@breaks("Lane.undrain", "not self.up & state.bit")
def backend_drains_but_is_counted_on() -> None:
    engine = make(Told())
    backend(engine).draining = True
    engine.ranks[0].undrain(0, 0)


@breaks("Lane.hold", "bool(holders & bit) == (before is not None and variant in before)")
def holders_are_not_told_of_a_load() -> None:
    engine = make(Told())
    backend(engine).resident = frozenset((0,))
    engine.on_resident(0, 0, frozenset())


@breaks("Lane.offer", "self.up & state.bit")
def draining_backend_is_offered() -> None:
    engine = busy()
    engine.on_drain(0, 0)
    backend(engine).draining = False
    engine.on_done(ms(5), 0, ms(5))


@breaks("Lane.offer", "state.running is not None or not state.queued")
def backend_with_a_batch_that_nobody_starts_is_offered() -> None:
    engine = make(Told())
    state = backend(engine)
    state.queued = [Batch(0, [request(1)])]
    state.lane.offer(state, weak=False)


@breaks("Lane.withdraw", "bool(self.free & state.bit) == state.free")
def backend_is_free_in_the_set_only() -> None:
    engine = make(Told())
    backend(engine).free = False
    engine.on_drain(0, 0)


@breaks("Lane.first_free", "state.free")
def busy_backend_is_in_the_set_of_free_ones() -> None:
    engine = busy()
    backend(engine).lane.free |= backend(engine).bit
    send(engine, 1)


@breaks("Lane.no_better", "found & state.bit")
def declined_backend_is_no_peer_of_its_own() -> None:
    source = Told()
    source.may_run, source.declines = frozenset((0,)), {0}
    engine = make(source)
    backend(engine).lane.kinds[0] = 0
    send(engine, 0)


# Bids


@breaks("RipeBids.first", "first[2].key == first[0]")
def bid_changes_its_key_while_it_waits() -> None:
    source = Told()
    engine = waiting(source)
    standing(engine, source).key += 1
    engine.on_backend_up(0, 0)


@breaks("Lane.wait", "standing.lane is self")
def bid_waits_in_another_lane() -> None:
    source = Told()
    Lane(1, ()).wait(standing(waiting(source), source))


@breaks("BidMatcher._place", "away_ns > 0")
def bid_is_void_from_the_start() -> None:
    source = Told()
    source.expires_at_ns = ms(1)
    send(make(source), 0, ms(5))


@breaks("BidMatcher.offer", "bid is not None")
def bid_is_gone_that_waits() -> None:
    source = Told()
    engine = waiting(source)
    standing(engine, source).bid = None
    engine.on_backend_up(0, 0)


@breaks("BidMatcher._seek", "bid is not None")
def bid_is_gone_between_two_offers() -> None:
    source = Forgetter()
    source.engine = make(source, backends=2)
    send(source.engine, 0)


@breaks("Signals.on_grant", "waited_ns >= 0")
def bid_is_ripe_since_later() -> None:
    source = Told()
    engine = waiting(source)
    standing(engine, source).ripe_since_ns = ms(5)
    engine.on_backend_up(0, 0)
