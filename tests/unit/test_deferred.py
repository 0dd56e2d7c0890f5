"""Deferred scheduling on a real engine; a batch of b runs b + 4 ms."""

import pytest

from router.core.costs import Costs
from router.core.engine import Engine
from router.core.events import Dispatch, Drop, DropReason, Request
from router.core.units import NEVER, ms, seconds
from router.policies.catalog import POLICIES
from router.policies.deferred import ModelThread
from router.policies.deferred_options import PUBLISHED, DeferredOptions

SIZE_MAX = 32


class Bench:
    """One model, its backends and a clock; run times are exactly as planned."""

    def __init__(
        self, options: DeferredOptions | None = None, backends: int = 1, lead_ns: int = 0
    ) -> None:
        costs = Costs()
        costs.add(0, [ms(4 + size) for size in range(1, SIZE_MAX + 1)])
        self.engine = Engine(costs)
        self.source = ModelThread(0, options or DeferredOptions())
        self.engine.add_application(self.source)
        self.engine.ranks[0].lead_start_ns = lead_ns
        for backend in range(backends):
            self.engine.on_backend_up(0, backend)
        self.rid = 0
        self.ends: list[tuple[int, int, int]] = []
        self.ran: list[tuple[float, list[int]]] = []
        """(when sent in ms, request ids) of each batch."""
        self.dropped: list[tuple[int, int, str]] = []
        """(when in ns, request id, reason)."""

    def send(self, at_ns: int, slo_ns: int, start_by_ns: int = NEVER) -> int:
        """Go on to that time and hand a request in."""
        self.advance(at_ns - 1)
        self._end_batches(at_ns)
        request = Request(self.rid, 0, at_ns, at_ns + slo_ns)
        request.start_by_ns = start_by_ns
        self.rid += 1
        self.engine.on_request(at_ns, request)
        self.carry_out(at_ns)
        return request.rid

    def advance(self, to_ns: int) -> None:
        """Fire every timer and end every batch due by then, each at its own time."""
        while True:
            end_ns = self.ends[0][0] if self.ends else NEVER
            now_ns = min(end_ns, self.engine.wake_at_ns())
            if now_ns > to_ns:
                return
            if end_ns == now_ns:
                self._end_batches(now_ns)
            else:
                self.engine.on_time(now_ns)
                self.carry_out(now_ns)

    def _end_batches(self, now_ns: int) -> None:
        while self.ends and self.ends[0][0] <= now_ns:
            _, backend, run_ns = self.ends.pop(0)
            self.engine.on_done(now_ns, backend, run_ns)
            self.carry_out(now_ns)

    def carry_out(self, now_ns: int) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Dispatch):
                batch = effect.batch
                run_ns = ms(4 + len(batch.requests))
                self.ends.append((batch.start_at_ns + run_ns, effect.backend, run_ns))
                self.ends.sort()
                self.ran.append((now_ns / 1e6, [request.rid for request in batch.requests]))
            elif isinstance(effect, Drop):
                self.dropped.append((now_ns, effect.request.rid, effect.reason))

    def warm_up(self, gap_ns: int, slo_ns: int) -> int:
        """Arrivals at that distance for one bucket of the rate meter; returns when all is quiet."""
        for index in range(ms(100) // gap_ns + 1):
            self.send(index * gap_ns, slo_ns)
        self.advance(ms(190))
        self.ran.clear()
        self.dropped.clear()
        return ms(190)


# How long to hold


def test_waits_until_one_more_request_would_not_fit() -> None:
    bench = Bench()
    bench.send(0, ms(40))
    bench.advance(ms(34) - 1)
    assert bench.ran == []
    # Deadline less the run time of two.
    bench.advance(ms(34))
    assert bench.ran == [(34, [0])]


def test_each_request_that_joins_ends_the_hold_earlier() -> None:
    bench = Bench()
    bench.send(0, ms(40))
    bench.send(ms(5), ms(40))
    bench.send(ms(6), ms(40))
    bench.advance(ms(100))
    # The first has until 40 ms, and four would run 8.
    assert bench.ran == [(32, [0, 1, 2])]
    assert bench.dropped == []


def test_lead_time_comes_off_the_hold() -> None:
    bench = Bench(lead_ns=ms(3))
    bench.send(0, ms(40))
    bench.advance(ms(100))
    assert bench.ran == [(31, [0])]
    assert bench.engine.ledger.applications[0].good == 1


def test_request_without_time_to_wait_leaves_at_once() -> None:
    bench = Bench()
    bench.send(0, ms(5))
    assert bench.ran == [(0, [0])]


def test_batch_as_large_as_the_profile_goes_is_not_held() -> None:
    bench = Bench()
    for _ in range(SIZE_MAX + 1):
        bench.send(ms(1), ms(500))
    assert bench.ran == []
    bench.advance(ms(2))
    assert bench.ran == [(1.000001, list(range(SIZE_MAX)))]


def test_longest_hold_is_the_operators_choice() -> None:
    bench = Bench(DeferredOptions(hold_ns_max=ms(10)))
    bench.send(ms(1), ms(100))
    bench.send(ms(9), ms(100))
    bench.advance(ms(50))
    assert bench.ran == [(11, [0, 1])]


def test_longest_hold_holds_for_requests_behind_the_first() -> None:
    bench = Bench(DeferredOptions(hold_ns_max=ms(10)))
    bench.send(0, ms(200))
    bench.send(ms(9), ms(100))
    bench.advance(ms(50))
    assert bench.ran == [(10, [1, 0])]


def test_hold_ends_earlier_by_twice_the_wait_for_backends() -> None:
    bench = Bench()
    bench.engine.ranks[0].signals.wait_ns = ms(2)
    bench.send(0, ms(40))
    bench.advance(ms(100))
    assert bench.ran == [(30, [0])]


def test_frame_leaves_before_its_successor_is_due() -> None:
    bench = Bench()
    bench.send(0, ms(40), start_by_ns=ms(20))
    bench.advance(ms(100))
    assert bench.ran == [(20, [0])]


def test_eager_leaves_once_all_of_the_instant_have_arrived() -> None:
    bench = Bench(POLICIES["eager"].defaults)
    bench.send(ms(1), ms(40))
    bench.send(ms(1), ms(40))
    bench.send(ms(3), ms(40))
    bench.advance(ms(20))
    # The third finds the backend busy until 7 ms and 1 ns.
    assert bench.ran == [(1.000001, [0, 1]), (7.000001, [2])]


def test_eager_serves_a_request_without_any_slack() -> None:
    bench = Bench(POLICIES["eager"].defaults)
    bench.send(0, ms(5))
    bench.advance(ms(20))
    assert bench.ran == [(0, [0])]


# Order


def test_tight_newcomer_goes_first_and_takes_the_others_along() -> None:
    bench = Bench()
    bench.send(0, ms(40))
    # In order of arrival the first would hold both until 33 ms, too late for deadline 9.
    bench.send(ms(1), ms(8))
    bench.advance(ms(100))
    # Three would run 7 ms, so both leave at 2 ms.
    assert bench.ran == [(2, [1, 0])]
    assert bench.engine.ledger.applications[0].good == 2


def test_cancelled_head_gives_its_time_back() -> None:
    bench = Bench()
    bench.send(0, ms(20))
    bench.send(0, ms(40))
    bench.engine.on_cancel(ms(1), 0)
    bench.advance(ms(100))
    assert bench.ran == [(34, [1])]


# Drops


def test_window_slides_while_the_queue_can_fill_it() -> None:
    bench = Bench(backends=0)
    bench.source.window = 4
    for slo_ms in (20, 21, 22, 23, 24):
        bench.send(0, ms(slo_ms))
    bench.advance(ms(30))
    # Four run 8 ms. The first stands in their way from 12 ms on, the second from 13. Then only
    # three are left, who may leave in smaller batches, and the last time for one alone is
    # deadline - 5 ms.
    assert bench.dropped == [
        (ms(12) + 1, 0, DropReason.WINDOW),
        (ms(13) + 1, 1, DropReason.WINDOW),
        (ms(17) + 1, 2, DropReason.LATE),
        (ms(18) + 1, 3, DropReason.LATE),
        (ms(19) + 1, 4, DropReason.LATE),
    ]
    assert not bench.engine.outbox.queued


def test_candidate_that_expires_is_built_anew() -> None:
    bench = Bench(DeferredOptions(wait_margin=0.0), backends=0)
    for slo_ms in (10, 30, 30):
        bench.send(0, ms(slo_ms))
    # Three have until 3 ms to start by the first deadline, two until 4, one until 5.
    bench.advance(ms(3))
    assert bench.source.size == 3
    bench.advance(ms(3) + 1)
    assert bench.source.size == 2
    bench.advance(ms(4.5))
    bench.engine.on_backend_up(ms(4.5), 0)
    bench.carry_out(ms(4.5))
    bench.advance(ms(40))
    assert bench.dropped == []
    # One alone at 4.5 ms until 9.5; then the others have until 30 ms less the run time of three.
    assert bench.ran == [(4.5, [0]), (23, [1, 2])]


def test_request_that_came_too_late_is_dropped_on_arrival() -> None:
    bench = Bench()
    bench.send(ms(1), ms(5) - 1)
    assert bench.dropped == [(ms(1), 0, DropReason.LATE)]


def test_waiting_requests_are_dropped_when_hopeless_without_any_event() -> None:
    bench = Bench(backends=0)
    bench.send(0, ms(40))
    bench.advance(ms(35))
    assert bench.dropped == []
    bench.advance(ms(35) + 1)
    assert bench.dropped == [(ms(35) + 1, 0, DropReason.LATE)]


def test_slow_backend_is_no_reason_to_drop_while_another_is_free() -> None:
    bench = Bench(backends=2)
    bench.engine.costs.backend_factor[0] = 2.0
    bench.send(0, ms(8))
    bench.advance(ms(20))
    assert bench.dropped == []


def test_tight_request_is_not_dropped_while_a_backend_is_free() -> None:
    bench = Bench(backends=4)
    bench.source.window = 8
    for _ in range(7):
        bench.send(0, ms(100))
    # It leaves no room for eight, which run 12 ms; but nobody waits for a backend.
    bench.send(ms(1), ms(8))
    assert bench.dropped == []


def test_tight_request_is_judged_by_its_own_lead_time() -> None:
    bench = Bench()
    bench.engine.ranks[0].lead_per_request_ns = ms(1)
    for _ in range(8):
        bench.send(0, ms(100))
    # Alone it needs 1 + 5 of its 8 ms; with the lead of eight it would need 13.
    bench.send(ms(1), ms(8))
    assert bench.dropped == []


# What rate and SLO allow


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
    # 100 rps in batches of 3 need 0.23 backends, below 0.75 of the one there is.
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


def test_a_margin_that_lets_nothing_run_is_doubted() -> None:
    costs = Costs()
    costs.add(0, [ms(5)])
    engine = Engine(costs)
    engine.add_application(ModelThread(0, DeferredOptions(hold="eager")))
    engine.on_backend_up(0, 0)
    for _ in range(40):
        costs.observe(0, 0, 0, 1, ms(50))
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
