"""The queue that a decision is taken on, once those that cannot be in time have gone.

Where nothing runs past its deadline, a late queue loses its first requests until a variant can run
the rest (`fermata.router.policies.ramsis.overload`). The paper runs it whole.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.router.policies.ramsis.chain.carry import spans_ns
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.transitions import Integers, Transitions
from fermata.router.policies.ramsis.counts import Floats

SHARE_MIN = 1e-9
"""Queues less likely than this are not followed further."""
LONG_GAP = 3.0
"""Bins that are this many times shorter than gaps between requests may be taken at a point."""


@dataclass(frozen=True, slots=True)
class Landing:
    """By node of the chain: regime and slack bin of a queue's first request; last, no queue."""

    share: Floats
    """P(queue length, bin) of the decision, by node, length - 1 and bin."""
    lost: Floats
    """Expected requests that go without a decision."""
    emptied: Floats
    """P(all of them go)."""
    moved: npt.NDArray[np.bool_]
    """By length - 1: whether any is decided on in another bin than its node's."""


def landing_of(
    problem: WorkerProblem, moves: Transitions, in_time: npt.NDArray[np.bool_]
) -> Landing:
    """The decisions' queues; `in_time` says, by length - 1 and bin, where any variant is."""
    regimes, bins, longest = moves.followers.shape
    share = np.zeros((regimes * bins + 1, longest, bins))
    at = np.arange(bins)
    for regime in range(regimes):
        share[regime * bins + at, :, at] = moves.followers[regime]
        if problem.drops:
            share[regime * bins + at, -1, at] += moves.overflow[regime]
        else:
            # More than the queue holds: it is full, with no slack (section 4.2.3).
            share[regime * bins + at, -1, 0] += moves.overflow[regime]
    # An empty queue waits for one request, which has all of its SLO left (Eq. 1).
    share[-1, 0, -1] = 1.0
    moved = np.zeros(longest, np.bool_)
    moved[0], moved[-1] = True, True
    landing = Landing(share, np.zeros(len(share)), np.zeros(len(share)), moved)
    if problem.drops:
        for length in range(longest, 0, -1):
            _drop_first(problem, moves, landing, length, np.flatnonzero(~in_time[length - 1]))
    return landing


def _drop_first(
    problem: WorkerProblem, moves: Transitions, landing: Landing, length: int, late: Integers
) -> None:
    """Take one request off every queue of this length that is in a late bin."""
    share, turns, longest = landing.share, moves.phase.shape[2], moves.followers.shape[2]
    going = share[:, length - 1, late]
    if not going.size or going.max() < SHARE_MIN:
        return
    share[:, length - 1, late] = 0.0
    beyond = moves.carry.beyond[late] if length == longest else np.zeros(len(late))
    if beyond.any():
        # Those longer than the largest batch stay so when one goes.
        stays = _next_slack(problem, moves, late, moves.carry.central[late]) * beyond[:, None]
        going = going @ np.linalg.inv(np.eye(len(late)) - stays[:, late])
        stays[:, late] = 0.0
        share[:, length - 1] += going @ stays
    landing.lost[:] += going.sum(axis=1)
    going = going * (1.0 - beyond)
    if length == 1:
        landing.emptied[:] += going.sum(axis=1)
        return
    central = (length - 1) * turns + _mean_phase(moves, length, late)
    share[:, length - 2] += going @ _next_slack(problem, moves, late, central)
    landing.moved[length - 2] = True


