"""The consequences of a decision: when the worker's next request comes, and how many after it.

RAMSIS Eq. 2 sums over four intervals. It falls into two factors: once the first new request has
come, the worker's turn in the round robin is known again, so how many follow depends on the time
since then alone. With t the time to that request, the next slack is its SLO less what is left of
the run, and P(n', j' | n, j, action) = P(slack j') * P(n' | slack j'): `first` and `followers`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.router.policies.ramsis.chain.carry import Carry, carry_of
from fermata.router.policies.ramsis.chain.problem import WorkerProblem, shortest_queue_rates
from fermata.router.policies.ramsis.counts import Floats

Integers = npt.NDArray[np.int64]
FINE_BINS = 100
"""Bins longer than this part of the SLO are averaged over points so far apart."""


@dataclass(frozen=True, slots=True)
class Actions:
    """Every (variant, batch size) that is ever valid, in one column."""

    variant: Integers
    size: Integers
    latency_ns: Integers
    row: Integers
    """By variant and size - 1: where the action stands; -1 where it never may be chosen."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """The two factors of all transitions.

    A regime is what the arrivals after a decision depend on: one for the round robin, two for the
    shortest queue first (queues of at most two, and longer ones).
    """

    regime: Integers
    """By queue length - 1."""
    phase: Floats
    """Round-robin turn of the worker, by bin, queue length - 1 and central arrivals since its
    last request; sums to 1 over those."""
    none_by: Floats
    """P(no request for the worker by the time that gives the next slack), by action, edge
    of a bin (last the end of the run) and phase."""
    followers: Floats
    """P(queue length | slack of its first request), by regime, bin and queue length - 1."""
    overflow: Floats
    """P(more than the queue holds), by regime and bin."""
    carry: Carry


def actions_of(problem: WorkerProblem, valid: npt.NDArray[np.bool_]) -> Actions:
    """The columns of what `valid` (by variant, size - 1, bin) allows anywhere."""
    variant, size = np.nonzero(valid.any(axis=2))
    row = np.full(valid.shape[:2], -1, np.int64)
    row[variant, size] = np.arange(len(variant))
    latency_ns = np.array(
        [problem.latency_ns[m][n] for m, n in zip(variant, size, strict=True)], np.int64
    )
    return Actions(variant, size, latency_ns, row)


def transitions_of(problem: WorkerProblem, actions: Actions) -> Transitions:
    """Both factors, for the problem's load and balancing."""
    longest = problem.queue_max
    if problem.balancing == "round-robin":
        regime = np.zeros(longest, np.int64)
        rates: tuple[float, ...] = (problem.rate_rps,)
        turns = problem.workers
    else:
        # Which request comes here is no longer a matter of turns: a stream with its own rate.
        regime = (np.arange(1, longest + 1) > 2).astype(np.int64)
        rates, turns = shortest_queue_rates(problem), 1
    counted = [_counted(problem, rate, turns) for rate in rates]
    followers = np.stack([followers for followers, _ in counted])
    phase = np.empty_like(counted[0][1])
    for index, (_, of_rate) in enumerate(counted):
        phase[:, regime == index] = of_rate[:, regime == index]
    if len(rates) == 1:
        none_by = _none_by(problem, actions.latency_ns, rates[0], turns)
    else:
        none_by = np.empty((len(actions.size), len(problem.slack_ns) + 1, turns))
        for index, rate in enumerate(rates):
            mine = regime[actions.size] == index
            none_by[mine] = _none_by(problem, actions.latency_ns[mine], rate, turns)
    overflow = np.maximum(0.0, 1.0 - followers.sum(axis=2))
    last = regime[-1]
    carry = carry_of(problem, followers[last, :, -1], overflow[last], rates[last], turns)
    return Transitions(regime, phase, none_by, followers, overflow, carry)


def _counted(problem: WorkerProblem, rate_rps: float, turns: int) -> tuple[Floats, Floats]:
    """P(queue length | bin) and P(phase | bin, queue length): blocks of central arrivals, one for
    each request of the worker."""
    longest, slo_ns = problem.queue_max, problem.slo_ns
    edges_ns = np.array(problem.slack_ns, np.float64)
    width_ns = np.append(np.diff(edges_ns), 0.0)
    points = max(1, int(np.ceil(width_ns.max() * FINE_BINS / slo_ns - 1e-6)))
    followers = np.zeros((len(edges_ns), longest))
    weight = np.full((len(edges_ns), longest, turns), -np.inf)
    for point in range(points):
        # The request came somewhere within the bin: at its points' middles for what followed it;
        # at their lower ends for the phase, as the slack is rounded down.
        middle_s = (slo_ns - edges_ns - width_ns * (point + 0.5) / points) * 1e-9
        floor_s = (slo_ns - edges_ns - width_ns * point / points) * 1e-9
        blocks = problem.law(rate_rps, np.maximum(middle_s, 0.0), longest * turns - 1)
        followers += np.exp(blocks).reshape(len(edges_ns), longest, turns).sum(axis=2) / points
        blocks = problem.law(rate_rps, np.maximum(floor_s, 0.0), longest * turns - 1)
        weight = np.logaddexp(weight, blocks.reshape(weight.shape))
    return followers, _normalised(weight)


def _normalised(log_weight: Floats) -> Floats:
    """Shares from logarithms of weights, however small they are; all on phase 0 where none is."""
    top = log_weight.max(axis=2, keepdims=True)
    possible = np.isfinite(top)
    share = np.where(possible, np.exp(log_weight - np.where(possible, top, 0.0)), 0.0)
    share[..., :1] += ~possible
    normalised: Floats = share / share.sum(axis=2, keepdims=True)
    return normalised


def _none_by(problem: WorkerProblem, latency_ns: Integers, rate_rps: float, turns: int) -> Floats:
    """P(fewer central arrivals than the worker's turn needs), at every edge of every action.

    The edge of bin j is l + T_j - SLO after the start: who comes then has slack T_j at the end.
    Bin 0 reaches back to the start (negative slack), and everything ends with the run.
    """
    edges_ns = np.append(np.array(problem.slack_ns, np.int64), 2 * problem.slo_ns)
    reach_ns = latency_ns[:, None] + edges_ns[None, :] - problem.slo_ns
    reach_ns = np.clip(reach_ns, 0, latency_ns[:, None])
    reach_ns[:, 0] = 0
    none_by = np.ones((*reach_ns.shape, turns))
    later = reach_ns > 0
    counts = problem.law(rate_rps, reach_ns[later] * 1e-9, turns - 1)
    np.exp(counts, out=counts)
    # At phase r the worker's request is the (K - r)-th to come.
    none_by[later] = np.cumsum(counts, axis=-1, out=counts)[:, ::-1]
    return none_by
