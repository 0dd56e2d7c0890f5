"""The parts of the policy that looks ahead: rates, tables, and the market of backend time."""

import random
from itertools import pairwise

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.policies.central.accuracy_hull import Point
from fermata.router.policies.lookahead.arrival_rate import ArrivalRate
from fermata.router.policies.lookahead.fleet import occupied
from fermata.router.policies.lookahead.market import Market, Stake
from fermata.router.policies.lookahead.values import QueueProblem, solve
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario


def linear(alone_ms: float, each_ms: float, sizes: int = 32) -> tuple[int, ...]:
    return (0, *(ms(alone_ms + each_ms * (size - 1)) for size in range(1, sizes + 1)))


FAST, SLOW = linear(1.0, 0.1), linear(4.0, 1.0)


def problem(rate_rps: float, backends: float = 2.0, part: float = 1.0) -> QueueProblem:
    tables = (FAST, SLOW)
    gap_ns = SECOND / rate_rps
    return QueueProblem(tables, tables, (0.6, 0.8), float(ms(50)), gap_ns, backends, 1.0, part)


def fed(gaps_ns: list[float], least_ns: int = 0) -> ArrivalRate:
    rate, now_ns = ArrivalRate(), 0.0
    rate.least_ns = least_ns
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        rate.on_arrival(int(now_ns))
    return rate


def test_a_steady_rate_is_averaged_over_thousands_of_arrivals() -> None:
    rng = random.Random(1)
    rate = fed([rng.expovariate(1e-6) for _ in range(8000)])
    assert rate.gap_ns == pytest.approx(1e6, rel=0.03)
    assert rate.dispersion == pytest.approx(1.0, rel=0.5)


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_step_is_followed_within_some_dozens_of_arrivals(factor: float) -> None:
    rng = random.Random(2)
    gaps_ns = [rng.expovariate(1e-6) for _ in range(4000)]
    gaps_ns += [rng.expovariate(factor * 1e-6) for _ in range(128)]
    assert fed(gaps_ns).gap_ns == pytest.approx(1e6 / factor, rel=0.35)


def test_frames_that_come_all_at_once_are_no_higher_rate() -> None:
    """40 cameras in step, ten frames a second, and requests with 50 ms."""
    gaps_ns = ([1.0] * 39 + [float(ms(100))]) * 60
    assert fed(gaps_ns, least_ns=ms(50)).gap_ns == pytest.approx(ms(100) / 40, rel=0.25)


def test_of_few_arrivals_each_counts() -> None:
    rate = fed([float(ms(10))] * 5)
    assert rate.gap_ns == pytest.approx(ms(10), rel=0.01)
    rate.fall_silent()
    assert rate.gap_ns == 0.0


def test_accuracy_falls_with_the_load_and_never_below_what_the_fast_one_earns() -> None:
    found = [solve(problem(rate)).accuracy for rate in (50, 200, 600, 1200, 2500, 5000)]
    assert found[0] == pytest.approx(0.8, abs=0.002)
    assert all(low <= high + 1e-3 for high, low in pairwise(found))
    assert found[-1] > 0.58


def test_a_backend_more_never_costs_accuracy() -> None:
    found = [solve(problem(1500, backends)).accuracy for backends in (1, 2, 3, 4, 8)]
    assert all(more >= fewer - 1e-3 for fewer, more in pairwise(found))


def test_a_variant_more_never_costs_accuracy() -> None:
    one = problem(1500)
    without = QueueProblem(
        one.plan_ns[:1], one.expect_ns[:1], (0.6,), one.end_in_ns, one.gap_ns, one.backends
    )
    assert solve(one).accuracy >= solve(without).accuracy - 1e-3


