"""`--profile`: run times for variants that have none, from files of `fermata profile`."""

from collections.abc import Sequence
from dataclasses import replace

from fermata.applications.application import Application
from fermata.applications.variant import Variant
from fermata.foundation.refusals import refuse
from fermata.profiles.profile import Profile
from fermata.profiles.reference import find_profile, find_table


def apply_profiles(
    applications: tuple[Application, ...], references: Sequence[str]
) -> tuple[Application, ...]:
    """The applications with profiles of these files, `[VARIANT=]FILE[#NAME]`.

    A variant that has no run times gets the profile of its own or its model's name. One that is
    named gets the profile in any case.
    """
    found: dict[str, Profile] = {}
    variants = [variant for each in applications for variant in each.variants]
    for reference in references:
        chosen = _chosen(reference, variants)
        if not chosen:
            lacking = ", ".join(each.name for each in variants if each.profile is None) or "none"
            rule = f"has no profile of a variant without run times ({lacking}); say VARIANT=FILE"
            refuse("--profile", reference, rule)
        found |= chosen
    return tuple(
        replace(
            each,
            variants=tuple(_with(one, found.get(one.name)) for one in each.variants),
        )
        for each in applications
    )


def _chosen(reference: str, variants: Sequence[Variant]) -> dict[str, Profile]:
    """Profiles by variant."""
    name, equals, file = reference.partition("=")
    if equals and name in [variant.name for variant in variants]:
        return {name: find_profile(file, where="--profile")}
    if "#" in reference:
        profiles: tuple[Profile, ...] = (find_profile(reference, where="--profile"),)
    else:
        profiles = find_table(reference, where="--profile").profiles
    by_name = {profile.name: profile for profile in profiles}
    lacking = [variant for variant in variants if variant.profile is None]
    return {
        variant.name: by_name[name]
        for variant in lacking
        for name in (variant.model, variant.name)
        if name in by_name
    }


def _with(variant: Variant, profile: Profile | None) -> Variant:
    if profile is None:
        return variant
    by_hand = replace(variant, alpha_ms=None, beta_ms=None, latency_ms=None, p99_ms=None)
    return replace(by_hand, source=profile, profile=profile)
