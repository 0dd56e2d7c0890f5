"""The `autoscaler` and `epochs` sections of a scenario.

A deployment has the same options (`fermata.deployments.config.scaling`).
"""

from dataclasses import fields

from fermata.autoscaler.options import AutoscalerOptions, EpochOptions, lead_windows
from fermata.autoscaler.rule import RuleOptions
from fermata.foundation.refusals import refuse
from fermata.foundation.units import SECOND, seconds
from fermata.foundation.validation import Fields
from fermata.profiles.store import BYTES_PER_MB

RULE = RuleOptions()
AUTOSCALER = AutoscalerOptions(RULE)
EPOCHS = EpochOptions()
AUTOSCALER_KEYS = (
    "window_s",
    "startup_s",
    "dry_run",
    "accuracy",
    "price_per_hour",
    *(field.name for field in fields(RuleOptions)),
)
EPOCH_KEYS = (
    "sub_clusters",
    "every_s",
    "rate_max_rps",
    "memory_mb",
    "load_cost_max_ms",
    "memory_weight",
    "solve_s",
    "move_s",
    "imbalance",
    "plan_file",
)


def read_autoscaler(top: Fields) -> AutoscalerOptions | None:
    """The section, every value checked; None where there is none."""
    if not top.has("autoscaler"):
        return None
    row = top.inner("autoscaler", AUTOSCALER_KEYS)
    window_ns = seconds(_positive(row, "window_s", AUTOSCALER.window_ns / SECOND))
    startup_ns = seconds(row.number("startup_s", AUTOSCALER.startup_ns / SECOND))
    lead = _number(row, "lead")
    rule = RuleOptions(
        minimum=row.integer("minimum", RULE.minimum),
        maximum=row.integer("maximum", RULE.maximum, low=1),
        to_zero=row.flag("to_zero", RULE.to_zero),
        zero_after=row.integer("zero_after", RULE.zero_after, low=1),
        bad_rate_max=_fraction(row, "bad_rate_max", RULE.bad_rate_max),
        idle=_fraction(row, "idle", RULE.idle),
        idle_max=_fraction(row, "idle_max", RULE.idle_max),
        idle_taught=_fraction(row, "idle_taught", RULE.idle_taught),
        forget=_fraction(row, "forget", RULE.forget),
        release_band=_fraction(row, "release_band", RULE.release_band),
        release_after=row.integer("release_after", RULE.release_after, low=1),
        cool_down=row.integer("cool_down", RULE.cool_down),
        lead=lead_windows(window_ns, startup_ns) if lead is None else lead,
        rising=_fraction(row, "rising", RULE.rising),
    )
    options = AutoscalerOptions(
        rule=rule,
        window_ns=window_ns,
        startup_ns=startup_ns,
        dry_run=row.flag("dry_run", AUTOSCALER.dry_run),
        accuracy=None if row.data.get("accuracy") is None else row.fraction("accuracy"),
        price_per_hour=row.number("price_per_hour", AUTOSCALER.price_per_hour),
    )
    _refuse(row, options.contradiction())
    return options


def read_epochs(top: Fields) -> EpochOptions | None:
    """The section, every value checked; None where there is none."""
    if not top.has("epochs"):
        return None
    row = top.inner("epochs", EPOCH_KEYS)
    memory_mb = row.positive("memory_mb") if _number(row, "memory_mb") is not None else None
    options = EpochOptions(
        sub_clusters=row.integer("sub_clusters", EPOCHS.sub_clusters, low=1),
        every_ns=seconds(_positive(row, "every_s", EPOCHS.every_ns / SECOND)),
        rate_rps_max=_positive(row, "rate_max_rps", EPOCHS.rate_rps_max),
        memory_bytes=EPOCHS.memory_bytes if memory_mb is None else int(memory_mb * BYTES_PER_MB),
        load_cost_max=_number(row, "load_cost_max_ms"),
        memory_weight=row.number("memory_weight", EPOCHS.memory_weight),
        solve_s=_positive(row, "solve_s", EPOCHS.solve_s),
        move_ns=seconds(_positive(row, "move_s", EPOCHS.move_ns / SECOND)),
        imbalance=_fraction(row, "imbalance", EPOCHS.imbalance),
        plan_file=row.text("plan_file", EPOCHS.plan_file),
    )
    _refuse(row, options.contradiction())
    return options


def _refuse(row: Fields, found: tuple[str, object, str] | None) -> None:
    if found is not None:
        name, value, reason = found
        refuse(row.name(name), value, reason)


def _number(row: Fields, key: str) -> float | None:
    """A number of at least 0; None where the key is absent, or null."""
    return None if row.data.get(key) is None else row.number(key)


def _positive(row: Fields, key: str, default: float) -> float:
    given = row.positive(key)
    return default if given is None else given


def _fraction(row: Fields, key: str, default: float) -> float:
    given = row.fraction(key)
    return default if given is None else given
