"""The knobs of RAMSIS online."""

from dataclasses import dataclass

REWARDS = ("query", "decision")
BALANCINGS = ("round-robin", "shortest-queue")


@dataclass(frozen=True, slots=True)
class RamsisOptions:
    """Defaults are the paper's, but for the reward."""

    reward: str = "query"
    """`query`: accuracy of the mean request; `decision`: of the mean batch, as in the paper."""
    balancing: str = "round-robin"
    """`round-robin` or `shortest-queue`."""
    bins: int = 100
    """Slack is told apart in so many steps; 0: where a batch begins to fit."""
    queue_max: int = 0
    """Longest queue that tables know, and so the largest batch; 0: the variants' largest batch."""
    window_ns: int = 500_000_000
    """Window of the load monitor."""
    law: str = "poisson"
    """Law of arrival counts that tables are solved for: `poisson`, `bursty`, or `module:name` of a
    function as `fermata.router.policies.ramsis.counts` describes it."""
    burst_ns: int = 0
    """Length of the bursts of `bursty`."""
    slos_ms: tuple[float, ...] = ()
    """Where clients of one application differ in SLO: a set of tables and backends of its own for
    each of these. Empty: the application's SLO."""
    slo_shares: tuple[float, ...] = ()
    """Share of the backends for each of those; empty: as many for each."""
    load_rps: float = 0.0
    """A load that is known ahead; 0: what the monitor sees."""
