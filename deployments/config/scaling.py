"""How many backends there are, and which models live together, as configured."""

from typing import Annotated

from pydantic import Field, model_validator

from fermata.deployments.config.base import Fraction, Positive, Section


class AutoscalerConfig(Section):
    """How many backends there are; `backend.count` is how many there are at the start."""

    minimum: Annotated[int, Field(ge=0)] = 1
    """Never fewer; 0 needs `to_zero`."""
    maximum: Annotated[int, Field(ge=1)]
    """Never more. Beyond what the cluster has, replicas are pending, which Ray's own autoscaler
    answers with nodes."""
    window_s: Positive = 10
    """How long it looks before each decision."""
    startup_s: Annotated[float, Field(ge=0)] = 10
    """What a backend takes from being asked for to being up; a rise is foreseen that far."""
    dry_run: bool = False
    """Advise in `/status` and the metrics, and change nothing."""
    to_zero: bool = False
    """Release the last backend too when nothing comes; the first request then waits, or is late."""
    bad_rate_max: Fraction = 0.01
    """Allocate above it."""
    idle: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """Idle fraction to keep."""
    price_per_hour: Annotated[float, Field(ge=0)] = 0
    """Of a backend, for the bill in `/status`."""

    @model_validator(mode="after")
    def _limits(self) -> "AutoscalerConfig":
        if self.minimum > self.maximum:
            raise ValueError(f"minimum={self.minimum} is above maximum={self.maximum}")
        if self.minimum == 0 and not self.to_zero:
            raise ValueError("minimum=0 needs to_zero: true")
        return self


class EpochsConfig(Section):
    """Which models live together; placed anew once an epoch."""

    sub_clusters: Annotated[int, Field(ge=1)] = 2
    """Sets of backends that hold the same models; each has a RankThread."""
    every_s: Positive = 300
    """Length of an epoch."""
    rate_max_rps: Positive = 100_000
    """What one RankThread can dispatch."""
    load_cost_max_ms: Annotated[float, Field(ge=0)] | None = None
    """Load times of all that moves in one epoch, loads and unloads; absent: any."""
    memory_weight: Annotated[float, Field(ge=0)] = 1
    """Of balanced memory against balanced rate."""
    solve_s: Positive = 10
    """Time to search in, beside the serving."""
    imbalance: Fraction = 0.2
    """Placed anew only when rates differ by more than this share between sub-clusters."""
    plan_file: str = ""
    """Where the last plan is kept over restarts; empty: nowhere."""