def timely_share(
    problem: WorkerProblem, moves: Transitions, run_ns: Floats, in_time: npt.NDArray[np.bool_]
) -> Floats:
    """Share of a queue that is in time though its first request is not, by length - 1 and bin.

    `run_ns` is what the fastest variant takes, by length. Slack below 0 stands in bin 0, so nothing
    is promised there.
    """
    longest, bins = in_time.shape
    share = np.zeros((longest, bins))
    turns = moves.phase.shape[2]
    for length in range(2, longest + 1):
        late = np.flatnonzero(~in_time[length - 1])
        late = late[late > 0]
        if not late.size or moves.followers[:, late, length - 1].max() < SHARE_MIN:
            continue
        slack_ns, since_ns = _middles(problem, late)
        place = np.clip((run_ns[length - 1] - slack_ns) / since_ns, 0.0, 1.0)
        central = (length - 1) * turns + _mean_phase(moves, length, late)
        order = np.arange(1, length)[:, None] * turns
        early = beta_cdf(order, central - order + 1.0, place)
        share[length - 1, late] = (1.0 - early).sum(axis=0) / length
    return share


def _middles(problem: WorkerProblem, bins: Integers) -> tuple[Floats, Floats]:
    """Slack in the middle of these bins, and the time since such a request has come."""
    edges_ns = np.array([*problem.slack_ns, problem.slo_ns], np.float64)
    slack_ns = (edges_ns[bins] + edges_ns[bins + 1]) / 2.0
    return slack_ns, np.maximum(problem.slo_ns - slack_ns, 1.0)


def _mean_phase(moves: Transitions, length: int, bins: Integers) -> Floats:
    """Central arrivals since the worker's last request."""
    phase: Floats = moves.phase[bins, length - 1] @ np.arange(moves.phase.shape[2], dtype=float)
    return phase


def _next_slack(
    problem: WorkerProblem, moves: Transitions, late: Integers, central: Floats
) -> Floats:
    """P(bin of the second request), by bin of the first and central arrivals since then.

    These are spread evenly over the time (exactly so where they are Poisson), and the second
    request is the K-th of them.
    """
    turns = float(moves.phase.shape[2])
    low_ns, high_ns = (each[late, None] for each in spans_ns(problem))
    since_ns = np.maximum(problem.slo_ns - (low_ns + high_ns) / 2.0, 1.0)
    edges_ns = np.array(problem.slack_ns[1:], np.float64)
    after = central[:, None] - turns + 1.0
    middle_ns = (low_ns + high_ns) / 2.0
    if (since_ns * turns >= LONG_GAP * (high_ns - low_ns) * (turns + after)).all():
        by_edge = beta_cdf(turns, after, np.clip((edges_ns - middle_ns) / since_ns, 0.0, 1.0))
    else:
        until_high, until_low = (
            beta_cdf_sum(turns, after, (edges_ns - end_ns) / since_ns)
            for end_ns in (low_ns, high_ns)
        )
        by_edge = np.clip((until_high - until_low) * since_ns / (high_ns - low_ns), 0.0, 1.0)
    by_edge = np.concatenate((by_edge, np.ones((len(late), 1))), axis=1)
    law: Floats = np.maximum(np.diff(by_edge, axis=1, prepend=0.0), 0.0)
    law /= law.sum(axis=1, keepdims=True)
    return law


def beta_cdf_sum(before: float, after: Floats, place: Floats) -> Floats:
    """The integral of that Beta law's `beta_cdf` from 0 to the place, which may be beyond 1."""
    inside = np.clip(place, 0.0, 1.0)
    mean = before / (before + after)
    risen = inside * beta_cdf(before, after, inside)
    total: Floats = risen - mean * beta_cdf(before + 1.0, after, inside)
    return total + np.maximum(place - 1.0, 0.0)


def beta_cdf(before: float | Integers, after: Floats, place: Floats) -> Floats:
    """P(Beta(before, after) <= place), by Paulson's approximation; good to about 0.01."""
    inside = np.clip(place, 1e-12, 1.0 - 1e-12)
    root = np.cbrt(inside / (1.0 - inside) * after / before)
    spread, own = 1.0 / (9.0 * after), 1.0 / (9.0 * before)
    score = ((1.0 - spread) * root - (1.0 - own)) / np.sqrt(spread * root**2 + own)
    normal = 0.5 + 0.5 * np.tanh(0.7978845608 * (score + 0.044715 * score**3))
    law: Floats = np.where(place <= 0.0, 0.0, np.where(place >= 1.0, 1.0, normal))
    return law
