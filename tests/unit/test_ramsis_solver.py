"""RAMSIS tables against a brute-force solution of the same small problem, and its parts by hand."""

import itertools
import math

import numpy as np
import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.policies.ramsis.chain.problem import (
    WorkerProblem,
    fixed_bins,
    model_bins,
    shortest_queue_rates,
)
from fermata.router.policies.ramsis.chain.solve import promises, solve
from fermata.router.policies.ramsis.chain.variable import solve_variable
from fermata.router.policies.ramsis.counts import Bursty, Floats, poisson
from fermata.router.policies.ramsis.latency import fill_sizes, monotone_from_right, pareto_front
from fermata.router.policies.ramsis.load_grid import peak_rps, solve_grid, solve_point

SLO_NS = ms(40)
FAST = (ms(8), ms(12), ms(16))
GOOD = (ms(16), ms(26), ms(37))


def small(**changes: object) -> WorkerProblem:
    values: dict[str, object] = {
        "latency_ns": (FAST, GOOD),
        "accuracy": (0.6, 0.9),
        "slo_ns": SLO_NS,
        "workers": 2,
        "rate_rps": 120.0,
        "slack_ns": fixed_bins(SLO_NS, 5),
        "queue_max": 3,
    }
    values.update(changes)
    return WorkerProblem(**values)  # type: ignore[arg-type]


# The same problem once more, from the definitions, in plain loops


def pmf(mean: float, count: int) -> float:
    return math.exp(-mean) * mean**count / math.factorial(count)


class ByHand:
    """Every state (length, bin) and the empty queue; transitions by adding up small time steps."""

    STEPS = 200

    def __init__(self, problem: WorkerProblem) -> None:
        self.problem = problem
        self.rate = problem.rate_rps / 1e9
        bins = len(problem.slack_ns)
        lengths = range(1, problem.queue_max + 1)
        self.states = [*itertools.product(lengths, range(bins)), (0, 0)]
        self.index = {state: index for index, state in enumerate(self.states)}

    def valid(self, length: int, slack: int) -> list[int]:
        slack_ns = self.problem.slack_ns[slack]
        rows = self.problem.latency_ns
        in_time = [each for each, row in enumerate(rows) if row[length - 1] <= slack_ns]
        return in_time or [0]

    def row(self, length: int, slack: int, variant: int) -> np.ndarray:
        problem, turns = self.problem, self.problem.workers
        run_ns = problem.latency_ns[variant][length - 1]
        row = np.zeros(len(self.states))
        mean = self.rate * (problem.slo_ns - problem.slack_ns[slack])
        phases = [pmf(mean, (length - 1) * turns + phase) for phase in range(turns)]
        if sum(phases) == 0.0:
            phases = [1.0] + [0.0] * (turns - 1)
        step_ns = run_ns / self.STEPS
        for phase, weight in enumerate(phases):
            share = weight / sum(phases)
            needed = turns - phase
            row[-1] += share * sum(pmf(self.rate * run_ns, count) for count in range(needed))
            for step in range(self.STEPS):
                # The worker's next request comes in this step: it is the last one needed.
                at_ns = (step + 0.5) * step_ns
                come = share * pmf(self.rate * at_ns, needed - 1) * self.rate * step_ns
                left_ns = run_ns - at_ns
                bin_ = max(
                    each
                    for each, low_ns in enumerate(problem.slack_ns)
                    if each == 0 or low_ns <= problem.slo_ns - left_ns
                )
                rest = 1.0
                for more in range(1, problem.queue_max + 1):
                    counts = range((more - 1) * turns, more * turns)
                    joined = sum(pmf(self.rate * left_ns, count) for count in counts)
                    row[self.index[more, bin_]] += come * joined
                    rest -= joined
                row[self.index[problem.queue_max, 0]] += come * rest
        return row / row.sum()

    def accuracy_of(self, table: dict[tuple[int, int], int], by_query: bool) -> float:
        """Reward of the mean request, or of the mean decision."""
        problem = self.problem
        chain = np.zeros((len(self.states), len(self.states)))
        reward, weight = np.zeros(len(self.states)), np.zeros(len(self.states))
        for index, (length, slack) in enumerate(self.states):
            if length == 0:
                chain[index, self.index[1, len(problem.slack_ns) - 1]] = 1.0
                continue
            variant = table[length, slack]
            chain[index] = self.rows[length, slack, variant]
            in_time = problem.latency_ns[variant][length - 1] <= problem.slack_ns[slack]
            weight[index] = length if by_query else 1.0
            reward[index] = weight[index] * problem.accuracy[variant] * in_time
        at = np.full(len(self.states), 1.0 / len(self.states))
        for _ in range(400):
            # A lazy step has the same stationary state, and cannot swing for ever.
            at = 0.5 * at + 0.5 * at @ chain
        return float(at @ reward / (at @ weight))

    def best(self, by_query: bool) -> float:
        """Over every table there is."""
        states = self.states[:-1]
        self.rows = {
            (*state, variant): self.row(*state, variant)
            for state in states
            for variant in self.valid(*state)
        }
        choices = [self.valid(*state) for state in states]
        return max(
            self.accuracy_of(dict(zip(states, table, strict=True)), by_query)
            for table in itertools.product(*choices)
        )


