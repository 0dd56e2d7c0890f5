"""Deferred batching: what a model's rate, SLO and bursts make of it."""

import pytest
from deferred_bench import Bench

from fermata.foundation.units import NEVER, ms, seconds
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Request
from fermata.router.policies.catalog import POLICIES
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import PUBLISHED, DeferredOptions


@pytest.mark.parametrize(
    ("gap_ms", "slo_ms", "target", "window", "at_once"),
    [
        # 1000 rps, Eqn 2: b + 4 + b <= 41, so 18. Cost per request 22/18 ms; within 2 % from 17.
        (1, 41, 18, 14, 17),
        # 100 rps, Eqn 3: b + 4 + 10 b <= 41, so 3. Cost per request 7/3 ms; within 2 % only 3.
        (10, 41, 3, 2, 3),
        # 10 rps: not even a second request comes in time.
        (100, 41, 1, 1, 1),
        # The profile ends at 32.
        (1, 200, 32, 25, 28),
    ],
)
def test_target_batch_follows_from_rate_and_slo(
    gap_ms: int, slo_ms: int, target: int, window: int, at_once: int
) -> None:
    bench = Bench(backends=8)
    bench.warm_up(ms(gap_ms), ms(slo_ms))
    source = bench.source
    assert (source.target, source.window, source.at_once) == (target, window, at_once)
    demand = 1000 / gap_ms * (4 + target) / target / 1000
    assert bench.engine.ranks[0].signals.demand == pytest.approx(demand)


def test_clients_that_can_wait_for_long_leave_the_window_as_it_is() -> None:
    bench = Bench(backends=8, slo_ns_max=ms(41))
    bench.warm_up(ms(1), seconds(600))
    assert (bench.source.target, bench.source.window) == (18, 14)


def test_efficient_batch_leaves_once_all_of_the_instant_have_arrived() -> None:
    bench = Bench()
    now_ns = bench.warm_up(ms(10), ms(41))
    for _ in range(4):
        bench.send(now_ns, ms(41))
    assert bench.ran == []
    bench.advance(now_ns + 1)
    assert [len(rids) for _, rids in bench.ran] == [4]


def test_smaller_batch_than_efficient_is_held() -> None:
    bench = Bench()
    now_ns = bench.warm_up(ms(10), ms(41))
    bench.send(now_ns, ms(41))
    bench.send(now_ns, ms(41))
    bench.advance(now_ns + ms(33))
    assert bench.ran == []
    bench.advance(now_ns + ms(34))
    assert [len(rids) for _, rids in bench.ran] == [2]


def test_auto_answers_at_once_while_backends_idle() -> None:
    bench = Bench(DeferredOptions(hold="auto"))
    # 100 rps need half of the one backend there is even if each is a batch of its own.
    now_ns = bench.warm_up(ms(10), ms(41))
    assert bench.engine.ranks[0].signals.load() == pytest.approx(0.7 / 3)
    bench.send(now_ns, ms(41))
    bench.advance(now_ns + 1)
    assert len(bench.ran) == 1


def test_auto_holds_under_load() -> None:
    bench = Bench(DeferredOptions(hold="auto"))
    # 1000 rps in batches of 18 need 1.2 backends.
    now_ns = bench.warm_up(ms(1), ms(41))
    bench.send(now_ns, ms(41))
    bench.advance(now_ns + ms(20))
    assert bench.ran == []
    assert bench.source.at_once == 17


@pytest.mark.parametrize(("gap_ms", "slo_ms", "backends"), [(1, 16, 2), (1, 18, 2), (2, 25, 1)])
def test_auto_leaves_with_the_smallest_batch_that_keeps_up(
    gap_ms: int, slo_ms: int, backends: int
) -> None:
    bench = Bench(DeferredOptions(hold="auto"), backends)
    bench.warm_up(ms(gap_ms), ms(slo_ms))
    assert 0.75 < bench.engine.ranks[0].signals.load() < 0.9

    def busy(size: int) -> float:
        return (4 + size) / (size * gap_ms * backends)

    size = bench.source.at_once
    assert busy(size) <= 0.9 < busy(size - 1)


def test_auto_holds_below_full_load_what_cannot_keep_up_alone() -> None:
    bench = Bench(DeferredOptions(hold="auto"), backends=3)
    bench.warm_up(ms(1), ms(41))
    # Full batches of 18 need 0.41 of the backends, single requests 1.67, pairs 1 and threes 0.78.
    assert bench.engine.ranks[0].signals.load() == pytest.approx(22 / 18 / 3)
    assert bench.source.at_once == 3


def tight_bench(options: DeferredOptions, lost: float) -> tuple[Bench, int]:
    """Who comes while a batch of one runs, 5 ms, has no time for it and for a run of its own."""
    bench = Bench(options, backends=1)
    now_ns = bench.warm_up(ms(50), ms(9))
    bench.advance(now_ns + ms(100))
    bench.ran.clear()
    bench.source.queue.lost = lost
    sent_at_ns = now_ns + ms(101)
    bench.send(sent_at_ns, ms(9))
    bench.advance(sent_at_ns + 1)
    return bench, sent_at_ns


