"""Margins learnt from execution, and what a slot makes of them; worked by hand."""

import math
import random

import pytest

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.margins.fixed_cost import fixed_cost_ns
from fermata.router.core.margins.ratios import RULES, RatioWindow
from fermata.router.core.slot import Slot


def costs_of(p50_ms: list[float], p99_ms: list[float] | None = None) -> Costs:
    costs = Costs()
    costs.add(0, [ms(each) for each in p50_ms], p99_ms and [ms(each) for each in p99_ms])
    return costs


def observe(costs: Costs, ratio: float, times: int = 1, backend: int = 0) -> None:
    for _ in range(times):
        costs.observe(0, 0, backend, 1, int(costs.of(0).p50_ns[1] * ratio))


def test_margin_is_seeded_by_the_worst_p99() -> None:
    cost = costs_of([5, 6], [6, 6.6]).of(0)
    assert cost.factor == 1.2
    assert cost.plan_ns == [0, ms(6), ms(7.2)]
    assert cost.p50_ns == [0, ms(5), ms(6)]


def test_without_p99_the_profile_is_taken_as_exact() -> None:
    assert costs_of([5, 6]).of(0).plan_ns == [0, ms(5), ms(6)]


def test_a_slower_run_raises_the_plan_at_once() -> None:
    costs = costs_of([5, 6], [6, 6.6])
    table = costs.of(0).plan_ns
    observe(costs, 1.5)
    # Nothing is known of a batch of 2, but that it takes no less.
    assert table == [0, ms(7.5), ms(7.5)]


def test_the_seed_counts_until_there_are_sixteen_samples() -> None:
    costs = costs_of([5, 6], [6, 6.6])
    observe(costs, 1.0, times=15)
    assert costs.of(0).factor == 1.2
    observe(costs, 1.0)
    assert costs.of(0).plan_ns == [0, ms(5), ms(6)]


def test_one_slow_run_in_fifty_is_within_the_margin() -> None:
    costs = costs_of([5])
    observe(costs, 1.0, times=10)
    observe(costs, 2.0, backend=1)
    observe(costs, 1.0, times=39)
    # 0.98 of 50 points at the last, the slow one; of 51 at the one before.
    assert costs.of(0).factor == 2.0
    observe(costs, 1.0)
    assert costs.of(0).factor == 1.0


def test_small_falls_do_not_rewrite_the_table() -> None:
    costs = costs_of([5])
    observe(costs, 1.001, times=17)
    observe(costs, 1.0, times=300)
    assert costs.of(0).factor == pytest.approx(1.001)


def run(costs: Costs, size: int, ratio: float, times: int) -> None:
    for _ in range(times):
        costs.observe(0, 0, 0, size, int(costs.of(0).p50_ns[size] * ratio))


def test_a_hiccup_of_small_batches_is_small_to_large_ones() -> None:
    costs = costs_of([1, 1, 1, 10, 10, 10, 10])
    run(costs, 1, 1.0, times=20)
    run(costs, 1, 2.0, times=1)
    # Twice the run time of one request, but only 1 ms more for those that have not run yet.
    assert costs.of(0).plan_ns == [0, ms(2), ms(2), ms(2), ms(11), ms(11), ms(11), ms(11)]


def test_sizes_that_run_have_a_margin_of_their_own() -> None:
    costs = costs_of([1, 1, 1, 10])
    run(costs, 1, 2.0, times=20)
    run(costs, 4, 1.1, times=20)
    assert costs.of(0).plan_ns == [0, ms(2), ms(2), ms(2), ms(11)]


def test_one_slow_run_of_a_size_that_hardly_runs_is_an_accident() -> None:
    costs = costs_of([1, 1, 1, 10])
    run(costs, 1, 1.0, times=20)
    run(costs, 4, 3.0, times=2)
    assert costs.of(0).plan_ns[4] == ms(10)
    run(costs, 4, 3.0, times=1)
    assert costs.of(0).plan_ns[4] == ms(30)


def test_a_margin_that_keeps_its_sizes_from_running_is_forgotten() -> None:
    costs = costs_of([1, 1, 1, 10])
    run(costs, 4, 2.0, times=20)
    run(costs, 1, 1.0, times=RULES.memory - 20)
    assert costs.of(0).plan_ns[4] == ms(20)
    run(costs, 1, 1.0, times=21)
    assert costs.of(0).plan_ns[4] == ms(10)


