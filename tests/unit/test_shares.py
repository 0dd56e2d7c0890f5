"""Fair shares at the door: what is left, who may have how much of it, and who pays."""

from itertools import count

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.core.fairness.pool import RULES, Pool
from fermata.router.core.fairness.shares import FairAdmission, ShareRules
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions

SLO_NS = ms(100)
RIDS = count(1000)


def make(
    applications: int = 1,
    backends: int = 1,
    weights: dict[int, float] | None = None,
    ranks: int = 1,
) -> tuple[Engine, list[FairAdmission]]:
    """Batches take 10 + 5 b ms: with one backend, 8 of them in half the SLO."""
    costs = Costs()
    engine = Engine(costs, ranks)
    doors: list[FairAdmission] = []
    for application in range(applications):
        costs.add(application, [ms(10 + 5 * size) for size in range(1, 17)])
        source = ModelThread(application, DeferredOptions())
        doors.append(FairAdmission(source, (application,), SLO_NS, weights=weights))
        engine.add_application(source, admission=doors[-1])
    for backend in range(backends):
        engine.on_backend_up(0, backend)
    return engine, doors


def send(
    engine: Engine, number: int, at_ns: int = 0, client: int = 1, application: int = 0, **more: int
) -> int:
    """How many of so many requests are refused."""
    for _ in range(number):
        request = Request(next(RIDS), application, at_ns, at_ns + SLO_NS, client=client, **more)
        engine.on_request(at_ns, request)
    return refused(engine)


def crowd(engine: Engine, door: FairAdmission) -> None:
    """Client 1 has been given what one may have, all alone."""
    send(engine, 1)
    pool = engine.ranks[0].pool
    door.clients[1] = door.used = pool.used = pool.headroom(ShareRules().alone) / 3.0 + 0.1


def refused(engine: Engine) -> int:
    effects = engine.take_effects()
    return sum(isinstance(each, Drop) and each.reason == DropReason.SHED for each in effects)


def test_request_costs_its_part_of_the_largest_batch_that_lets_another_run_too() -> None:
    engine, (door,) = make()
    send(engine, 1)
    # 8 requests take 50 ms, and may start as late as 50 ms before their deadline.
    assert door.cost_ns == ms(50) / 8
    assert door.slack_ns == ms(50)
    assert engine.ranks[0].pool.reserved == pytest.approx(1 / 8)


@pytest.mark.parametrize("slow_first", [False, True])
def test_request_costs_what_backends_of_all_kinds_take_on_average(slow_first: bool) -> None:
    engine, (door,) = make(backends=0)
    # 8 requests take 50 ms on one kind, and 3 of them 60 ms on the other.
    kinds = (1, 0) if slow_first else (0, 1)
    fast, slow = kinds
    engine.costs.add(0, [ms(10 + 5 * size) for size in range(1, 17)], kind=fast)
    engine.costs.add(0, [ms(15 + 15 * size) for size in range(1, 17)], kind=slow)
    engine.on_backend_up(0, 0, kind=fast)
    engine.on_backend_up(0, 1, kind=slow)
    send(engine, 1)
    # With two backends a batch may take 66 ms: 11 in 65 ms here, 3 in 60 ms there.
    served = 11 / ms(65) + 3 / ms(60)
    assert door.cost_ns == pytest.approx(2 / served)
    slack_ns = (11 / ms(65) * ms(35) + 3 / ms(60) * ms(40)) / served
    assert door.slack_ns == pytest.approx(slack_ns, rel=1e-6)


@pytest.mark.parametrize("slow", [0, 1])
def test_kind_that_is_too_slow_for_the_slo_serves_nobody(slow: int) -> None:
    engine, (door,) = make(backends=0)
    engine.costs.add(0, [ms(10 + 5 * size) for size in range(1, 17)], kind=1 - slow)
    engine.costs.add(0, [ms(200 * size) for size in range(1, 17)], kind=slow)
    for backend in range(3):
        engine.on_backend_up(0, backend, kind=int(backend > 0) ^ slow ^ 1)
    send(engine, 1)
    # With three backends a batch may take 75 ms: 13 in 75 ms.
    capable = engine.ranks[0].backends_of_kind(1 - slow)
    assert door.cost_ns == pytest.approx(3 / capable * ms(75) / 13)


def test_rare_slow_runs_make_deadlines_stricter_but_requests_hardly_dearer() -> None:
    engine, (door,) = make()
    # One run in twenty takes twice as long: batches are planned with that, and 3 of them fit.
    for number in range(60):
        run_ns = ms(10 + 5 * 3) * (2 if number % 20 == 0 else 1)
        engine.costs.observe(0, 0, 0, 3, run_ns)
    assert engine.costs.of(0).plan_ns[3] == ms(50)
    send(engine, 1)
    assert door.cost_ns == pytest.approx(1.05 * ms(25) / 3)
    assert door.slack_ns == ms(50)


