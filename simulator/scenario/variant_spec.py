"""A variant as a scenario says it: run times by hand, by a line or from a profile."""

from dataclasses import replace
from pathlib import Path

from fermata.foundation.check import check_positive, refuse
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.foundation.validation import Fields
from fermata.profiles.profile import Profile, from_table_ms, linear
from fermata.profiles.reference import find_profile

VARIANT_KEYS = (
    "name",
    "alpha_ms",
    "beta_ms",
    "latency_ms",
    "p99_ms",
    "profile",
    "accuracy",
    "recall",
    "swap_in_ms",
    "input_size",
)


def read_variant(row: Fields, beside: Path | None = None) -> Profile:
    """The profile that these values describe; files that it names lie `beside`."""
    given = [key for key in ("alpha_ms", "latency_ms", "profile") if row.has(key)]
    if len(given) != 1:
        refuse(
            row.where.rstrip("."), given, "give one of alpha_ms with beta_ms, latency_ms, profile"
        )
    if row.has("beta_ms") and not row.has("alpha_ms"):
        refuse(row.name("beta_ms"), row.data["beta_ms"], "goes with alpha_ms only")
    if row.has("p99_ms") and not row.has("latency_ms"):
        refuse(row.name("p99_ms"), row.data["p99_ms"], "goes with latency_ms only")
    accuracy = row.fraction("accuracy")
    if row.has("profile"):
        profile = find_profile(row.text("profile"), beside, row.name("profile"))
        name = row.text("name", profile.name)
        profile = replace(profile, name=name)
        if accuracy is not None:
            profile = replace(profile, accuracy=accuracy)
    elif row.has("latency_ms"):
        name = row.text("name")
        try:
            p99_ms = row.numbers("p99_ms") if row.has("p99_ms") else None
            latency_ms = row.numbers("latency_ms")
            profile = from_table_ms(name, latency_ms, p99_ms=p99_ms, accuracy=accuracy)
        except ConfigError as error:
            raise ConfigError(f"{row.name('latency_ms')}: {error}") from None
    else:
        alpha_ms, beta_ms = row.number("alpha_ms"), row.number("beta_ms")
        check_positive(row.name("alpha_ms"), alpha_ms)
        profile = linear(row.text("name"), alpha_ms, beta_ms, accuracy=accuracy)
    if row.has("recall"):
        profile = replace(profile, recall=tuple(row.numbers("recall")))
    if row.has("swap_in_ms"):
        profile = replace(profile, swap_in_ns=ms(row.number("swap_in_ms")))
    if row.has("input_size"):
        profile = replace(profile, input=f"3x{row.integer('input_size', low=1)}")
    return profile