def test_auto_holds_where_nobody_can_wait_for_the_next_batch_and_some_are_lost() -> None:
    auto = DeferredOptions(hold="auto")
    assert len(tight_bench(auto, lost=0.0)[0].ran) == 1
    bench, sent_at_ns = tight_bench(auto, lost=0.02)
    # Two take 6 ms of the 9, three 7.
    bench.send(sent_at_ns + ms(1.5), ms(9))
    bench.advance(sent_at_ns + ms(2) - 1)
    assert bench.ran == []
    bench.advance(sent_at_ns + ms(2))
    assert [len(rids) for _, rids in bench.ran] == [2]


def test_nobody_is_held_for_longer_than_a_slower_backend_can_make_good() -> None:
    auto = DeferredOptions(hold="auto")
    bench = Bench(auto, backends=1)
    now_ns = bench.warm_up(ms(50), ms(9))
    bench.source.queue.lost = 0.02
    bench.engine.costs.backend_factor[0] = 1.05
    sent_at_ns = now_ns + ms(101)
    bench.send(sent_at_ns, ms(9))
    bench.advance(sent_at_ns + ms(4))
    # One more would make it 6.3 ms of the 9.
    assert bench.ran[-1] == (sent_at_ns / 1e6 + 2.7, [bench.rid - 1])
    assert bench.dropped == []


def test_only_auto_holds_for_what_was_lost() -> None:
    assert len(tight_bench(DeferredOptions(hold="eager"), lost=0.02)[0].ran) == 1


def test_auto_holds_like_deferred_where_that_is_switched_off() -> None:
    auto = Bench(DeferredOptions(hold="auto", auto_busy=0.0))
    deferred = Bench(DeferredOptions())
    for bench in (auto, deferred):
        bench.warm_up(ms(2), ms(25))
    assert auto.source.at_once == deferred.source.at_once == 7


def test_auto_answers_the_very_first_request_at_once() -> None:
    bench = Bench(DeferredOptions(hold="auto"))
    bench.send(0, ms(40))
    bench.advance(ms(1))
    assert len(bench.ran) == 1


def test_auto_lets_the_last_go_once_nobody_else_comes() -> None:
    bench = Bench(DeferredOptions(hold="auto"))
    now_ns = bench.warm_up(ms(1), ms(41))
    bench.send(now_ns, ms(20_000))
    bench.advance(now_ns + ms(1_900))
    assert bench.ran == []
    bench.advance(now_ns + ms(2_100))
    assert len(bench.ran) == 1


def test_auto_runs_what_waited_for_the_first_backend_at_once() -> None:
    costs = Costs()
    engine = Engine(costs)
    costs.add(0, [ms(30 + 10 * size) for size in range(4)])
    engine.add_application(ModelThread(0, DeferredOptions(hold="auto")))
    for rid, at_ns in enumerate((0, ms(300))):
        engine.on_request(at_ns, Request(rid, 0, at_ns, at_ns + ms(20_000)))
    engine.on_backend_up(ms(800), 0)
    engine.on_time(ms(800) + 1)
    (effect,) = engine.take_effects()
    assert isinstance(effect, Dispatch)
    assert [request.rid for request in effect.batch.requests] == [0, 1]