def test_requests_cost_the_mean_of_two_humps_in_sizes_that_have_not_run_too() -> None:
    engine, (door,) = make()
    # One batch of 1 in three takes twice as long. 7 of them fit with that delay, and none has run.
    for number in range(60):
        engine.costs.observe(0, 0, 0, 1, ms(15) * (2 if number % 3 == 0 else 1))
    assert engine.costs.of(0).plan_ns[5:7] == [ms(50), ms(55)]
    send(engine, 1)
    assert door.cost_ns == pytest.approx(4 / 3 * ms(35) / 5)


def test_nobody_is_refused_at_half_of_what_jittery_backends_can_serve() -> None:
    engine, _ = make()
    for number in range(60):
        engine.costs.observe(0, 0, 0, 3, ms(25) * (2 if number % 20 == 0 else 1))
    pool = engine.ranks[0].pool
    pool.gain = RULES.gain_min
    # 60 requests a second take 25 ms for 3 of them: half of the backend's time. Nobody waits.
    for number in range(600):
        at_ns = number * SECOND // 60
        assert send(engine, 1, at_ns=at_ns) == 0
        for rid in list(engine.outbox.queued):
            engine.on_cancel(at_ns, rid)
        engine.take_effects()


def test_cost_and_slack_are_those_of_the_slo_whatever_a_client_asks_for() -> None:
    engine, (door,) = make()
    for rid, slo_ns in ((1, ms(2)), (2, 6000 * SLO_NS)):
        door.look_at_ns = 0
        engine.on_request(0, Request(rid, 0, 0, slo_ns, client=1))
        assert (door.cost_ns, door.slack_ns) == (ms(50) / 8, ms(50))


def test_who_may_wait_longer_than_the_slo_counts_for_less_in_the_backlog() -> None:
    engine, (door,) = make()
    engine.on_request(0, Request(1, 0, 0, 10 * SLO_NS, client=1))
    assert door.queued == pytest.approx(0.1)
    assert engine.ranks[0].pool.reserved == pytest.approx(0.1 / 8)
    engine.on_cancel(ms(1), 1)
    engine.take_effects()
    assert door.queued == 0
    assert engine.ranks[0].pool.reserved == pytest.approx(0.0)


