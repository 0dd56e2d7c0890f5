"""Seeded bugs of the core: each breaks one invariant, and trips the one assert that states it.

A bug is planted as a maintainer might make it: a field that is set in passing, an event that comes
twice, a policy that breaks its promise.
"""

from collections.abc import Callable
from dataclasses import dataclass

from told import Told, advance, make, send

from fermata.foundation.units import NEVER, ms
from fermata.router.core.admission import Stream, StreamAdmission
from fermata.router.core.costs import Costs
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch, Drop, DropReason, Request, Retry
from fermata.router.core.lead import Lead
from fermata.router.core.margins.ratios import RatioWindow
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.lane import Lane
from fermata.router.core.matching.rank import RULES
from fermata.router.core.matching.standing import Standing
from fermata.router.core.matching.time_share import TimeParty
from fermata.router.core.pool import Pool
from fermata.router.core.replacement import Successor, replace_sources
from fermata.router.core.shares import FairAdmission
from fermata.router.core.source import POOL, Outbox, Slot, own_lane


@dataclass(frozen=True)
class Bug:
    place: str
    """The function whose assert notices it."""
    condition: str
    """The condition of that assert, as it begins."""
    plant: Callable[[], object]


BUGS: list[Bug] = []


def breaks(place: str, condition: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def enter(plant: Callable[[], object]) -> Callable[[], object]:
        BUGS.append(Bug(place, condition, plant))
        return plant

    return enter


class Owner(Told):
    owns_backends = True


class Keeper(Told):
    """Grants the same requests again and again."""

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        return Batch(self.variant, self.queue[:1])


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


def backend(engine: Engine) -> BackendState:
    return engine.backend(0)


def request(rid: int = 0, deadline_ns: int = ms(100)) -> Request:
    return Request(rid, 0, 0, deadline_ns)


def busy(source: Told | None = None, backends: int = 1) -> Engine:
    """An engine with a batch on its first backend."""
    engine = make(source or Told(), backends=backends)
    send(engine, 0)
    return engine


def waiting(source: Told) -> Engine:
    """An engine without backends, with a bid that waits for one."""
    engine = make(source, backends=0)
    send(engine, 0)
    return engine


def retrying() -> tuple[Engine, Retry]:
    """An engine with a retry that waits."""
    engine = make(Told(), backends=0)
    retry = Retry(
        [request(at, ms(deadline)) for at, deadline in enumerate((10, 20, 200))], 0, -1, True
    )
    engine.ranks[0].retries.add(None, retry)
    return engine, retry


def door(engine: Engine, source: Told, *variants: int) -> FairAdmission:
    fair = FairAdmission(source, variants, ms(100))
    engine.admissions[0] = fair
    return fair


# Requests and batches


@breaks("Engine.on_request", "request.rid not in queued")
def request_comes_twice() -> None:
    engine = waiting(Told())
    send(engine, 0)


@breaks("Engine._queue_again", "request.rid not in self.outbox.queued")
def granted_request_stays_queued() -> None:
    engine = busy()
    running = backend(engine).running
    assert running is not None
    engine.outbox.queued[0] = running.requests[0]
    engine.on_backend_down(0, 0)


@breaks("Outbox.drop", "held is request")
def request_is_dropped_twice() -> None:
    engine = waiting(Told())
    late = engine.outbox.queued[0]
    engine.outbox.drop(late, DropReason.LATE)
    engine.outbox.drop(late, DropReason.LATE)


@breaks("Outbox.answer", "held is request")
def request_is_answered_that_was_granted() -> None:
    engine = busy()
    running = backend(engine).running
    assert running is not None
    engine.outbox.answer(running.requests[0], 0, 1.0)


@breaks("RankThread._grant", "held is request")
def request_is_granted_twice() -> None:
    busy(Keeper(), backends=2)


@breaks("RankThread._grant", "first.application == batch.requests[-1].application")
def batch_mixes_applications() -> None:
    source = Told()
    engine = make(source, backends=0)
    engine.add_application(source)
    send(engine, 0, application=0)
    send(engine, 1, application=1)
    engine.on_backend_up(0, 0)


@breaks("RankThread._grant", "first.expires_at_ns >= now_ns")
def request_is_granted_after_its_limit() -> None:
    source = Told()
    source.ripe_at_ns = ms(200)
    advance(busy(source), ms(250))


@breaks("RankThread._grant", "0 < size <= slot.size_max(batch.variant)")
def batch_is_empty() -> None:
    source = Told()
    source.size_max = 0
    busy(source)


@breaks("Costs.observe", "0 < size <= cost.size_max")
def more_ran_than_were_sent() -> None:
    busy().on_done(ms(5), 0, ms(5), size=17)


@breaks("Engine.on_done", "ended == len(batch.requests)")
def strangers_are_left_out_of_a_batch() -> None:
    busy().on_done(ms(5), 0, ms(5), left_out=[request(7)])


@breaks("RankThread.finish", "batch is not None")
def batch_ends_that_was_never_granted() -> None:
    make(Told()).on_done(0, 0, ms(5))


# Backends


@breaks("RankThread._grant", "state.free")
def busy_backend_is_granted() -> None:
    source = Told()
    engine = busy(source)
    send(engine, 1)
    waits = standing(engine, source)
    assert waits.bid is not None
    engine.ranks[0]._grant(0, backend(engine), waits, waits.bid, engine.leads[0])


@breaks("RankThread._grant", "len(state.queued) < state.queued_max")
def too_many_batches_wait_on_a_backend() -> None:
    source = Crowder()
    source.engine = make(source, lead_ns=ms(2))
    send(source.engine, 0)
    send(source.engine, 1)
    advance(source.engine, ms(5))


@breaks("RankThread._grant", "start_at_ns >= now_ns")
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


@breaks("RankThread._place", "away_ns > 0")
def bid_is_void_from_the_start() -> None:
    source = Told()
    source.expires_at_ns = ms(1)
    send(make(source), 0, ms(5))


@breaks("RankThread.offer", "bid is not None")
def bid_is_gone_that_waits() -> None:
    source = Told()
    engine = waiting(source)
    standing(engine, source).bid = None
    engine.on_backend_up(0, 0)


@breaks("RankThread._seek", "bid is not None")
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


# Sources


@breaks("Source.attach", "self.may_run is None or self.may_run")
def source_may_run_nothing() -> None:
    source = Told()
    source.may_run = frozenset()
    make(source)


@breaks("Engine.add_application", "source.number < 0 or source in self.sources")
def source_serves_two_engines() -> None:
    source = Told()
    make(source)
    make(source)


@breaks("Engine.add_application", "len(self.leads) == len(self.runs)")
def application_has_two_leads() -> None:
    engine = make(Told())
    engine.leads.append(Lead())
    engine.add_application(Told())


@breaks("RankThread._join", "standing.index not in standings")
def two_sources_have_one_number() -> None:
    source = Told()
    engine = make(source)
    engine.ranks[0].vacant.append(source.number)
    engine.add_application(Told())


@breaks("RankThread.remove_source", "not source.owns_backends")
def owner_of_backends_moves() -> None:
    engine = Engine(Costs(), ranks=2)
    engine.add_application(Owner())
    engine.move_application(0, 0, 1)


# Retries


@breaks("Retry.__init__", "requests")
def nobody_is_tried_again() -> None:
    Retry([], 0, 0, complete=True)


@breaks("Retries.add", "request.rid not in self.of_request")
def request_is_tried_again_twice() -> None:
    engine, retry = retrying()
    engine.ranks[0].retries.add(None, Retry(retry.requests[:1], 0, -1, complete=True))


@breaks("Retries._drop_hopeless", "not retry.requests or _first_deadline(retry) > until_ns")
def retries_are_out_of_order() -> None:
    engine, retry = retrying()
    retry.requests.append(retry.requests.pop(1))
    engine.on_time(ms(50))


@breaks("Retries.on_lost", "batch.retry is not None")
def first_try_is_lost_as_a_retry() -> None:
    make(Told()).ranks[0].retries.on_lost(Batch(0, [request()]), began=True)


@breaks("Retries._end", "retry is not None")
def first_try_ends_as_a_retry() -> None:
    make(Told()).ranks[0].retries.on_done(0, 0, Batch(0, [request()]), ms(5))


@breaks("Retries._end_some", "retry.left >= 0")
def retry_ends_twice() -> None:
    engine, retry = retrying()
    batch = Batch(0, retry.requests)
    batch.retry = retry
    for _ in range(2):
        engine.ranks[0].retries.on_done(0, 0, batch, ms(5))


# Time


@breaks("Timers.fire_due", "now_ns >= self.fired_at_ns")
def timers_fire_in_the_past() -> None:
    engine = make(Told())
    engine.on_time(ms(2))
    engine.on_time(ms(1))


@breaks("RankThread.settle", "now_ns >= self.settled_at_ns")
def uptime_shrinks() -> None:
    engine = make(Told())
    engine.ranks[0].settle(ms(2))
    engine.on_backend_up(ms(1), 1)


@breaks("Pool.at", "passed >= 0.0")
def memory_begins_in_the_future() -> None:
    pool = Pool()
    pool.began_at_ns = ms(5)
    pool.at(ms(1))


@breaks("Stream.on_frame", "gap_ns >= 0")
def frame_comes_before_the_last_one() -> None:
    stream = Stream(1, 1.0)
    stream.on_frame(ms(2))
    stream.on_frame(ms(1))


# Queues


def queue(count: int) -> DeadlineQueue:
    requests = DeadlineQueue()
    for rid in range(count):
        requests.push(request(rid, ms(10 + rid)))
    return requests


@breaks("DeadlineQueue.pop_many", "0 <= count <= len(self.items) - self.head")
def batch_is_larger_than_the_queue() -> None:
    queue(2).pop_many(3)


@breaks("DeadlineQueue.pop_from", "self.head < first <= first + count <= len(self.items)")
def batch_begins_behind_the_queue() -> None:
    queue(2).pop_from(1, 2)


@breaks("DeadlineQueue.take", "found")
def stranger_is_chosen_from_a_queue() -> None:
    queue(2).take([request(7)])


# Costs and shares


@breaks("VariantCost.__init__", "min(p50_ns) > 0")
def profile_takes_no_time() -> None:
    Costs().add(0, [0])


@breaks("VariantCost._rewrite", "highest_ns < NO_ROOM_NS")
def batch_takes_longer_than_one_that_does_not_fit() -> None:
    Costs().add(0, [NEVER])


@breaks("RatioWindow._forget_oldest", "len(self.ordered) == len(self.recent)")
def ratio_is_remembered_in_one_order_only() -> None:
    window = RatioWindow()
    window.add(1, 1.0)
    window.ordered.append(2.0)
    window.forget_before(2)


@breaks("StreamAdmission._adjust", "0.0 <= self.shed <= rules.shed_max")
def more_is_shed_than_comes() -> None:
    admission = StreamAdmission(Outbox(), newest=False, weights={})
    admission.shed, admission.offered = 2.0, 10
    admission._adjust(ms(500))


@breaks("Pool.review", "rules.gain_min <= self.gain <= rules.gain_max")
def gain_is_beyond_its_bounds() -> None:
    pool = Pool()
    pool.gain, pool.lost = 9.0, 1000
    pool.review(ms(1))


@breaks("FairAdmission.__init__", "self.lightest > 0.0")
def client_has_no_weight() -> None:
    FairAdmission(Told(), (0,), ms(100), weights={1: 0.0})


@breaks("FairAdmission.on_left", "self.queued > -0.5")
def request_leaves_that_did_not_wait() -> None:
    source = Told()
    door(make(source), source, 0).on_left(request(), "")


@breaks("FairAdmission._look", "self.cost_ns > 0.0")
def application_has_no_variant() -> None:
    source = Told()
    door(make(source), source).admit(0, request())


@breaks("TimeParty.__init__", "0.0 < share <= 1.0")
def party_has_more_than_all_the_time() -> None:
    TimeParty(1, 2.0)


# Replacement


@breaks("replace_sources", "not engine.outbox.effects")
def source_goes_before_its_effects_are_carried_out() -> None:
    engine = make(Told())
    engine.outbox.effects.append(Drop(request(), DropReason.LATE))
    replace_sources(engine, 0, {0: Successor(Told(), None, None)}, {})


@breaks("replace_sources", "all((number in successors for number, each in enumerate(engine.sour")
def source_goes_that_still_serves_another() -> None:
    source = Told()
    engine = make(source)
    engine.add_application(source)
    replace_sources(engine, 0, {0: Successor(Told(), None, None)}, {})
