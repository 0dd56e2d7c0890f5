"""Where requests of an application are looked at: on frontends, or on backends."""

from pathlib import Path

from fermata.applications.application import Application
from fermata.deployments.config.backend_groups import groups_of
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.sneakpeek.embedding import runs_in_torch
from fermata.deployments.sneakpeek.store import embedding_of
from fermata.foundation.errors import ConfigError

EMBEDDED = "digits"
"""In place of a file: a SneakPeek model of the digits that embedded models are trained on."""


def are_on_backends(config: DeploymentConfig, application: Application) -> bool:
    """Whether backends look at its requests: those of all groups, or of this one where `config` is
    that of one."""
    given = application.class_options
    if given is None or not given.sneakpeek or not isinstance(given.sneakpeek, str):
        return False
    if given.look_on == "backend" and application.inputs:
        raise ConfigError(
            f"look_on=backend of {application.name} takes applications of one input, not of "
            f"{len(application.inputs)}: use look_on: frontend, which looks at the first"
        )
    if given.look_on != "auto" or application.inputs:
        return given.look_on == "backend"
    has_gpu = any(each.backend.device == "cuda" for each in groups_of(config))
    # Where one model is held at a time, there is no room for another.
    if not has_gpu or config.backend.swap or given.sneakpeek == EMBEDDED:
        return False
    return runs_in_torch(embedding_of(Path(given.sneakpeek)))
