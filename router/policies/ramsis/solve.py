"""The best table for a worker, by exact average-reward policy iteration."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.router.policies.ramsis.counts import Floats
from fermata.router.policies.ramsis.problem import WorkerProblem
from fermata.router.policies.ramsis.transitions import (
    Actions,
    Integers,
    Transitions,
    actions_of,
    transitions_of,
)

ROUNDS_MAX = 100
SHARE_MIN = 1e-18
"""Queue lengths less likely than this are left out of the chain."""
GAIN_MIN = 1e-10
"""A choice is changed only for more than this: ties must not go round in circles."""


@dataclass(frozen=True, slots=True)
class TableSolution:
    """A table with what it promises (RAMSIS section 5.1, weighted by batch size)."""

    choice: tuple[tuple[int, ...], ...]
    """The variant, by queue length - 1 and slack bin."""
    accuracy: float
    """Expected, of requests answered in time; at least that much."""
    violation: float
    """Expected share of late requests; at most that much: a batch whose first request is late
    counts as late whole."""
    rounds: int
    """Rounds of policy iteration."""


@dataclass(frozen=True, slots=True)
class _Rules:
    valid: npt.NDArray[np.bool_]
    """By variant, queue length - 1, bin."""
    in_time: npt.NDArray[np.bool_]
    """By queue length - 1 and bin: whether any variant is."""
    reward: Floats
    """By variant, queue length - 1 and bin; not yet weighted."""
    weight: Floats
    """The reward of a decision, by queue length - 1."""
    fastest: Integers
    """By queue length - 1."""


def solve(problem: WorkerProblem) -> TableSolution:
    """The table that maximises the problem's reward in the long run."""
    rules = _rules(problem)
    actions = actions_of(problem, rules.valid)
    moves = transitions_of(problem, actions)
    choice = _first_guess(problem, rules)
    rounds = 0
    while True:
        rounds += 1
        chain, reward, weight = _chain(rules, actions, moves, choice)
        gain, value = _evaluate(chain, reward, weight)
        better = _improve(rules, actions, moves, gain, value, choice)
        if np.array_equal(better, choice) or rounds == ROUNDS_MAX:
            break
        choice = better
    accuracy, violation = _guarantees(rules, moves, chain, choice)
    rows = tuple(tuple(row) for row in choice.tolist())
    return TableSolution(rows, accuracy, violation, rounds)


def promises(problem: WorkerProblem, choice: tuple[tuple[int, ...], ...]) -> tuple[float, float]:
    """Expected accuracy and violation of any table, as of `TableSolution`."""
    rules = _rules(problem)
    table = np.array(choice, np.int64)
    allowed = np.take_along_axis(rules.valid, table[None], axis=0)[0]
    assert allowed.all(), "the table runs a variant where it must not"
    actions = actions_of(problem, rules.valid)
    moves = transitions_of(problem, actions)
    chain, _, _ = _chain(rules, actions, moves, table)
    return _guarantees(rules, moves, chain, table)


def _rules(problem: WorkerProblem) -> _Rules:
    """Which variant may run where: any that is in time, or else the fastest (section 4.3.1)."""
    longest = problem.queue_max
    never_ns = np.iinfo(np.int64).max
    latency_ns = np.full((len(problem.accuracy), longest), never_ns)
    for variant, row in enumerate(problem.latency_ns):
        known = min(longest, len(row))
        latency_ns[variant, :known] = row[:known]
    slack_ns = np.array(problem.slack_ns, np.int64)
    valid = latency_ns[:, :, None] <= slack_ns
    in_time: npt.NDArray[np.bool_] = np.asarray(valid.any(axis=0))
    fastest = latency_ns.argmin(axis=0)
    lengths = np.arange(longest)
    valid[fastest[:, None], lengths[:, None], np.arange(len(slack_ns))] |= ~in_time
    accuracy = np.array(problem.accuracy)[:, None, None]
    weight: Floats = np.ones(longest)
    if problem.reward == "query":
        weight += lengths
    return _Rules(valid, in_time, np.where(in_time, accuracy, 0.0), weight, fastest)


def _first_guess(problem: WorkerProblem, rules: _Rules) -> Integers:
    """Everywhere the most accurate variant whose cost per request the load leaves time for."""
    longest, bins = rules.in_time.shape
    left_ns = problem.workers * 1e9 / problem.rate_rps
    choice = np.repeat(rules.fastest[:, None], bins, axis=1)
    for variant in np.argsort(problem.accuracy):
        row = problem.latency_ns[variant][:longest]
        for length, run_ns in enumerate(row):
            if run_ns <= left_ns * (length + 1):
                choice[length, rules.valid[variant, length]] = variant
    return choice