def test_loss_of_who_asked_for_half_the_slo_does_not_count() -> None:
    engine, (door,) = make()
    pool = engine.ranks[0].pool
    pool.reserved = 1.0
    for rid, slo_ns in ((1, SLO_NS // 2), (2, SLO_NS)):
        request = Request(rid, 0, 0, slo_ns, client=1)
        door.on_queued(request)
        door.on_left(request, DropReason.LATE)
    assert pool.lost == 1


def test_nobody_is_refused_before_there_is_a_backend() -> None:
    engine, _ = make(backends=0)
    assert send(engine, 1000) == 0


def test_burst_is_refused_once_more_wait_than_could_be_served() -> None:
    engine, (door,) = make()
    count = 100
    assert send(engine, count) > 0
    pool = engine.ranks[0].pool
    # Next to nothing is left for the client, nor for its application.
    assert pool.headroom(ShareRules().alone) == pytest.approx(2 * door.used, abs=0.1)
    assert 8 < door.queued < count


def test_client_that_asks_for_little_is_let_in_while_another_is_refused() -> None:
    engine, (door,) = make()
    crowd(engine, door)
    assert send(engine, 1, client=1) == 1
    assert send(engine, 4, client=2) == 0


def test_clients_of_one_tenant_share_as_one() -> None:
    engine, (door,) = make()
    crowd(engine, door)
    door.clients[77] = door.clients.pop(1)
    for client, tenant, reasons in ((1, 0, 0), (2, 77, 1), (3, 77, 1)):
        request = Request(client, 0, 0, SLO_NS, client=client)
        request.tenant = tenant
        engine.on_request(0, request)
        assert refused(engine) == reasons


def test_application_that_asks_for_little_is_let_in_while_another_is_refused() -> None:
    engine, (door, _) = make(applications=2)
    crowd(engine, door)
    assert send(engine, 1, application=0) == 1
    assert send(engine, 4, application=1) == 0


def test_heavier_client_may_have_more() -> None:
    engine, (door,) = make(weights={1: 1.0, 2: 3.0})
    crowd(engine, door)
    door.clients[2] = door.clients[1]
    assert send(engine, 1, client=1) == 1
    assert send(engine, 1, client=2) == 0


def test_highest_priority_goes_before_others_of_its_client() -> None:
    engine, (door,) = make()
    crowd(engine, door)
    before = door.queued
    assert send(engine, 1, client=1) == 1
    assert send(engine, 2, client=1, priority=1) == 0
    assert door.queued == before + 2
    # Not above what the client may have.
    room = engine.ranks[0].pool.headroom(ShareRules().alone) - door.used
    door.urgent[1] = room
    assert send(engine, 1, client=1, priority=1) == 1
    # Nor is it above the application's own share.
    door.used = engine.ranks[0].pool.headroom(ShareRules().alone)
    assert send(engine, 1, client=2, priority=1) == 1


def test_flood_of_the_highest_priority_leaves_room_for_other_clients() -> None:
    engine, _ = make()
    assert send(engine, 100, client=1, priority=1) > 0
    assert send(engine, 4, client=2) == 0


def test_what_was_given_is_forgotten() -> None:
    engine, (door,) = make()
    send(engine, 100)
    pool = engine.ranks[0].pool
    given = pool.used / pool.scale
    pool.at(SECOND)
    assert pool.used / pool.scale == pytest.approx(given / 2.718, rel=0.01)
    # After half a minute the scale begins anew, and clients that have left are forgotten.
    for rid in list(engine.outbox.queued):
        engine.on_cancel(ms(1), rid)
    engine.take_effects()
    assert send(engine, 1, at_ns=40 * SECOND, client=2) == 0
    assert list(door.clients) == [2]
    assert pool.scale == 1.0


def test_who_is_refused_counts_as_demand() -> None:
    engine, (door,) = make()
    crowd(engine, door)
    assert send(engine, 80, client=1) == 80
    # 80 requests of 50 / 8 ms, remembered for a second.
    assert engine.ranks[0].pool.missing(0) == pytest.approx(0.5)


def test_accounts_are_empty_when_all_have_ended() -> None:
    engine, (door,) = make()
    send(engine, 5)
    engine.on_time(engine.wake_at_ns())
    while not engine.outbox.effects:
        engine.on_time(engine.wake_at_ns())
    assert any(isinstance(each, Dispatch) for each in engine.take_effects())
    # Its backend dies: all run again elsewhere, and when nobody is there they are late.
    engine.on_backend_down(ms(60), 0)
    assert door.queued == 5
    engine.on_time(SECOND)
    engine.on_cancel(SECOND, 1_000_000)
    for rid in list(engine.outbox.queued):
        engine.on_cancel(SECOND, rid)
    engine.take_effects()
    assert door.queued == 0
    assert engine.ranks[0].pool.reserved == pytest.approx(0.0)


def test_floor_that_nobody_reaches_leaves_no_trace() -> None:
    engine, (door,) = make()
    engine.runs[0] = frozenset((0,))
    request = Request(1, 0, 0, SLO_NS, client=1)
    request.allowed = frozenset()
    engine.on_request(0, request)
    engine.take_effects()
    assert door.queued == 0


def test_application_that_moves_takes_its_backlog_along() -> None:
    engine, (door,) = make(ranks=2)
    send(engine, 4)
    engine.move_application(ms(1), 0, 1)
    old, new = (rank.pool for rank in engine.ranks)
    assert old.reserved == pytest.approx(0.0)
    assert old.used == pytest.approx(0.0)
    assert new.reserved == pytest.approx(4 * door.cost_ns / door.slack_ns)


def test_what_an_application_was_given_fades_as_its_pool_says() -> None:
    engine, (door, other) = make(applications=2)
    pool = engine.ranks[0].pool
    # Just before the scale begins anew it is largest; then a long silence, and a second one that
    # this application does not see.
    send(engine, 4, at_ns=int(31.9 * SECOND))
    send(engine, 1, at_ns=100 * SECOND, application=1)
    send(engine, 1, at_ns=200 * SECOND, application=1)
    send(engine, 1, at_ns=200 * SECOND + 1)
    assert door.used == pytest.approx(pool.used / 2, rel=0.01)
    assert door.clients[1] == door.used == pytest.approx(other.used, rel=0.01)


def test_idle_application_that_moves_takes_nothing_but_its_own_along() -> None:
    engine, _ = make(applications=2, ranks=2)
    old = engine.ranks[0].pool
    send(engine, 4, at_ns=int(31.9 * SECOND))
    send(engine, 1, at_ns=100 * SECOND, application=1)
    given = old.used
    engine.move_application(100 * SECOND, 0, 1)
    assert old.used == pytest.approx(given)


# The gain


def test_losses_lower_the_gain_and_their_absence_raises_it() -> None:
    pool = Pool()
    pool.backends, pool.reserved = 1, 1.0
    pool.served, pool.lost = 95, 5
    pool.review(SECOND)
    assert pool.gain == pytest.approx(0.95 * RULES.gain_max)
    pool.served, pool.refused = 100, 1
    pool.review(2 * SECOND)
    assert pool.gain == pytest.approx(0.95 * 1.01 * RULES.gain_max)
    pool.served = 100
    pool.review(3 * SECOND)
    assert pool.gain == RULES.gain_max


def test_gain_has_a_floor() -> None:
    pool = Pool()
    for second in range(1, 50):
        pool.served, pool.lost = 10, 90
        pool.review(second * SECOND)
    assert pool.gain == RULES.gain_min


def test_backends_that_all_stand_still_do_not_lower_the_gain() -> None:
    pool = Pool()
    pool.lost = 100
    pool.review(SECOND)
    assert pool.gain == RULES.gain_max


def test_losses_of_a_pool_that_is_not_pressed_have_other_reasons() -> None:
    pool = Pool()
    pool.backends, pool.reserved = 4, 0.5
    pool.on_lost()
    assert pool.lost == 0