def test_demand_of_several_models_adds_up() -> None:
    costs = Costs()
    engine = Engine(costs)
    for variant in range(2):
        costs.add(variant, [ms(4 + size) for size in range(1, 33)])
        engine.add_application(ModelThread(variant, DeferredOptions()))
    engine.on_backend_up(0, 0)
    for rid in range(22):
        at_ns = ms(10 * (rid // 2))
        engine.on_request(at_ns, Request(rid, rid % 2, at_ns, at_ns + ms(41)))
    assert engine.ranks[0].signals.demand == pytest.approx(2 * 0.7 / 3)


def test_silent_model_needs_no_backends() -> None:
    bench = Bench()
    bench.warm_up(ms(1), ms(41))
    assert bench.engine.ranks[0].signals.demand == pytest.approx(22 / 18)
    # Two seconds after the last refresh of its rate, at 100 ms.
    bench.advance(ms(2100))
    assert bench.engine.ranks[0].signals.demand == pytest.approx(0.0)


# Bursts


def test_demand_of_a_silent_model_stays_away_when_the_lead_changes() -> None:
    bench = Bench(backends=8)
    bench.warm_up(ms(1), ms(41))
    bench.advance(seconds(3))
    signals = bench.engine.ranks[0].signals
    bench.engine.leads[0].start_ns = ms(5)
    bench.engine.on_plan(seconds(3), 0)
    assert (signals.demand, signals.backends_min) == pytest.approx((0.0, 0.0))
    # What comes then counts by itself, not with a share of what came before.
    bench.send(seconds(3), ms(41))
    assert signals.backends_min < 0.1


def test_demand_of_a_silent_model_stays_away_when_it_moves() -> None:
    bench = Bench(backends=8, ranks=2)
    bench.warm_up(ms(1), ms(41))
    bench.advance(seconds(3))
    for rank in (1, 0):
        bench.engine.move_application(seconds(3), 0, rank)
        for each in bench.engine.ranks:
            found = each.signals.demand, each.signals.backends_min
            assert found == pytest.approx((0.0, 0.0))


def test_burst_that_is_over_is_not_held() -> None:
    bench = Bench(DeferredOptions(efficient=0.0))
    for burst in range(9):
        for _ in range(10):
            bench.send(ms(50 * burst), ms(41))
    # 200 rps, but 20.5 after a lull: waiting for 2 * 4 ms * 20.5 rps is waiting for nobody.
    assert bench.source.at_lull == 1
    assert bench.source.rate.lull_ns == ms(1.25)
    bench.advance(ms(400) + ms(2))
    # Ten came at 400 ms, and when none had come for 1.25 ms they left.
    assert bench.ran[-1] == (401.25, list(range(80, 90)))


def test_steady_arrivals_know_no_lull() -> None:
    bench = Bench()
    bench.warm_up(ms(10), ms(41))
    assert bench.source.at_lull == NEVER


def test_lull_rule_can_be_switched_off() -> None:
    bench = Bench(DeferredOptions(efficient=0.0, lull_beta_lambda=0.0))
    for burst in range(9):
        for _ in range(10):
            bench.send(ms(50 * burst), ms(41))
    assert bench.source.at_lull == NEVER
    assert bench.source.at_once == NEVER


# The paper's rule


def test_published_preset_is_pure_frontrun() -> None:
    options = POLICIES["published"].defaults
    assert options is PUBLISHED
    assert (options.drop_window, options.wait_margin, options.beta_lambda) == (1.0, 0.0, 0.0)
    bench = Bench(options)
    bench.engine.ranks[0].signals.wait_ns = ms(2)
    bench.send(0, ms(40))
    bench.advance(ms(100))
    assert bench.ran == [(34, [0])]


def test_published_preset_holds_efficient_batches_too() -> None:
    bench = Bench(PUBLISHED)
    bench.warm_up(ms(10), ms(41))
    assert bench.source.at_once == NEVER


def test_beta_lambda_rule() -> None:
    bench = Bench(DeferredOptions(beta_lambda=4.0, efficient=0.0))
    # 4 * 4 ms * 1000 rps: with more than 16 requests waiting does not pay.
    bench.warm_up(ms(1), ms(41))
    assert bench.source.at_once == 17


def test_beta_lambda_rule_works_beside_the_others() -> None:
    bench = Bench(DeferredOptions(beta_lambda=1.0))
    bench.warm_up(ms(1), ms(41))
    assert bench.source.at_once == 5


def eager_on_one_backend() -> Engine:
    costs = Costs()
    costs.add(0, [ms(5)])
    engine = Engine(costs)
    engine.add_application(ModelThread(0, DeferredOptions(hold="eager")))
    engine.on_backend_up(0, 0)
    return engine


def test_a_margin_that_lets_nothing_run_is_doubted() -> None:
    engine = eager_on_one_backend()
    for _ in range(40):
        engine.costs.observe(0, 0, 0, 1, ms(50))
    ran = 0
    for rid in range(100):
        now_ns = seconds(1) + rid * ms(30)
        engine.on_request(now_ns, Request(rid, 0, now_ns, now_ns + ms(20)))
        engine.on_time(now_ns + 1)
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                ran += 1
                engine.on_done(now_ns + ms(5), 0, ms(5))
    # Ten times the profile is above the SLO; it is forgotten after forty refusals.
    assert ran >= 50


def test_the_only_backend_is_tried_again_soon_after_it_was_slow() -> None:
    engine = eager_on_one_backend()
    ran: list[bool] = []
    for rid in range(60):
        now_ns = rid * ms(300)
        engine.on_request(now_ns, Request(rid, 0, now_ns, now_ns + ms(20)))
        engine.on_time(now_ns + 1)
        run_ns = ms(40) if 30 <= rid < 40 else ms(5)
        ran.append(any(isinstance(effect, Dispatch) for effect in engine.take_effects()))
        if ran[-1]:
            engine.on_done(now_ns + run_ns, 0, run_ns)
        engine.on_time(now_ns + ms(100))
        engine.take_effects()
    assert all(ran[:30])
    assert not all(ran[30:40])
    # At the pace that it had last nothing could end in time: a few find out that this is over.
    assert all(ran[44:])


def test_a_backend_without_the_model_is_passed_over() -> None:
    costs = Costs()
    costs.add(0, [ms(5)])
    engine = Engine(costs)
    engine.add_application(ModelThread(0, DeferredOptions(hold="eager")))
    engine.on_backend_up(0, 0, resident=frozenset())
    engine.on_backend_up(0, 1)
    engine.on_request(0, Request(0, 0, 0, ms(20)))
    engine.on_time(1)
    assert [effect.backend for effect in engine.take_effects()] == [1]  # type: ignore[attr-defined]


def test_instances_share_their_keys() -> None:
    """CPython shares the keys of instances below 30 attributes; beyond, each access is slower."""
    assert len(vars(Bench().engine.sources[0])) < 30
