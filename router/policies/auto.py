"""The default policy: for each application the best that there is, by what is known of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fermata.foundation.units import NEVER
from fermata.router.policies.application import ApplicationSpec
from fermata.router.policies.sequences import SEQUENCES

AUTO = "auto"
CHOOSING = "lookahead"
"""Serves applications that leave a choice of variants."""
FIXED = "deferred"
"""Serves those that do not."""
FIXED_STAGES, CHOOSING_STAGES = "stages", "stage-variants"
"""The same for stages of pipelines; the first is what users write."""


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Options that both of its policies have; the rest is theirs to choose."""

    hold: str = "deferred"
    """As for `deferred`. Where variants are chosen, all but `eager` hold while that is worth it."""
    hold_ns_max: int = NEVER
    """Never hold a request longer than this."""


def resolved(
    application: ApplicationSpec, policy: str, options: Mapping[str, object]
) -> tuple[str, Mapping[str, object]]:
    """The policy that serves an application, and its options, where `auto` may be asked for."""
    if application.sequences:
        return SEQUENCES, options if policy == SEQUENCES else {}
    chooses = leaves_choice(application) and bool(application.accuracies)
    if policy == FIXED_STAGES and chooses:
        return CHOOSING_STAGES, options
    if policy != AUTO:
        return policy, options
    if not chooses:
        return FIXED, options
    return CHOOSING, {
        key: value for key, value in options.items() if key != "hold" or value == "eager"
    }


def unnamed(options: object) -> str:
    """The policy of a file that names none; options alone have always been those of `deferred`."""
    return FIXED if options else AUTO


def leaves_choice(application: ApplicationSpec) -> bool:
    """Whether `auto` may choose among variants, once their accuracies are known."""
    return len(application.variants) > 1 and not application.serving


def notes(applications: Iterable[ApplicationSpec], policy: str) -> list[str]:
    """Why `auto` serves some applications by one of their variants only, a sentence each. The
    policy is that of applications without one of their own."""
    automatic = [each for each in applications if (each.policy or policy) == AUTO]
    return [note for each in automatic if (note := _why_fixed(each))]


def _why_fixed(application: ApplicationSpec) -> str:
    if len(application.variants) < 2:
        return ""
    alone = application.variants[application.serving_place].name
    served = f"so policy {AUTO} serves {alone} alone."
    if application.serving:
        return f"{application.name} sets serving, {served}"
    if application.accuracies:
        return ""
    unknown = next(each.name for each in application.variants if each.accuracy is None)
    return f"The accuracy of variant {unknown} of {application.name} is unknown, {served}"