@pytest.mark.parametrize("reward", ["query", "decision"])
def test_finds_the_best_of_all_tables(reward: str) -> None:
    problem = small(reward=reward, slack_ns=fixed_bins(SLO_NS, 20))
    coarse = small(reward=reward)
    by_hand = ByHand(coarse)
    best = by_hand.best(by_query=reward == "query")
    solved = solve(coarse)
    table = {
        (length, slack): solved.choice[length - 1][slack] for length, slack in by_hand.states[:-1]
    }
    assert by_hand.accuracy_of(table, reward == "query") == pytest.approx(best, abs=1e-3)
    # Finer bins can only allow more.
    assert solve(problem).accuracy > solved.accuracy - 1e-3


def test_transitions_agree_with_the_definitions() -> None:
    problem = small(slack_ns=fixed_bins(SLO_NS, 40), queue_max=3)
    by_hand = ByHand(problem)
    by_hand.rows = {(*state, 0): by_hand.row(*state, 0) for state in by_hand.states[:-1]}
    always_fast = dict.fromkeys(by_hand.states[:-1], 0)
    table = tuple((0,) * len(problem.slack_ns) for _ in range(problem.queue_max))
    accuracy, violation = promises(problem, table)
    assert accuracy == pytest.approx(0.6)
    expected = by_hand.accuracy_of(always_fast, by_query=True)
    assert 0.6 * (1.0 - violation) == pytest.approx(expected, abs=2e-3)


# Loads


def test_lulls_are_used_and_bursts_survived() -> None:
    quiet, busy = solve(small(rate_rps=10.0)), solve(small(rate_rps=150.0))
    assert quiet.accuracy == pytest.approx(0.9, abs=0.001)
    assert 0.6 < busy.accuracy < 0.85
    # Alone and with all its time left, the good variant; a full queue gets the fast one.
    assert busy.choice[0][-1] == 1
    assert busy.choice[2][-2] == 0


def test_a_late_queue_gets_the_fastest_variant() -> None:
    assert solve(small()).choice[2][0] == 0


def test_overload_is_promised_as_violation() -> None:
    assert solve(small(rate_rps=3000.0)).violation > 0.9


def test_any_law_may_be_given() -> None:
    def twice_as_fast(rate_rps: float, times_s: Floats, count_max: int) -> Floats:
        return poisson(2.0 * rate_rps, times_s, count_max)

    assert solve(small(rate_rps=60.0, law=twice_as_fast)) == solve(small(rate_rps=120.0))
    assert solve(small(law=Bursty(burst_s=0.05))) != solve(small())


def every_10_ms(rate_rps: float, times_s: Floats, count_max: int) -> Floats:
    """A camera: one request every 10 ms, as a law."""
    come = np.floor(np.asarray(times_s) / 0.01 + 1e-9)
    law: Floats = np.where(come[..., None] == np.arange(count_max + 1), 0.0, -np.inf)
    return law


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("slo_ms", [61, 100])
def test_a_queue_that_stays_as_it_is_has_a_table_too(drops: bool, slo_ms: int) -> None:
    # One request runs before the next comes, and during four of them four come: a short queue
    # stays short for ever, and a long one long. Two parts of a chain that never meet.
    problem = small(
        latency_ns=((ms(5), ms(20), ms(30), ms(40)), (ms(9), ms(20), ms(30), ms(40))),
        slo_ns=ms(slo_ms),
        slack_ns=fixed_bins(ms(slo_ms), 10),
        workers=1,
        rate_rps=100.0,
        law=every_10_ms,
        drops=drops,
        queue_max=4,
    )
    solution = solve(problem)
    assert solution.accuracy == pytest.approx(0.9)
    assert solution.violation == pytest.approx(0.0, abs=1e-6)
    assert promises(problem, solution.choice) == (solution.accuracy, solution.violation)