def test_one_that_smaller_sizes_belie_is_forgotten_soon() -> None:
    costs = costs_of([1, 1, 1, 10])
    run(costs, 1, 1.0, times=20)
    run(costs, 4, 1.1, times=16)
    run(costs, 4, 7.0, times=30)
    run(costs, 1, 1.0, times=RULES.patience - 1)
    assert costs.of(0).plan_ns[4] == ms(70)
    run(costs, 1, 1.0, times=1)
    # What it took when all was well is remembered.
    assert costs.of(0).plan_ns[4] == ms(11)


def test_one_that_proves_right_is_forgotten_ever_later() -> None:
    costs = costs_of([1, 1, 1, 10])
    run(costs, 4, 7.0, times=20)
    waited = []
    for _ in range(6):
        before = costs.of(0).batches
        while costs.of(0).plan_ns[4] == ms(70):
            run(costs, 1, 1.0, times=1)
        waited.append(costs.of(0).batches - before)
        run(costs, 4, 7.0, times=3)
        assert costs.of(0).plan_ns[4] == ms(70)
    assert waited == [32, 64, 128, 256, 512, 1024]
    # Once it is well for long enough, all is forgiven.
    run(costs, 4, 1.0, times=300)
    run(costs, 1, 1.0, times=1)
    run(costs, 4, 7.0, times=30)
    run(costs, 1, 1.0, times=RULES.patience)
    assert costs.of(0).plan_ns[4] == ms(10)


def test_a_doubt_is_of_those_who_lent_the_margin() -> None:
    costs = costs_of([1, 1, 1, 10])
    run(costs, 1, 1.0, times=10)
    run(costs, 4, 1.0, times=30)
    run(costs, 4, 5.0, times=2)
    assert costs.of(0).plan_ns[1] == ms(41)
    costs.relax_margin(0)
    assert costs.of(0).plan_ns[1] == ms(41)
    costs.relax_margin(0)
    assert costs.of(0).plan_ns[1] == ms(1)


def test_faults_longer_than_the_slo_leave_the_others_time_to_run() -> None:
    costs = costs_of([1, 2])
    cost = costs.of(0)
    for _ in range(5):
        observe(costs, 1.0, times=19)
        observe(costs, 30.0)
    assert cost.plan_ns[1] == ms(30)
    # One that met a fault and one that leaves room for the next take 60 ms together.
    cost.plan_within(ms(60))
    assert cost.plan_ns[1] == ms(30)
    cost.plan_within(ms(59))
    assert cost.plan_ns[1] == ms(1)
    cost.plan_within(ms(60))
    assert cost.plan_ns[1] == ms(30)


def test_runs_that_are_all_too_slow_keep_their_margin() -> None:
    costs = costs_of([10])
    observe(costs, 3.0, times=40)
    costs.of(0).plan_within(ms(20))
    assert costs.of(0).plan_ns[1] == ms(30)


def test_plans_never_fall_with_the_size() -> None:
    costs = costs_of([1, 1, 1, 1.5])
    run(costs, 1, 3.0, times=20)
    run(costs, 4, 1.0, times=20)
    assert costs.of(0).plan_ns == [0, ms(3), ms(3), ms(3), ms(3)]


def test_only_the_last_256_ratios_are_remembered() -> None:
    window = RatioWindow()
    for batch in range(256):
        window.add(batch, 3.0)
    for batch in range(250):
        window.add(256 + batch, 1.0)
    assert window.quantile(0.98) == 3.0
    for batch in range(6):
        window.add(506 + batch, 1.0)
    assert window.quantile(0.98) == 1.0
    assert len(window.recent) == len(window.ordered) == 256


def test_slow_backend_gets_a_factor_of_its_own() -> None:
    costs = costs_of([5])
    observe(costs, 1.0, times=20, backend=1)
    observe(costs, 2.0, times=3, backend=0)
    assert costs.backend_factor == {}
    observe(costs, 2.0, backend=0)
    assert costs.backend_factor == {0: 2.0}


def test_backend_that_recovers_loses_its_factor() -> None:
    costs = costs_of([5])
    observe(costs, 1.0, times=20, backend=1)
    observe(costs, 2.0, times=8, backend=0)
    # The median of the last eight: slow until five of them are good.
    observe(costs, 1.0, times=4, backend=0)
    assert costs.backend_factor == {0: 2.0}
    observe(costs, 1.0, backend=0)
    assert costs.backend_factor == {}


def test_profile_wrong_everywhere_is_no_slow_backend() -> None:
    costs = costs_of([5])
    for _ in range(30):
        for backend in range(3):
            observe(costs, 1.5, backend=backend)
    assert costs.backend_factor == {}
    assert costs.of(0).factor == 1.5


