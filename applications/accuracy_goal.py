"""A mean accuracy that the autoscaler is to hold, for the applications that can hold one."""

from collections.abc import Mapping, Sequence

from fermata.applications.application import Application
from fermata.applications.reader import owners_of
from fermata.foundation.refusals import refuse
from fermata.partitioner.accuracy_mix import RatedProfile, backends_at_accuracy
from fermata.profiles.profile import Profile
from fermata.router.policies.auto import AUTO, leaves_choice
from fermata.router.policies.catalog import POLICIES

WHERE = "autoscaler.accuracy"
FIXING = ("pinned", "mix")
"""Options that take the choice from a policy."""


def chooses(application: Application, policy: str, options: Mapping[str, object]) -> bool:
    """Whether the policy chooses variants by load, so that more backends are more accurate."""
    if policy == AUTO:
        return leaves_choice(application)
    return POLICIES[policy].chooses and not any(options.get(each) for each in FIXING)


def check_accuracy(
    accuracy: float | None,
    applications: Sequence[Application],
    policy: str,
    options: Mapping[str, object],
    where: str = WHERE,
) -> None:
    """Refuse an accuracy that no application can hold, or that one of them cannot reach."""
    if accuracy is None:
        return
    held = [
        application
        for application, (_, own, given) in zip(
            applications, owners_of(applications, policy, options), strict=True
        )
        if chooses(application, own, given)
    ]
    if not held:
        rule = "needs an application whose policy chooses variants by load, as central-queue does"
        refuse(where, accuracy, rule)
    for application in held:
        known = _accuracies(application)
        for variant, each in zip(application.variants, known, strict=True):
            if each is None:
                rule = f"the accuracy of variant {variant.name!r} of {application.name} is unknown"
                refuse(where, accuracy, f"{rule}; give it, or leave this out")
        best = max(each for each in known if each is not None)
        if accuracy > best:
            rule = f"is above {best:g}, the accuracy of the best variant of {application.name}"
            refuse(where, accuracy, rule)


def rated_variants(
    application: Application,
    profiles: Sequence[Profile],
    policy: str,
    options: Mapping[str, object],
    accuracy: float | None,
    where: str = WHERE,
) -> tuple[RatedProfile, ...]:
    """The variants with which the application is to hold the accuracy; empty: it cannot choose.

    Refuses an accuracy that no variant within the SLO has.
    """
    if accuracy is None or not chooses(application, policy, options):
        return ()
    rated = tuple(
        RatedProfile(profile, known, variant.batch_size_max or 0)
        for variant, profile, known in zip(
            application.variants, profiles, _accuracies(application), strict=True
        )
        if known is not None and known >= application.accuracy_floor
    )
    if backends_at_accuracy(rated, application.slo_ns, 1.0, accuracy) is None:
        rule = f"no variant of {application.name} that runs within its SLO of"
        refuse(where, accuracy, f"{rule} {application.slo_ns / 1e6:g} ms is as accurate")
    return rated


def _accuracies(application: Application) -> list[float | None]:
    """The accuracy of each variant: its own, or its profile's."""
    return [
        variant.accuracy
        if variant.accuracy is not None or variant.profile is None
        else variant.profile.accuracy
        for variant in application.variants
    ]
