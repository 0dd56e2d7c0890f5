"""A variant as a file declares it: a model, and its run times by hand or from a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fermata.applications.server_options import Precision
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.foundation.sections import (
    Fraction,
    Key,
    NotNegative,
    Positive,
    Resolved,
    Served,
    Simulated,
    read_section,
)
from fermata.foundation.validation import Fields
from fermata.profiles.profile import Profile, from_table_ms, linear
from fermata.profiles.reference import find_profile, names_file, read_inline, write_inline
from fermata.router.policies.application import VariantSpec

EMULATED = "emulated"
RUN_TIMES = "alpha_ms with beta_ms, latency_ms, profile"


@dataclass(frozen=True, slots=True)
class ProfileForm:
    """A profile by reference, or a whole one."""

    takes: str = "text, or a profile"

    def read(self, row: Fields, key: str) -> str | Profile:
        """A name in the zoo as it is, a file's profile whole: other machines lack the file."""
        value = row.data[key]
        if value is None:
            return ""
        if isinstance(value, dict):
            return read_inline(row.name(key), value)
        reference = row.text(key)
        if names_file(reference):
            return find_profile(reference, row.beside, row.name(key))
        return reference

    def write(self, value: Any) -> object:
        return write_inline(value) if isinstance(value, Profile) else value


@dataclass(frozen=True, slots=True)
class ProfilesForm:
    """Profiles by the kind of backend."""

    takes: str = "profiles by kind of backend"

    def read(self, row: Fields, key: str) -> dict[str, Profile]:
        """Each of them whole."""
        found: dict[str, Profile] = {}
        inner = row.inner(key, row.mapping(key))
        for kind in inner.data:
            source = ProfileForm().read(inner, kind)
            given = find_profile(source) if isinstance(source, str) else source
            found[kind] = given
        return found

    def write(self, value: Any) -> object:
        return {kind: write_inline(each) for kind, each in value.items()}


@dataclass(frozen=True, slots=True)
class Variant(VariantSpec):
    """One model that can serve an application. Give its run times once: by `profile`, by `alpha_ms`
    and `beta_ms`, or by `latency_ms`; servers measure them at the start where all are absent."""

    model: Served[str] = EMULATED
    """Model to load: `digits:small`, `imagenet:lite0@224`, `torchvision:resnet50`,
    `transformers:distilbert@128`, a path to a TorchScript, exported or ONNX file or
    `module:function`, both with or without `@SIZE`, or `emulated` (runs for the profiled time and
    returns zeros)."""
    precision: Served[Precision] = "auto"
    """Floats that a torch network computes with; `auto`: `fp16` on a GPU, those of its weights on
    a CPU."""
    source: Annotated[str | Profile, Key("profile"), ProfileForm()] = ""
    """Run times, memory and quality: a name in the zoo (`TABLE/NAME`), or of a file that
    `fermata profile` has written (`./FILE#NAME`, relative to this file)."""
    alpha_ms: Positive | None = None
    """Run time of one more request in a batch, with `beta_ms`."""
    beta_ms: NotNegative | None = None
    """Fixed run time of a batch."""
    latency_ms: tuple[Positive, ...] | None = None
    """Run times of batches of 1, 2, 3, ..."""
    p99_ms: tuple[Positive, ...] | None = None
    """Run times that 99 of 100 batches keep, beside `latency_ms`."""
    profiles: Simulated[Annotated[Mapping[str, Profile], ProfilesForm()]] = field(
        default_factory=dict
    )
    """Run times on kinds of backends where they are not those of the group's `slower`: as
    `profile`, by kind. Backends of a server measure their own."""
    recall: tuple[Fraction, ...] = ()
    """Share of right answers by class; the profile's where absent."""
    profile: Resolved[Profile | None] = None
    """Run times that the file gives; None: a backend measures them."""


def read_variant(row: Fields) -> Variant:
    """The variant that these values describe, every one of them checked."""
    given = [key for key in ("alpha_ms", "latency_ms", "profile") if row.data.get(key) is not None]
    if len(given) > 1:
        refuse(row.label, given, f"give one of {RUN_TIMES}")
    source = ProfileForm().read(row, "profile") if row.has("profile") else ""
    found = find_profile(source) if isinstance(source, str) and source else source
    if not isinstance(found, Profile):
        variant = read_section(Variant, row, source=source)
        return replace(variant, profile=_by_hand(variant, row))
    _check_companions(row)
    name = found.name if not row.has("name") else row.text("name")
    return read_section(Variant, row, source=source, name=name, profile=found)


def _by_hand(variant: Variant, row: Fields) -> Profile | None:
    """The run times that stand in the file; None where it has none."""
    _check_companions(row)
    if variant.alpha_ms is not None:
        if variant.beta_ms is None:
            refuse(row.name("beta_ms"), None, "must be a number beside alpha_ms")
        return linear(variant.name, variant.alpha_ms, variant.beta_ms)
    if variant.latency_ms is None:
        return None
    try:
        return from_table_ms(variant.name, variant.latency_ms, p99_ms=variant.p99_ms)
    except ConfigError as error:
        raise ConfigError(f"{row.name('latency_ms')}: {error}") from None


def _check_companions(row: Fields) -> None:
    for key, other in (("beta_ms", "alpha_ms"), ("p99_ms", "latency_ms")):
        if row.data.get(key) is not None and row.data.get(other) is None:
            refuse(row.name(key), row.data[key], f"goes with {other} only")


def with_profile(variant: Variant, profile: Profile) -> Variant:
    """The variant with run times and quality of this profile."""
    return replace(
        variant,
        profile=profile,
        accuracy=profile.accuracy,
        recall=profile.recall,
        swap_in_ns=profile.swap_in_ns,
        input_size=profile.input_size or 0,
    )


def measured_by(variants: Sequence[Variant]) -> str:
    """The remedy where run times of variants are not known."""
    models = " ".join(dict.fromkeys(variant.model for variant in variants))
    return (
        f"measure: `fermata profile {models} -o FILE`, then `profile: ./FILE#{variants[0].model}`"
    )


def merged(variant: Variant) -> Profile | None:
    """The variant's profile, with what the variant says itself put first."""
    found = variant.profile
    if found is None:
        return None
    found = replace(found, name=variant.name)
    if variant.accuracy is not None:
        found = replace(found, accuracy=variant.accuracy)
    if variant.recall:
        found = replace(found, recall=variant.recall)
    if variant.swap_in_ns is not None:
        found = replace(found, swap_in_ns=variant.swap_in_ns)
    if variant.input_size:
        found = replace(found, input=f"3x{variant.input_size}")
    return found
