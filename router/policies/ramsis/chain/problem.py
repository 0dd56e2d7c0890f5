"""The problem that one worker's table solves: its queue, its variants and what arrives there."""

import math
from dataclasses import dataclass, replace

from fermata.foundation.errors import ConfigError
from fermata.router.policies.ramsis.counts import CountLaw, poisson
from fermata.router.policies.ramsis.options import BALANCINGS, REWARDS

QUEUE_MAX = 256
"""Simulations know batches of a thousand where the SLO allows them. Tables for such queues take
minutes to solve and gain nothing, so they have to be asked for."""
BINS = 100


@dataclass(frozen=True, slots=True)
class WorkerProblem:
    """A worker that takes every K-th request and must choose a variant for all that wait."""

    latency_ns: tuple[tuple[int, ...], ...]
    """By variant, then by batch size from 1; a row ends where the variant takes no more."""
    accuracy: tuple[float, ...]
    slo_ns: int
    workers: int
    rate_rps: float
    """Rate of all workers together, as at the central queue."""
    slack_ns: tuple[int, ...] = ()
    """Slack that the table tells apart, ascending from 0 to the SLO: a bin holds what is at least
    its value and below the next one's. Empty: `BINS` of equal length."""
    law: CountLaw = poisson
    balancing: str = "round-robin"
    reward: str = "query"
    """`query`: accuracy of the mean request. `decision`: of the mean batch, as the paper has it;
    it falls below the paper's own baselines where batches differ much in size."""
    drops: bool = False
    """Whether those that cannot be in time are dropped, since nobody wants an answer after the
    deadline. Otherwise late queues run whole, as in the paper."""
    queue_max: int = 0
    """Longest queue that the table knows; 0: the largest batch. A shorter one would keep variants
    from batches that they can run; the paper's 32 is its own largest batch."""

    def __post_init__(self) -> None:
        _check(self)
        if not self.slack_ns:
            object.__setattr__(self, "slack_ns", fixed_bins(self.slo_ns, BINS))
        # A queue that no variant can take whole is full: the surplus counts as lost.
        largest = max(len(row) for row in self.latency_ns)
        queue_max = min(self.queue_max or QUEUE_MAX, largest)
        object.__setattr__(self, "queue_max", queue_max)

    def at_rate(self, rate_rps: float) -> "WorkerProblem":
        return replace(self, rate_rps=rate_rps)


def _check(problem: WorkerProblem) -> None:
    if len(problem.latency_ns) != len(problem.accuracy) or not problem.accuracy:
        raise ConfigError(
            f"{len(problem.latency_ns)} variants have latencies and {len(problem.accuracy)} an "
            "accuracy; give both for each of at least one"
        )
    if problem.workers < 1:
        raise ConfigError(f"workers={problem.workers}: must be at least 1")
    if not 0.0 < problem.rate_rps < math.inf:
        raise ConfigError(f"rate_rps={problem.rate_rps}: must be above 0; requests per second")
    if problem.reward not in REWARDS:
        raise ConfigError(f"reward={problem.reward!r}: must be one of {', '.join(REWARDS)}")
    if problem.balancing not in BALANCINGS:
        raise ConfigError(
            f"balancing={problem.balancing!r}: must be one of {', '.join(BALANCINGS)}"
        )


def fixed_bins(slo_ns: int, bins: int) -> tuple[int, ...]:
    """Slack in steps of equal length (RAMSIS section 4.2.2, FLD)."""
    return tuple(index * slo_ns // bins for index in range(bins + 1))


def model_bins(latency_ns: tuple[tuple[int, ...], ...], slo_ns: int) -> tuple[int, ...]:
    """Slack told apart where a batch begins to fit, and nowhere else (section 4.2.1, MD)."""
    fitting = {each for row in latency_ns for each in row if each < slo_ns}
    return tuple(sorted({0, slo_ns} | fitting))


def shortest_queue_rates(problem: WorkerProblem) -> tuple[float, float]:
    """Arrivals per second at a worker whose queue holds at most two, and three or more
    (appendix I.1).

    The paper prints mu as a latency; the formula needs a rate, so we take its inverse.
    """
    share_rps = problem.rate_rps / problem.workers
    slowest_ns = 0
    for row in problem.latency_ns:
        sustained = any(
            2 * run_ns <= problem.slo_ns and size * 1e9 / run_ns >= share_rps
            for size, run_ns in enumerate(row, 1)
        )
        if sustained:
            slowest_ns = max(slowest_ns, row[0])
    if slowest_ns == 0:
        slowest_ns = min(row[0] for row in problem.latency_ns)
    mu_rps = 1e9 / slowest_ns
    # Above 1 the worker is overloaded, and its queue is never the shortest for long.
    load = min(1.0, share_rps / mu_rps)
    return share_rps, max(load**problem.workers * mu_rps, 1e-9 * share_rps)
