"""Environments that the models of an application run in."""

from fermata.applications.application import Application
from fermata.applications.variant import Variant
from fermata.deployments.models.catalog import FAMILIES
from fermata.deployments.models.signatures import is_file
from fermata.foundation.errors import ConfigError


def environment_of(application: Application, variant: Variant) -> str:
    """The environment of a variant; ConfigError where its model cannot run in one."""
    given, model = application.environment, variant.model
    if not given:
        return ""
    label = f"environment={given!r} of {application.name}"
    family, colon, _ = model.partition(":")
    if is_file(model) or not colon or family in FAMILIES:
        raise ConfigError(
            f"{label}: {model} runs in the backend; only a module:function runs in an environment "
            "of its own, so write one that loads the model, or leave environment out"
        )
    if variant.precision != "auto":
        raise ConfigError(
            f"{label}: precision={variant.precision} of {variant.name} is for torch networks of "
            "the backend; leave it out"
        )
    return given