def test_the_longer_the_backlog_the_cheaper_the_batch() -> None:
    table = solve(problem(1200))
    first = [table.ranked(state)[0] for state in range(len(table.states))]
    each_ns = [run_ns / size for run_ns, size, _, _, _ in first]
    assert 1 in {variant for _, _, variant, _, _ in first[:8]}
    assert first[-1][2] == 0
    assert each_ns[-1] <= min(each_ns)
    assert table.slope(len(first) // 2) > 0.0


def test_every_state_has_a_batch_of_one_of_the_fastest() -> None:
    table = solve(problem(600))
    for state in range(len(table.states)):
        assert any(size == 1 and run_ns == FAST[1] for run_ns, size, *_ in table.ranked(state))


def test_where_nothing_fits_the_fastest_is_what_there_is() -> None:
    slow = (linear(80.0, 1.0), linear(60.0, 1.0))
    hopeless = QueueProblem(slow, slow, (0.5, 0.6), float(ms(50)), 1e7, 1.0)
    assert solve(hopeless).batches[0] == (slow[1][1], 1, 1)


def test_inputs_that_come_beside_a_run_cost_no_accuracy() -> None:
    """They take 20 us each, far less than the runs of the batches ahead."""
    tables = tuple(occupied(each, ms(1.0), ms(0.02), 2) for each in (FAST, SLOW))
    assert tables == (FAST, SLOW)


def test_inputs_that_take_longer_than_the_runs_ahead_set_the_pace() -> None:
    assert occupied(FAST, 0, ms(0.5), 1)[32] == ms(0.5 * 31) // 2
    assert occupied(FAST, ms(6.0), 0, 2)[1] == ms(2.0)
    assert occupied(FAST, ms(1.0), 0, 2) == FAST
    assert occupied(SLOW, 0, ms(2.0), 0)[8] == ms(2.0 * 7)


def staked(market: Market, rate_rps: float, end_ms: float = 50.0) -> Stake:
    stake = market.join()
    stake.offer([Point(0, 8, FAST[8], 0.6), Point(1, 8, SLOW[8], 0.8)])
    stake.rate = rate_rps / SECOND
    market.set_end(stake, float(ms(end_ms)))
    return stake


@pytest.mark.parametrize("rate_rps", [100.0, 1000.0, 20_000.0])
def test_those_who_are_alike_have_equal_parts(rate_rps: float) -> None:
    market = Market()
    stakes = [staked(market, rate_rps) for _ in range(4)]
    parts = [market.part_of(stake, 4.0) for stake in stakes]
    assert parts == pytest.approx([0.25] * 4, rel=0.05)


def test_alone_all_is_its_own_and_the_silent_count_nothing() -> None:
    market = Market()
    stake = staked(market, 1000.0)
    staked(market, 0.0)
    assert market.part_of(stake, 4.0) == 1.0


def test_backlogs_of_others_count_as_far_as_they_are_due_before() -> None:
    market = Market()
    short, long = staked(market, 100.0, end_ms=10.0), staked(market, 100.0, end_ms=100.0)
    market.set_backlog(short, 1000.0)
    market.set_backlog(long, 1000.0)
    assert market.ahead_ns(float(ms(100))) == pytest.approx(2000.0)
    assert market.ahead_ns(float(ms(10))) == pytest.approx(1100.0)
    market.leave(long)
    assert market.ahead_ns(float(ms(100))) == pytest.approx(1000.0)


def rich_and_poor(end_ms: float = 50.0) -> tuple[Market, Stake, Stake]:
    """One earns a hundred times as much with backend time as the other, which takes all it gets."""
    market = Market()
    rich, poor = staked(market, 1_000, end_ms), staked(market, 4_000)
    rich.offer([Point(0, 1, ms(1), 0.5), Point(1, 1, ms(2), 0.9)])
    poor.offer([Point(0, 1, ms(1), 0.5), Point(1, 1, ms(4), 0.512)])
    return market, rich, poor


def test_who_earns_far_more_has_time_to_spare() -> None:
    market, rich, poor = rich_and_poor()
    backends = 8.0
    parts = [market.part_of(each, backends) for each in (rich, poor)]
    # Two backends do for the best of the rich one; chance calls for some more.
    assert parts[0] * backends > 2.3
    assert parts[1] * backends > 4.0
    assert sum(parts) == pytest.approx(1.0)


def test_time_that_is_left_to_who_has_less_of_it_is_theirs() -> None:
    market, rich, poor = rich_and_poor(end_ms=5.0)
    parts = [0.0, 0.0]
    for _ in range(3):
        parts = [market.part_of(each, 8.0) for each in (rich, poor)]
    even, wide, long = rich_and_poor()
    assert parts[0] > even.part_of(wide, 8.0)
    assert parts[1] < even.part_of(long, 8.0)
    assert sum(parts) == pytest.approx(1.0)


def test_in_overload_of_one_backend_batches_are_as_full_as_queues_by_size_make_them() -> None:
    large = {"name": "large", "alpha_ms": 2.0, "beta_ms": 20.0, "accuracy": 0.8}
    small = {"name": "small", "alpha_ms": 1.0, "beta_ms": 5.0, "accuracy": 0.7}
    application = {"name": "app", "slo_ms": 30, "variants": [small, large]}
    bad = {}
    for policy in ("batch-queues", "lookahead"):
        document = {
            "seed": 3,
            "duration_s": 4,
            "rate_rps": 1000,
            "backends": 1,
            "policy": policy,
            "applications": [application],
        }
        scenario = read_scenario(document)
        bad[policy] = report(scenario, simulate(scenario)).bad_rate
    assert bad["lookahead"] <= bad["batch-queues"] + 0.02