@pytest.mark.parametrize(
    ("p50_ns", "beta_ns"),
    [([5, 6, 7], 4), ([9], 9), ([3, 3, 3], 3), ([10, 40, 90], 0), ([6, 7, 11], 3)],
)
def test_fixed_cost_is_the_line_at_size_zero(p50_ns: list[int], beta_ns: int) -> None:
    # (6, 7, 11): mean 8, slope 2.5, so 8 - 5 = 3. (10, 40, 90) would be below zero.
    assert fixed_cost_ns(p50_ns) == beta_ns


def slot_for(kind: int, factor: float, resident: frozenset[int] | None) -> Slot:
    costs = Costs()
    costs.add(0, [ms(5), ms(6), ms(7)], [ms(6), ms(7.2), ms(8.4)], swap_in_ns=ms(30))
    costs.add(0, [ms(10), ms(20)], kind=1)
    if factor != 1.0:
        costs.backend_factor[7] = factor
    slot = Slot(costs)
    slot.offer(7, kind, ms(100), resident)
    return slot


def test_slot_plans_with_the_margin_and_expects_without() -> None:
    slot = slot_for(0, 1.0, None)
    assert slot.plain(0)
    assert (slot.plan_ns(0, 2), slot.expect_ns(0, 2)) == (ms(7.2), ms(6))
    assert [slot.size_that_fits(0, ms(each)) for each in (5.9, 6, 7.2, 8.3, 99)] == [0, 1, 2, 2, 3]
    assert slot.size_that_fits(0, -1) == 0


def test_slot_expects_what_batches_of_that_size_have_usually_taken() -> None:
    slot = slot_for(0, 1.0, None)
    for run_ms in (11, 12, 90):
        assert slot.expect_ns(0, 2) == ms(6)
        slot.costs.observe(0, 0, 7, 2, ms(run_ms))
    slot.offer(7, 0, ms(100), None)
    assert slot.factor == 1.0
    assert (slot.expect_ns(0, 2), slot.expect_ns(0, 3)) == (ms(12), ms(14))
    # Other sizes have not been heard of.
    assert slot.expect_ns(0, 1) == ms(5)


def test_batches_take_the_mean_of_two_humps() -> None:
    costs = costs_of([4, 4, 4, 4, 8, 8, 8, 8])
    cost = costs.of(0)
    run(costs, 4, 1.0, times=14)
    assert cost.mean_ratio(4) == 1.0
    run(costs, 4, 3.0, times=10)
    # 14 of 4 ms and 10 of 12 ms. Sizes that have not run are as those that have.
    assert cost.mean_ratio(4) == pytest.approx(44 / 24)
    assert cost.mean_ratio(1) == cost.mean_ratio(8) == cost.mean_ratio(4)
    run(costs, 1, 1.5, times=16)
    assert (cost.mean_ratio(1), cost.mean_ratio(8)) == (1.5, cost.mean_ratio(4))


def test_before_batches_tell_they_take_what_the_profile_says() -> None:
    costs = costs_of([5, 6], [10, 12])
    run(costs, 2, 1.5, times=2)
    assert costs.of(0).mean_ratio(2) == 1.0
    run(costs, 2, 1.5, times=1)
    assert (costs.of(0).mean_ratio(1), costs.of(0).mean_ratio(2)) == (1.0, 1.5)


def test_in_the_mean_a_hang_is_a_slow_run() -> None:
    costs = costs_of([5])
    run(costs, 1, 1.0, times=39)
    run(costs, 1, 1000.0, times=1)
    assert costs.of(0).mean_ratio(1) == pytest.approx((39 + RULES.hang) / 40)


def test_slot_uses_the_backends_own_factor() -> None:
    slot = slot_for(0, 1.5, None)
    assert not slot.plain(0)
    assert (slot.plan_ns(0, 1), slot.expect_ns(0, 1)) == (ms(9), ms(7.5))
    assert [slot.size_that_fits(0, ms(each)) for each in (8.9, 9, 10.8)] == [0, 1, 2]


def test_slot_uses_the_table_of_its_kind() -> None:
    slot = slot_for(1, 1.0, None)
    assert not slot.plain(0)
    assert slot.plan_ns(0, 2) == ms(20)
    assert [slot.size_that_fits(0, ms(each)) for each in (9, 10, 19, 20, 99)] == [0, 1, 1, 2, 2]


