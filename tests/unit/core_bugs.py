"""Seeded bugs of the core: each breaks one invariant, and trips the one assert that states it.

A bug is planted as a maintainer might make it: a field that is set in passing, an event that comes
twice, a policy that breaks its promise.
"""

from collections.abc import Callable
from dataclasses import dataclass

from told import Told, advance, make, send

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch, Drop, DropReason, Request, Retry
from fermata.router.core.fairness.admission import Stream, StreamAdmission
from fermata.router.core.fairness.pool import Pool
from fermata.router.core.fairness.shares import FairAdmission
from fermata.router.core.lead import Lead
from fermata.router.core.margins.ratios import RatioWindow
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.time_share import TimeParty
from fermata.router.core.outbox import Outbox
from fermata.router.core.replacement import Successor, replace_sources
from fermata.router.core.slot import Slot


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


@breaks("Intake.on_request", "request.rid not in queued")
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


@breaks("BidMatcher._grant", "held is request")
def request_is_granted_twice() -> None:
    busy(Keeper(), backends=2)


@breaks("BidMatcher._grant", "first.application == batch.requests[-1].application")
def batch_mixes_applications() -> None:
    source = Told()
    engine = make(source, backends=0)
    engine.add_application(source)
    send(engine, 0, application=0)
    send(engine, 1, application=1)
    engine.on_backend_up(0, 0)


@breaks("BidMatcher._grant", "first.expires_at_ns >= now_ns")
def request_is_granted_after_its_limit() -> None:
    source = Told()
    source.ripe_at_ns = ms(200)
    advance(busy(source), ms(250))


@breaks("BidMatcher._grant", "0 < size <= slot.size_max(batch.variant)")
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


# Sources


@breaks("Source.attach", "self.may_run is None or self.may_run")
def source_may_run_nothing() -> None:
    source = Told()
    source.may_run = frozenset()
    make(source)


@breaks("Intake.add_application", "source.number < 0 or source in self.sources")
def source_serves_two_engines() -> None:
    source = Told()
    make(source)
    make(source)


@breaks("Intake.add_application", "len(self.leads) == len(self.runs)")
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
