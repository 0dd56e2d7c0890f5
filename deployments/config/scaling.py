"""The `autoscaler` and `epochs` sections of a deployment.

A scenario has the same options (`fermata.simulator.scenario.scaling_spec`).
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from fermata.autoscaler.options import AutoscalerOptions, EpochOptions, lead_windows
from fermata.autoscaler.rule import RuleOptions
from fermata.deployments.config.base import Fraction, Section
from fermata.foundation.units import SECOND, seconds
from fermata.profiles.store import BYTES_PER_MB

RULE = RuleOptions()
AUTOSCALER = AutoscalerOptions(RULE)
EPOCHS = EpochOptions()
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeast0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class AutoscalerConfig(Section):
    """The number of backends; `backend.count` is the number at the start."""

    minimum: Whole = RULE.minimum
    """Fewest backends of the whole deployment while requests come. Sub-clusters share it evenly,
    and each has one at the least; 0 needs `to_zero`. Groups of backends say it themselves."""
    maximum: Count = RULE.maximum
    """Most backends of the whole deployment. Replicas beyond what the cluster has are pending,
    which Ray's own autoscaler answers with nodes."""
    window_s: Positive = AUTOSCALER.window_ns // SECOND
    """Time between two decisions."""
    startup_s: AtLeast0 = AUTOSCALER.startup_ns // SECOND
    """Time from asking for a backend to having it; a rise is foreseen that far."""
    dry_run: bool = AUTOSCALER.dry_run
    """Advise in `/status` and the metrics, and change nothing."""
    to_zero: bool = RULE.to_zero
    """Release every backend, whatever the minimum, after `zero_after` windows without a request.
    The first request then waits, or is late. Groups of backends refuse it."""
    zero_after: Count = RULE.zero_after
    """Windows without a request until then."""
    bad_rate_max: Fraction = RULE.bad_rate_max
    """Bad rate above which backends are allocated."""
    idle: Fraction = RULE.idle
    """Idle fraction to keep; 0 is Symphony's rule."""
    idle_max: Fraction = RULE.idle_max
    """Most idleness that bursts may teach the rule to keep."""
    idle_taught: Fraction = RULE.idle_taught
    """Idleness to keep beyond the one that has just proved too little."""
    forget: Fraction = RULE.forget
    """Share of what bursts have taught that is left after a window."""
    release_band: Fraction = RULE.release_band
    """Backends are released only where they are more than this share of those there are."""
    release_after: Count = RULE.release_after
    """Windows that must all have done with fewer backends before any are released."""
    cool_down: Whole = RULE.cool_down
    """Windows after a change in which nothing is released."""
    lead: AtLeast0 | None = None
    """Windows ahead for which a rising demand is foreseen; absent: `startup_s` and one window."""
    rising: Fraction = RULE.rising
    """Growth from window to window, as a share, from which on a demand counts as rising."""
    accuracy: Fraction | None = AUTOSCALER.accuracy
    """Mean accuracy to hold with the fewest backends, for applications whose policy chooses
    variants by load; absent: any. See docs/scale.md."""
    price_per_hour: AtLeast0 = int(AUTOSCALER.price_per_hour)
    """Price of a backend, for the bill in `/status`."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        _refuse(self.options().contradiction())
        return self

    @property
    def fewest(self) -> int:
        """Fewest backends that there may ever be."""
        return 0 if self.to_zero else self.minimum

    def options(self) -> AutoscalerOptions:
        window_ns, startup_ns = seconds(self.window_s), seconds(self.startup_s)
        return AutoscalerOptions(
            rule=RuleOptions(
                minimum=self.minimum,
                maximum=self.maximum,
                to_zero=self.to_zero,
                zero_after=self.zero_after,
                bad_rate_max=self.bad_rate_max,
                idle=self.idle,
                idle_max=self.idle_max,
                idle_taught=self.idle_taught,
                forget=self.forget,
                release_band=self.release_band,
                release_after=self.release_after,
                cool_down=self.cool_down,
                lead=lead_windows(window_ns, startup_ns) if self.lead is None else self.lead,
                rising=self.rising,
            ),
            window_ns=window_ns,
            startup_ns=startup_ns,
            dry_run=self.dry_run,
            accuracy=self.accuracy,
            price_per_hour=self.price_per_hour,
        )


class EpochsConfig(Section):
    """The homes of models: which of them live together, decided once an epoch."""

    sub_clusters: Count = EPOCHS.sub_clusters
    """Sets of backends that hold the same models; each has a RankThread."""
    every_s: Positive = EPOCHS.every_ns // SECOND
    """Length of an epoch."""
    rate_max_rps: Positive = int(EPOCHS.rate_rps_max)
    """Requests per second that one RankThread can dispatch."""
    memory_mb: Positive | None = None
    """Memory of a backend for models, where placement should keep to less than
    `backend.memory_mb` and the memory of a GPU; absent: the lesser of these."""
    load_cost_max_ms: AtLeast0 | None = EPOCHS.load_cost_max
    """Load times of all that moves in one epoch, loads and unloads; absent: any."""
    memory_weight: AtLeast0 = int(EPOCHS.memory_weight)
    """Weight of balanced memory against balanced rate."""
    solve_s: Positive = int(EPOCHS.solve_s)
    """Time to search for a plan in, beside the serving."""
    move_s: Positive = EPOCHS.move_ns // SECOND
    """Time for models to be loaded where a plan has them; those that are not stay where they
    are."""
    imbalance: Fraction = EPOCHS.imbalance
    """Difference of rates between sub-clusters, as a share of their mean, above which models are
    placed anew."""
    plan_file: str = EPOCHS.plan_file
    """File in which the last plan is kept over restarts; empty: none."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        _refuse(self.options().contradiction())
        return self

    def options(self, backend_memory_mb: float | None = None) -> EpochOptions:
        """The options, with the budget of a backend where that is the smaller one."""
        limits = [each for each in (self.memory_mb, backend_memory_mb) if each is not None]
        return EpochOptions(
            sub_clusters=self.sub_clusters,
            every_ns=seconds(self.every_s),
            rate_rps_max=self.rate_max_rps,
            memory_bytes=int(min(limits) * BYTES_PER_MB) if limits else None,
            load_cost_max=self.load_cost_max_ms,
            memory_weight=self.memory_weight,
            solve_s=self.solve_s,
            move_ns=seconds(self.move_s),
            imbalance=self.imbalance,
            plan_file=self.plan_file,
        )


def _refuse(found: tuple[str, object, str] | None) -> None:
    if found is not None:
        name, value, reason = found
        raise ValueError(f"{name}={value} {reason}")