def _chain(
    rules: _Rules, actions: Actions, moves: Transitions, choice: Integers
) -> tuple[Floats, Floats, Floats]:
    """The table's Markov chain over (regime, slack bin), and last the empty queue; with the
    expected reward and weight of the decision taken there."""
    longest, bins = choice.shape
    regimes = len(moves.followers)
    empty = regimes * bins
    # By node and, at first, P(no request by the edge), of which each edge's fall is its bin's.
    none_by = np.zeros((empty + 1, regimes, bins + 1))
    for length in range(longest):
        there = moves.regime[length]
        for variant in np.unique(choice[length]):
            of_action = moves.none_by[actions.row[variant, length]]
            for regime in range(regimes):
                share = moves.followers[regime][:, length]
                mine = np.flatnonzero((choice[length] == variant) & (share > SHARE_MIN))
                weighted = moves.phase[mine, length] * share[mine, None]
                none_by[regime * bins + mine, there] += weighted @ of_action.T
    # More than the queue holds: it is full, with no slack (section 4.2.3). An empty queue waits for
    # one request, which has all of its SLO left (Eq. 1).
    overflow = np.append(moves.overflow.ravel(), 0.0)
    full = moves.none_by[actions.row[choice[-1, 0], -1]] @ moves.phase[0, -1]
    none_by[:, moves.regime[-1]] += overflow[:, None] * full
    alone = moves.none_by[actions.row[choice[0, -1], 0]] @ moves.phase[-1, 0]
    none_by[empty, moves.regime[0]] = alone
    chain = np.empty((empty + 1, empty + 1))
    chain[:, :empty] = (none_by[:, :, :-1] - none_by[:, :, 1:]).reshape(empty + 1, empty)
    chain[:, empty] = none_by[:, :, -1].sum(axis=1)
    earned = np.take_along_axis(rules.reward, choice[None], axis=0)[0] * rules.weight[:, None]
    reward = np.concatenate([(share * earned.T).sum(axis=1) for share in moves.followers])
    reward = np.append(reward, earned[0, -1]) + overflow * earned[-1, 0]
    weight = np.append((moves.followers @ rules.weight).ravel(), rules.weight[0])
    return chain, reward, weight + overflow * rules.weight[-1]


def _evaluate(chain: Floats, reward: Floats, weight: Floats) -> tuple[float, Floats]:
    """Reward for each unit of weight in the long run, and the nodes' values beside the empty
    queue's: v + g w = r + P v, v(empty) = 0."""
    system = np.eye(len(chain)) - chain
    system[:, -1] = weight
    solved: Floats = np.asarray(np.linalg.solve(system, reward), np.float64)
    gain = float(solved[-1])
    solved[-1] = 0.0
    return gain, solved


def _improve(
    rules: _Rules,
    actions: Actions,
    moves: Transitions,
    gain: float,
    value: Floats,
    choice: Integers,
) -> Integers:
    """The best choice everywhere if what follows is worth `value`; ties stay as they are."""
    longest, bins = choice.shape
    # Sum over bins of (P(none by its begin) - P(none by its end)) * value, by parts.
    of_bin = value[:-1].reshape(-1, bins)
    steps = np.pad(of_bin, ((0, 0), (0, 1))) - np.pad(of_bin, ((0, 0), (1, 0)))
    total = np.full(rules.valid.shape, -np.inf)
    for length in range(longest):
        variants = np.nonzero(actions.row[:, length] >= 0)[0]
        of_actions = moves.none_by[actions.row[variants, length]]
        future = steps[moves.regime[length]] @ of_actions @ moves.phase[:, length].T
        now = (rules.reward[variants, length] - gain) * rules.weight[length]
        total[variants, length] = now + future
    total[~rules.valid] = -np.inf
    best = total.argmax(axis=0)
    gained = total.max(axis=0) - np.take_along_axis(total, choice[None], axis=0)[0]
    return np.where(gained > GAIN_MIN, best, choice)


def _guarantees(
    rules: _Rules, moves: Transitions, chain: Floats, choice: Integers
) -> tuple[float, float]:
    """Expected accuracy of requests in time, and share of those that are not."""
    longest, bins = choice.shape
    system = (np.eye(len(chain)) - chain).T
    system[0] = 1.0
    target = np.zeros(len(chain))
    target[0] = 1.0
    at = np.linalg.solve(system, target)
    visits = np.zeros((longest, bins))
    for regime in range(len(moves.followers)):
        node = at[regime * bins : (regime + 1) * bins]
        visits += (moves.followers[regime] * node[:, None]).T
        visits[-1, 0] += node @ moves.overflow[regime]
    visits[0, -1] += at[-1]
    served = visits * np.arange(1, longest + 1)[:, None]
    in_time = float((served * rules.in_time).sum())
    earned = np.take_along_axis(rules.reward, choice[None], axis=0)[0]
    accuracy = float((served * earned).sum()) / in_time if in_time > 0.0 else 0.0
    return accuracy, max(0.0, 1.0 - in_time / float(served.sum()))