def test_slot_adds_the_swap_in_of_what_is_not_resident() -> None:
    assert slot_for(0, 1.0, frozenset((0,))).plan_ns(0, 1) == ms(6)
    slot = slot_for(0, 1.5, frozenset((3,)))
    assert not slot.plain(0)
    # The factor stretches the run, not the swap.
    assert (slot.plan_ns(0, 1), slot.expect_ns(0, 1)) == (ms(39), ms(37.5))
    assert [slot.size_that_fits(0, ms(each)) for each in (38, 39, 40.8)] == [0, 1, 2]


def test_variant_without_a_swap_cost_swaps_for_nothing() -> None:
    slot = slot_for(0, 1.0, frozenset((3,)))
    slot.costs.swap_in_ns.clear()
    assert slot.plain(0)
    assert slot.plan_ns(0, 1) == ms(6)


def test_run_of_no_time_is_survived() -> None:
    costs = costs_of([5])
    costs.observe(0, 0, 0, 1, 0)
    assert costs.of(0).factor == 1.0


def test_slow_backend_does_not_widen_the_margin_of_its_peers() -> None:
    costs = costs_of([5])
    for turn in range(300):
        observe(costs, 1.0, backend=turn % 4)
    for turn in range(120):
        observe(costs, 2.0 if turn % 4 == 0 else 1.0, backend=turn % 4)
    assert costs.backend_factor[0] > 1.9
    # It is 1.42, until the ratios from before the factor was learnt have left the window.
    assert costs.of(0).factor < 1.1


def test_factors_of_noisy_backends_do_not_run_away() -> None:
    costs = Costs()
    costs.add(0, [ms(40)])
    rng = random.Random(3)
    for run in range(4000):
        costs.observe(0, 0, run % 2, 1, int(ms(40) * math.exp(rng.gauss(0.0, 0.3))))
    assert all(factor < 1.6 for factor in costs.backend_factor.values())
    assert 1.5 < costs.of(0).factor < 2.2


def test_a_slow_backend_that_nothing_fits_is_tried_again_after_a_while() -> None:
    costs = costs_of([5])
    observe(costs, 1.0, times=20, backend=1)
    observe(costs, 9.0, times=8, backend=0)
    for _ in range(RULES.refusals - 1):
        costs.refuse(0)
    assert costs.backend_factor == {0: 9.0}
    costs.refuse(0)
    assert costs.backend_factor == {}
    observe(costs, 1.0, times=9, backend=0)
    assert costs.backend_factor == {}


def test_a_trial_of_a_slow_backend_tells_with_its_first_batch() -> None:
    costs = costs_of([5])
    observe(costs, 1.0, times=200, backend=1)
    observe(costs, 9.0, times=8, backend=0)
    patience = RULES.refusals
    for _ in range(20):
        for _ in range(patience):
            assert costs.backend_factor == {0: 9.0}
            costs.refuse(0)
        assert costs.backend_factor == {}
        observe(costs, 9.0, backend=0)
        observe(costs, 1.0, backend=1)
        patience = min(2 * patience, RULES.refusals_max)
    # Three of 228 batches counted as everyone's, until its factor was known: the trials did not.
    assert costs.of(0).factor == 1.0
    # It has recovered: the same holds for one that comes back.
    for _ in range(patience):
        costs.refuse(0)
    observe(costs, 1.0, backend=0)
    assert costs.backend_factor == {}
    observe(costs, 9.0, times=8, backend=0)
    for _ in range(RULES.refusals):
        costs.refuse(0)
    assert costs.backend_factor == {}


def test_patience_with_a_slow_backend_ends_with_its_slowness() -> None:
    costs = costs_of([5])
    observe(costs, 1.0, times=20, backend=1)
    observe(costs, 9.0, times=8, backend=0)
    for _ in range(RULES.refusals):
        costs.refuse(0)
    observe(costs, 9.0, backend=0)
    observe(costs, 1.0, times=8, backend=0)
    assert costs.backend_factor == {}
    observe(costs, 9.0, times=8, backend=0)
    for _ in range(RULES.refusals):
        assert costs.backend_factor == {0: 9.0}
        costs.refuse(0)
    assert costs.backend_factor == {}


def test_whoever_has_nowhere_else_to_go_tries_a_slow_backend_soon_each_time() -> None:
    costs = costs_of([5])
    observe(costs, 1.0, times=20, backend=1)
    observe(costs, 9.0, times=8, backend=0)
    for _ in range(8):
        costs.refuse(0, alone=True)
        assert costs.backend_factor == {0: 9.0}
        costs.refuse(0, alone=True)
        assert costs.backend_factor == {}
        observe(costs, 9.0, backend=0)
