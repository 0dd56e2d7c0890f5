"""Queues longer than the largest batch: the first run, and the others wait for the next turn.

All such queues are decided on alike. So of the request that is first next, only the time of its
arrival is known, and what came after it is as independent of the past as after any other.
"""

from dataclasses import dataclass

import numpy as np

from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.counts import Floats

POINTS = 4
"""Points within a bin at which arrivals are counted."""


@dataclass(frozen=True, slots=True)
class Carry:
    """Requests that stay behind in queues that are at least as long as the largest batch."""

    beyond: Floats
    """P(longer than that batch), by bin of the first request."""
    central: Floats
    """Central arrivals since the first request of such a queue, by its bin."""
    none_by: Floats
    """P(slack of the next first request is at least that of the edge), by variant, bin and edge;
    last, the end of the run, before which it is always there."""


def carry_of(
    problem: WorkerProblem, full: Floats, overflow: Floats, rate_rps: float, turns: int
) -> Carry:
    """`full` and `overflow`: P(as long as the largest batch) and P(longer), by bin."""
    longest, bins = problem.queue_max, len(problem.slack_ns)
    none_by = np.zeros((len(problem.accuracy), bins, bins + 1))
    none_by[:, :, 0] = 1.0
    possible = overflow > 1e-12
    if not problem.drops or not possible.any():
        return Carry(np.zeros(bins), np.zeros(bins), none_by)
    beyond = np.where(possible, overflow / np.maximum(full + overflow, 1e-300), 0.0)
    low_ns, high_ns = spans_ns(problem)
    # The next first request is the K b-th central arrival after the present one.
    grid_ns = np.linspace(0.0, problem.slo_ns, POINTS * bins + 1)
    counts = np.exp(problem.law(rate_rps, grid_ns * 1e-9, longest * turns - 1))
    come = np.maximum.accumulate(np.clip(1.0 - counts.sum(axis=1), 0.0, 1.0))
    steps = (come[1:] + come[:-1]) / 2.0 * np.diff(grid_ns)
    total = np.concatenate(([0.0], np.cumsum(steps)))

    def mean(begin_ns: Floats, end_ns: Floats) -> Floats:
        """P(it has come), over a span of times since the present one."""
        inside = np.interp(end_ns, grid_ns, total) - np.interp(begin_ns, grid_ns, total)
        return inside / (end_ns - begin_ns)

    by_now = np.maximum(mean(problem.slo_ns - high_ns, problem.slo_ns - low_ns), 1e-300)[:, None]
    edges_ns = np.array(problem.slack_ns[1:], np.float64)[None, :]
    for variant, row in enumerate(problem.latency_ns):
        if len(row) >= longest:
            ends_ns = edges_ns + row[longest - 1]
            before = mean(ends_ns - high_ns[:, None], ends_ns - low_ns[:, None]) / by_now
            none_by[variant, :, 1:-1] = 1.0 - np.where(ends_ns < problem.slo_ns, before, 1.0)
    since_s = (problem.slo_ns - (low_ns + high_ns) / 2.0) * 1e-9
    central = np.maximum(rate_rps * since_s, (longest + 0.5) * turns)
    return Carry(beyond, central, np.clip(none_by, 0.0, 1.0))


def spans_ns(problem: WorkerProblem) -> tuple[Floats, Floats]:
    """Both ends of each bin. Slack is anywhere between them: taken at one point, it would never
    leave a bin that is longer than what it changes by. The last bin is a point, nearly."""
    edges_ns = np.array([*problem.slack_ns, problem.slo_ns + 1], np.float64)
    return edges_ns[:-1], edges_ns[1:]
