"""The best table for a worker, by exact average-reward policy iteration."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fermata.router.policies.ramsis.chain.landing import Landing, landing_of, timely_share
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.transitions import (
    Actions,
    Integers,
    Transitions,
    actions_of,
    transitions_of,
)
from fermata.router.policies.ramsis.counts import Floats

ROUNDS_MAX = 100
SHARE_MIN = 1e-18
"""Queue lengths less likely than this are left out of the chain."""
LOSS = 2.0
"""Price of a request that is dropped, in right answers. Were it 0, the best table would drop many
to answer the others better. The dearer, the sooner fast variants run to be on the safe side."""
RESTART = 1e-9
"""Chance that the worker starts anew before a decision, with an empty queue. Without it, a chain
could fall into parts that never meet: there a short queue stays short and a long one long, and its
equations have no single solution."""
GAIN_MIN = 1e-10
"""A choice is changed only for more than this: ties must not go round in circles."""


@dataclass(frozen=True, slots=True)
class TableSolution:
    """A table with what it promises (RAMSIS section 5.1), counted by request."""

    choice: tuple[tuple[int, ...], ...]
    """The variant, by queue length - 1 and slack bin."""
    accuracy: float
    """Expected, of requests answered in time."""
    violation: float
    """Expected share of requests that are late or dropped."""
    rounds: int
    """Rounds of policy iteration."""


@dataclass(frozen=True, slots=True)
class _Rules:
    valid: npt.NDArray[np.bool_]
    """By variant, queue length - 1, bin."""
    in_time: npt.NDArray[np.bool_]
    """By queue length - 1 and bin: whether any variant is."""
    timely: Floats
    """Share of the queue that is in time, by queue length - 1 and bin."""
    reward: Floats
    """By variant, queue length - 1 and bin; not yet weighted."""
    weight: Floats
    """The reward of a decision, by queue length - 1."""
    fastest: Integers
    """By queue length - 1."""
    fastest_ns: Floats
    """Run time of that one."""


def solve(problem: WorkerProblem, start: TableSolution | None = None) -> TableSolution:
    """The table that maximises the problem's reward in the long run. From one for about the same
    load (`start`) it is found sooner."""
    rules = _rules(problem)
    actions = actions_of(problem, rules.valid)
    moves = transitions_of(problem, actions)
    rules, landing = _landed(problem, rules, moves)
    choice = _first_guess(problem, rules) if start is None else np.array(start.choice, np.int64)
    rounds = 0
    while True:
        rounds += 1
        chain, reward, weight = _chain(rules, actions, moves, landing, choice)
        gain, value = _evaluate(chain, reward, weight)
        better = _improve(rules, actions, moves, gain, value, choice)
        if np.array_equal(better, choice) or rounds == ROUNDS_MAX:
            break
        choice = better
    accuracy, violation = _guarantees(problem.accuracy, rules, landing, chain, choice)
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
    rules, landing = _landed(problem, rules, moves)
    chain, _, _ = _chain(rules, actions, moves, landing, table)
    return _guarantees(problem.accuracy, rules, landing, chain, table)


def _landed(problem: WorkerProblem, rules: _Rules, moves: Transitions) -> tuple[_Rules, Landing]:
    """The queues that are decided on; and where late ones run, the share of them that is in time
    all the same. By decision, a late batch counts as late whole, as the paper has it."""
    landing = landing_of(problem, moves, rules.in_time)
    if problem.drops or problem.reward == "decision":
        return rules, landing
    timely = timely_share(problem, moves, rules.fastest_ns, rules.in_time)
    return replace(rules, timely=np.where(rules.in_time, 1.0, timely)), landing


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
    timely = in_time.astype(np.float64)
    fastest_ns = latency_ns.min(axis=0).astype(np.float64)
    return _Rules(valid, in_time, timely, accuracy * timely, weight, fastest, fastest_ns)


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
    rules: _Rules, actions: Actions, moves: Transitions, landing: Landing, choice: Integers
) -> tuple[Floats, Floats, Floats]:
    """The table's Markov chain over (regime, slack bin), and last the empty queue; with the
    expected reward and weight of the decision taken there."""
    longest, bins = choice.shape
    regimes = len(moves.followers)
    empty = regimes * bins
    # By node and, at first, P(no request by the edge), of which each edge's fall is its bin's.
    none_by = np.zeros((empty + 1, regimes, bins + 1))
    for length in range(longest):
        here, there = landing.share[:, length], moves.regime[length]
        used = here.max(axis=0) > SHARE_MIN
        for variant in np.unique(choice[length, used]):
            mine = np.flatnonzero((choice[length] == variant) & used)
            after = moves.phase[mine, length] @ moves.none_by[actions.row[variant, length]].T
            if length == longest - 1:
                beyond = moves.carry.beyond[mine, None]
                after = (1.0 - beyond) * after + beyond * moves.carry.none_by[variant, mine]
            if landing.moved[length]:
                none_by[:, there] += here[:, mine] @ after
                continue
            for regime in range(regimes):
                own = regime * bins + mine
                none_by[own, there] += here[own, mine, None] * after
    chain = np.empty((empty + 1, empty + 1))
    chain[:, :empty] = (none_by[:, :, :-1] - none_by[:, :, 1:]).reshape(empty + 1, empty)
    chain[:, empty] = none_by[:, :, -1].sum(axis=1) + landing.emptied
    chain *= 1.0 - RESTART
    chain[:, empty] += RESTART
    earned = np.take_along_axis(rules.reward, choice[None], axis=0)[0] * rules.weight[:, None]
    reward = np.tensordot(landing.share, earned, axes=2) - LOSS * landing.lost
    weight = landing.share.sum(axis=2) @ rules.weight + landing.lost
    return chain, reward, weight


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
        worth = steps[moves.regime[length]]
        future = worth @ of_actions @ moves.phase[:, length].T
        if length == longest - 1:
            beyond = moves.carry.beyond
            future = (1.0 - beyond) * future + beyond * (moves.carry.none_by[variants] @ worth)
        now = (rules.reward[variants, length] - gain) * rules.weight[length]
        total[variants, length] = now + (1.0 - RESTART) * future
    total[~rules.valid] = -np.inf
    best = total.argmax(axis=0)
    gained = total.max(axis=0) - np.take_along_axis(total, choice[None], axis=0)[0]
    return np.where(gained > GAIN_MIN, best, choice)


def _guarantees(
    accuracy: tuple[float, ...], rules: _Rules, landing: Landing, chain: Floats, choice: Integers
) -> tuple[float, float]:
    """Expected accuracy of requests in time, and share of those that are not."""
    system = (np.eye(len(chain)) - chain).T
    system[0] = 1.0
    target = np.zeros(len(chain))
    target[0] = 1.0
    at = np.linalg.solve(system, target)
    visits = np.tensordot(at, landing.share, axes=1)
    served = visits * np.arange(1, len(choice) + 1)[:, None]
    in_time = float((served * rules.timely).sum())
    right = np.array(accuracy)[choice] * rules.timely
    expected = float((served * right).sum()) / in_time if in_time > 0.0 else 0.0
    come = float(served.sum()) + float(at @ landing.lost)
    return expected, max(0.0, 1.0 - in_time / come)
