"""The `autoscaler` and `epochs` sections of a scenario."""

from dataclasses import dataclass, fields, replace
from typing import Any

from fermata.autoscaler.rule import RuleOptions
from fermata.foundation.units import seconds
from fermata.foundation.validation import Fields
from fermata.profiles.check import check_fraction, check_positive, refuse
from fermata.profiles.store import BYTES_PER_MB

WHOLE = ("minimum", "maximum", "zero_after", "release_after", "cool_down")
FRACTIONS = ("bad_rate_max", "idle", "idle_max", "idle_taught", "forget", "release_band", "rising")
AUTOSCALER_KEYS = (
    "window_s",
    "startup_s",
    "dry_run",
    "price_per_hour",
    *(field.name for field in fields(RuleOptions)),
)
EPOCH_KEYS = (
    "every_s",
    "sub_clusters",
    "memory_mb",
    "rate_max_rps",
    "load_cost_max_ms",
    "memory_weight",
    "solve_s",
)


@dataclass(frozen=True, slots=True)
class AutoscalerSpec:
    """How often the autoscaler looks, and what a new backend takes."""

    window_ns: int
    startup_ns: int
    options: RuleOptions
    dry_run: bool = False
    """Advise only; the number of backends stays."""
    price_per_hour: float = 0.0
    """Of a backend; 0: hours only."""


@dataclass(frozen=True, slots=True)
class EpochSpec:
    """How often models are placed anew, and on what."""

    every_ns: int
    sub_clusters: int
    memory_bytes: int
    rate_rps_max: float
    load_cost_max: float | None
    memory_weight: float
    solve_s: float


def read_autoscaler(top: Fields) -> AutoscalerSpec | None:
    """The section, every value checked; None where there is none."""
    if not top.has("autoscaler"):
        return None
    row = top.inner("autoscaler", AUTOSCALER_KEYS)
    window_s = row.positive("window_s") or 10.0
    startup_s = row.number("startup_s", 0)
    given: dict[str, Any] = {"lead": row.number("lead", 1.0 + startup_s / window_s)}
    given |= {name: row.integer(name) for name in WHOLE if row.has(name)}
    for name in FRACTIONS:
        if row.has(name):
            given[name] = row.number(name)
            check_fraction(row.name(name), given[name])
    options = replace(RuleOptions(to_zero=row.flag("to_zero")), **given)
    if options.minimum > options.maximum:
        rule = f"must be at least minimum, {options.minimum}"
        refuse(row.name("maximum"), options.maximum, rule)
    if not 0.0 <= options.idle <= options.idle_max < 1.0:
        refuse(row.name("idle_max"), options.idle_max, "must be from idle up, and below 1")
    return AutoscalerSpec(
        window_ns=seconds(window_s),
        startup_ns=seconds(startup_s),
        options=options,
        dry_run=row.flag("dry_run"),
        price_per_hour=row.number("price_per_hour", 0),
    )


def read_epochs(top: Fields) -> EpochSpec | None:
    """The section, every value checked; None where there is none."""
    if not top.has("epochs"):
        return None
    row = top.inner("epochs", EPOCH_KEYS)
    every_s, memory_mb = row.number("every_s"), row.number("memory_mb", 81_920)
    check_positive(row.name("every_s"), every_s)
    check_positive(row.name("memory_mb"), memory_mb)
    return EpochSpec(
        every_ns=seconds(every_s),
        sub_clusters=row.integer("sub_clusters", 1, low=1),
        memory_bytes=int(memory_mb * BYTES_PER_MB),
        rate_rps_max=row.positive("rate_max_rps") or 1e6,
        load_cost_max=row.number("load_cost_max_ms") if row.has("load_cost_max_ms") else None,
        memory_weight=row.number("memory_weight", 1),
        solve_s=row.positive("solve_s") or 2.0,
    )
