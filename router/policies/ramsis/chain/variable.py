"""Variable batching: a worker may leave part of its queue for later (RAMSIS section 4.3.2).

What stays behind makes the next queue depend on the whole state, so nothing factorises and the
chain runs over every (queue length, slack bin). It is for small cases, to see what maximal batching
loses.
"""

from dataclasses import dataclass

import numpy as np

from fermata.foundation.errors import ConfigError
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.solve import RESTART, ROUNDS_MAX
from fermata.router.policies.ramsis.chain.transitions import Transitions, actions_of, transitions_of
from fermata.router.policies.ramsis.counts import Floats, poisson

CELLS_MAX = 40_000_000
"""Entries of the transition table; above it takes gigabytes."""
GAIN_MIN = 1e-9


@dataclass(frozen=True, slots=True)
class VariableSolution:
    """As `Solution`, with a batch size beside each variant."""

    choice: tuple[tuple[tuple[int, int], ...], ...]
    """(variant, batch size), by queue length - 1 and slack bin."""
    accuracy: float
    violation: float


@dataclass(frozen=True, slots=True)
class _Decision:
    state: int
    variant: int
    size: int
    reward: float
    after: Floats
    """P(next state)."""


def solve_variable(problem: WorkerProblem) -> VariableSolution:
    """The best table that may split the queue, by policy iteration over every state."""
    _check(problem)
    by_state = _decisions(problem)
    chosen = [decisions[0] for decisions in by_state]
    for _ in range(ROUNDS_MAX):
        gain, value = _evaluate(chosen)
        better: list[_Decision] = []
        for decisions, present in zip(by_state, chosen, strict=True):
            worth = [_worth(each, gain, value) for each in decisions]
            best = decisions[int(np.argmax(worth))]
            gained = max(worth) - _worth(present, gain, value)
            better.append(best if gained > GAIN_MIN else present)
        if better == chosen:
            break
        chosen = better
    return _solution(problem, chosen)


def _check(problem: WorkerProblem) -> None:
    if problem.balancing != "round-robin" or problem.law is not poisson:
        raise ConfigError("variable batching is solved for the round robin and Poisson arrivals")
    if problem.reward != "query":
        raise ConfigError(f"reward={problem.reward!r}: variable batching counts by query")
    states = problem.queue_max * len(problem.slack_ns)
    cells = states * states * len(problem.accuracy) * problem.queue_max
    if cells > CELLS_MAX:
        raise ConfigError(
            f"variable batching needs {cells:,} transitions, above {CELLS_MAX:,}; "
            "lower queue_max, take fewer bins or use maximal batching"
        )


def _worth(decision: _Decision, gain: float, value: Floats) -> float:
    return decision.reward - gain * decision.size + float(decision.after @ value)


def _evaluate(chosen: list[_Decision]) -> tuple[float, Floats]:
    """Accuracy of the mean request and the states' values; the last state's is 0."""
    system = np.eye(len(chosen)) - np.stack([each.after for each in chosen])
    system[:, -1] = [each.size for each in chosen]
    rewards = np.array([each.reward for each in chosen])
    solved: Floats = np.asarray(np.linalg.solve(system, rewards), np.float64)
    gain = float(solved[-1])
    solved[-1] = 0.0
    return gain, solved


def _decisions(problem: WorkerProblem) -> list[list[_Decision]]:
    """The choices in each state, `length - 1` times bins plus bin."""
    longest, slack_ns = problem.queue_max, problem.slack_ns
    everywhere = np.ones((len(problem.accuracy), longest, len(slack_ns)), bool)
    for variant, row in enumerate(problem.latency_ns):
        everywhere[variant, len(row) :] = False
    actions = actions_of(problem, everywhere)
    moves = transitions_of(problem, actions)
    by_state: list[list[_Decision]] = []
    for length in range(1, longest + 1):
        for slack in range(len(slack_ns)):
            in_time = [
                (variant, size)
                for variant, row in enumerate(problem.latency_ns)
                for size in range(1, min(length, len(row)) + 1)
                if row[size - 1] <= slack_ns[slack]
            ]
            late = not in_time
            if late:
                able = [each for each in range(len(everywhere)) if everywhere[each, length - 1, 0]]
                fastest = min(able, key=lambda each: problem.latency_ns[each][length - 1])
                in_time = [(fastest, length)]
            state = (length - 1) * len(slack_ns) + slack
            by_state.append([])
            for variant, size in in_time:
                reward = 0.0 if late else size * problem.accuracy[variant]
                run_ns = problem.latency_ns[variant][size - 1]
                if size == length:
                    none_by = moves.none_by[actions.row[variant, size - 1]]
                    after = _after_all(moves, none_by, length, slack)
                else:
                    after = _after_part(problem, moves, length, slack, size, run_ns)
                after *= 1.0 - RESTART
                after[len(slack_ns) - 1] += RESTART
                by_state[-1].append(_Decision(state, variant, size, reward, after))
    return by_state