def test_shortest_queue_rates_follow_appendix_i() -> None:
    problem = small(balancing="shortest-queue")
    # Both keep up with 60 a second in half the SLO, so mu is the slower one's, 1 / 16 ms.
    share, crowded = shortest_queue_rates(problem)
    assert share == pytest.approx(60.0)
    assert crowded == pytest.approx((60.0 * 0.016) ** 2 / 0.016)
    assert 0.6 <= solve(problem).accuracy <= 0.9


def test_a_variant_with_small_batches_only_is_never_given_large_ones() -> None:
    solved = solve(small(latency_ns=(FAST, GOOD[:1])))
    assert all(variant == 0 for variant in (*solved.choice[1], *solved.choice[2]))


def test_variable_batching_is_at_least_as_good() -> None:
    problem = small(rate_rps=150.0, slack_ns=fixed_bins(SLO_NS, 20))
    whole, split = solve(problem), solve_variable(problem)
    kept = [each.accuracy * (1.0 - each.violation) for each in (whole, split)]
    assert kept[1] >= kept[0] - 1e-6
    assert all(size <= length for length, row in enumerate(split.choice, 1) for _, size in row)


def test_variable_batching_refuses_large_cases() -> None:
    with pytest.raises(ConfigError, match="maximal batching"):
        solve_variable(small(slack_ns=fixed_bins(SLO_NS, 4000)))


# Ladders


def test_neighbours_of_a_ladder_promise_about_the_same() -> None:
    problem = small(slack_ns=fixed_bins(SLO_NS, 20))
    ladder = solve_grid(problem, 10.0, peak_rps(problem))
    accuracy = [rung.solution.accuracy for rung in ladder.rungs]
    rates = [rung.rate_rps for rung in ladder.rungs]
    for low, high in itertools.pairwise(range(len(rates))):
        close = rates[high] - rates[low] < 0.011 * rates[high]
        assert close or abs(accuracy[low] - accuracy[high]) < 0.01


def test_the_lowest_table_that_covers_the_load_is_used() -> None:
    problem = small()
    ladder = solve_grid(problem, 50.0, 50.0).extended(solve_point(problem.at_rate(100.0)))
    assert [ladder.rung_for(rate).rate_rps for rate in (20.0, 50.0, 51.0, 400.0)] == [
        50.0,
        50.0,
        100.0,
        100.0,
    ]
    assert ladder.covers(100.0)
    assert not ladder.covers(101.0)


def test_peak_is_the_cheapest_batch_on_every_worker() -> None:
    assert peak_rps(small()) == pytest.approx(2 * 3 / 0.016)


# Laws, bins and latency tables


def test_laws_are_probabilities_with_the_right_mean() -> None:
    counts = np.arange(400)
    for law, variance in ((poisson, 30.0), (Bursty(0.02), 30.0 * (1.0 + 300.0 * 0.02))):
        chances = np.exp(law(300.0, np.array([0.0, 0.1]), 399))
        assert chances[0].tolist() == [1.0] + [0.0] * 399
        assert chances[1].sum() == pytest.approx(1.0)
        mean = float(chances[1] @ counts)
        assert mean == pytest.approx(30.0)
        assert float(chances[1] @ counts**2) - mean**2 == pytest.approx(variance)


def test_model_bins_are_the_latencies_that_meet_the_slo() -> None:
    assert model_bins(((ms(8), ms(12)), (ms(30), ms(50))), SLO_NS) == (
        0,
        ms(8),
        ms(12),
        ms(30),
        SLO_NS,
    )


def test_model_bins_promise_what_fine_bins_do() -> None:
    fine = solve(small(slack_ns=fixed_bins(SLO_NS, 200)))
    by_model = solve(small(slack_ns=model_bins((FAST, GOOD), SLO_NS)))
    assert by_model.accuracy == pytest.approx(fine.accuracy, abs=0.01)


def test_missing_sizes_are_on_the_line_and_outliers_pulled_down() -> None:
    assert fill_sizes((1, 3), (10.0, 20.0), 4) == pytest.approx([10.0, 15.0, 20.0, 25.0])
    assert monotone_from_right((9.0, 7.0, 8.0, 12.0)) == [7.0, 7.0, 8.0, 12.0]


def test_pareto_front_keeps_what_nothing_beats() -> None:
    assert pareto_front((5.0, 9.0, 7.0, 5.0), (0.6, 0.8, 0.6, 0.5)) == [0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 0}, "workers=0"),
        ({"rate_rps": 0.0}, "rate_rps=0.0"),
        ({"reward": "both"}, "reward='both'"),
        ({"balancing": "random"}, "balancing='random'"),
        ({"accuracy": (0.5,)}, "accuracy"),
    ],
)
def test_problems_that_make_no_sense_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small(**changes)
