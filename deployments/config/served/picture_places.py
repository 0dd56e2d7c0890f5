"""Where the JPEGs of a deployment are decoded, once it is known which backends get a GPU."""

from dataclasses import replace
from importlib.util import find_spec

from fermata.applications.application import Application
from fermata.deployments.config.backend_groups import groups_of
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.resolve import gpus_each
from fermata.deployments.config.served.inputs import decodes_later, input_of
from fermata.deployments.models.catalog import FAMILIES
from fermata.deployments.models.signatures import is_file

NETWORKS = frozenset(FAMILIES) - {"digits"}
"""Families of torch networks."""


def with_decoding(config: DeploymentConfig, gpus: float) -> DeploymentConfig:
    """The deployment with `input.decode` as it turns out in a cluster of so many GPUs.

    All processes are told this one: a frontend may only pass on what every backend decodes.
    """
    has_gpus = all(gpus_each(each.backend, gpus) for each in groups_of(config))
    if not has_gpus or find_spec("torchvision") is None:
        return config
    applications = tuple(_decoded(config, each) for each in config.applications)
    return config.model_copy(update={"applications": applications})


def _decoded(config: DeploymentConfig, application: Application) -> Application:
    """The application with `decode: gpu` where `auto` means that; else as it is."""
    given = input_of(application)
    if given.decode != "auto" or decodes_later(config, application):
        return application
    # Pictures for anything else would be decoded by the one CPU thread of a backend.
    if not all(_is_network(each.model) for each in application.variants):
        return application
    there = replace(application, input=replace(given, decode="gpu"))
    return there if decodes_later(config, there) else application


def _is_network(model: str) -> bool:
    """Whether a model is a torch network, as its name tells."""
    return is_file(model) or model.partition(":")[0] in NETWORKS