def _after_all(moves: Transitions, none_by: Floats, length: int, slack: int) -> Floats:
    """The whole queue went: as in `solve`, the first to come and those who follow it."""
    survival = none_by @ moves.phase[slack, length - 1]
    first = survival[:-1] - survival[1:]
    after: Floats = (first[:, None] * moves.followers[0]).T.copy()
    after[-1, 0] += first @ moves.overflow[0]
    after[0, -1] += survival[-1]
    return after.ravel()


def _after_part(
    problem: WorkerProblem, moves: Transitions, length: int, slack: int, size: int, run_ns: int
) -> Floats:
    """Some stay: the first of them came somewhere between the old first one and now.

    Given k central arrivals since then, evenly spread, it is the `size` K-th of them, so its place
    is Beta-distributed: P(place <= x) = P(at least size K of k fall below x).
    """
    longest, turns = problem.queue_max, problem.workers
    edges_ns = np.array([*problem.slack_ns[1:], 2 * problem.slo_ns], np.float64)
    since_ns = problem.slo_ns - problem.slack_ns[slack]
    place = np.clip((edges_ns + run_ns - problem.slack_ns[slack]) / max(1, since_ns), 0.0, 1.0)
    after = np.zeros((longest, len(edges_ns)))
    new = np.exp(problem.law(problem.rate_rps, np.array([run_ns * 1e-9]), longest * turns))[0]
    for phase, share in enumerate(moves.phase[slack, length - 1]):
        by_edge = _at_least(size * turns, (length - 1) * turns + phase, place)
        bins = np.diff(by_edge, prepend=0.0)
        for stays in range(length - size, longest + 1):
            joined = stays - (length - size)
            low, high = max(0, joined * turns - phase), (joined + 1) * turns - phase
            if stays < longest:
                after[stays - 1] += share * float(new[low:high].sum()) * bins
            else:
                here = float(new[low:high].sum())
                beyond = max(0.0, 1.0 - float(new[:high].sum()))
                after[-1] += share * here * bins
                after[-1, 0] += share * beyond
    return after.ravel()


def _at_least(count: int, trials: int, chance: Floats) -> Floats:
    """P(a binomial is at least `count`), for each chance."""
    counts = np.arange(count, trials + 1)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    ways = log_factorial[trials] - log_factorial[counts] - log_factorial[trials - counts]
    inside = np.clip(chance, 1e-300, 1.0 - 1e-16)[:, None]
    law = np.exp(ways + counts * np.log(inside) + (trials - counts) * np.log1p(-inside))
    return np.where(chance >= 1.0, 1.0, np.where(chance <= 0.0, 0.0, law.sum(axis=1)))


def _solution(problem: WorkerProblem, chosen: list[_Decision]) -> VariableSolution:
    system = (np.eye(len(chosen)) - np.stack([each.after for each in chosen])).T
    system[0] = 1.0
    at = np.linalg.solve(system, np.eye(len(chosen))[0])
    served = at * [each.size for each in chosen]
    in_time = float(sum(part for part, each in zip(served, chosen, strict=True) if each.reward))
    earned = float(at @ [each.reward for each in chosen])
    bins = len(problem.slack_ns)
    pairs = [(each.variant, each.size) for each in chosen]
    rows = tuple(tuple(pairs[row * bins : (row + 1) * bins]) for row in range(problem.queue_max))
    return VariableSolution(rows, earned / in_time, max(0.0, 1.0 - in_time / float(served.sum())))
