"""Options of the control loop: the same names, units and defaults in deployments and scenarios.

`fermata.deployments.config.scaling` reads them from a deployment's file and
`fermata.simulator.scenario.scaling_spec` from a scenario's.
"""

from dataclasses import dataclass

from fermata.autoscaler.rule import RuleOptions
from fermata.foundation.units import SECOND, ms

SPAN_NS_MIN = ms(1)
"""Shortest window and epoch: below it a loop would do nothing but decide."""
SPAN_SHARE_MIN = 0.5
"""Share of a window or an epoch below which its figures are too few to decide by."""


@dataclass(frozen=True, slots=True)
class KindLimit:
    """Backends of one kind."""

    sub_clusters: tuple[int, ...]
    """Those that have this kind."""
    maximum: int
    """Backends that all of them together have at most."""
    minimum: int = 0
    """Backends that all of them together have at the least; each has one in any case."""


@dataclass(frozen=True, slots=True)
class AutoscalerOptions:
    """The number of backends: how often it is decided, and by which rule."""

    rule: RuleOptions
    window_ns: int = 10 * SECOND
    """Time between two decisions."""
    startup_ns: int = 10 * SECOND
    """Time from asking for a backend to having it."""
    dry_run: bool = False
    """Advise only; the number of backends stays."""
    accuracy: float | None = None
    """Mean accuracy to hold with the fewest backends; None: any."""
    kinds: tuple[KindLimit, ...] = ()
    """Limits by kind, where sub-clusters have backends of different ones; empty: the rule's. The
    rule's maximum holds for all of them together."""
    price_per_hour: float = 0.0
    """Price of a backend; 0: reports have hours only."""

    def contradiction(self) -> tuple[str, object, str] | None:
        """An option that does not go with the others: its name, its value and the reason."""
        if self.window_ns < SPAN_NS_MIN:
            return "window_s", self.window_ns / SECOND, "is below 0.001"
        return self.rule.contradiction()


@dataclass(frozen=True, slots=True)
class EpochOptions:
    """The placement of models: how often it is decided, and on what."""

    sub_clusters: int = 2
    every_ns: int = 300 * SECOND
    """Length of an epoch."""
    rate_rps_max: float = 100_000.0
    """R_max: requests per second that one RankThread can dispatch."""
    memory_bytes: int | None = None
    """S_max: memory of a backend for models; None: no limit."""
    memory_bytes_by: tuple[int, ...] = ()
    """The same by sub-cluster, where they differ; empty: they do not."""
    settled_bytes: tuple[int, ...] = ()
    """By sub-cluster: what models there that do not move take of it; empty: none."""
    load_cost_max: float | None = None
    """C_max: load times, in milliseconds, of all that moves in one epoch; None: any."""
    memory_weight: float = 1.0
    """Weight of balanced memory against balanced rate."""
    solve_s: float = 10.0
    """Time to search for a plan in."""
    move_ns: int = 120 * SECOND
    """Time for models to be loaded where a plan has them; those that are not stay."""
    imbalance: float = 0.2
    """Difference of rates between sub-clusters, as a share of their mean, above which to place."""
    kinds: tuple[str, ...] = ()
    """By sub-cluster: the kind of its backends; empty: all are alike. With kinds the backends that
    models need are balanced, in place of their rates."""
    shares: tuple[float, ...] = ()
    """By sub-cluster: how many backends of its kind it may have; empty: all as many."""
    plan_file: str = ""
    """File with the plan to start from; empty: none."""

    def contradiction(self) -> tuple[str, object, str] | None:
        """An option out of its range: its name, its value and the reason."""
        if self.every_ns < SPAN_NS_MIN:
            return "every_s", self.every_ns / SECOND, "is below 0.001"
        return None


def lead_windows(window_ns: int, startup_ns: int) -> float:
    """Windows from a reading to the time when a backend asked for after it is up."""
    return 1.0 + startup_ns / max(window_ns, SPAN_NS_MIN)
