"""SneakPeek models of applications, which frontends or backends look with."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fermata.applications.application import Application
from fermata.applications.reader import router_names
from fermata.applications.server_options import InputSpec
from fermata.clients.wire.tensors import DTYPES
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.served.inputs import (
    decodes_later,
    image_of,
    input_of,
    serving_of,
)
from fermata.deployments.config.served.look_places import EMBEDDED, are_on_backends
from fermata.deployments.config.served.signature import signature_of
from fermata.deployments.models.digits import training_data
from fermata.deployments.sneakpeek.building import build_model
from fermata.deployments.sneakpeek.placed_look import PlacedLook
from fermata.deployments.sneakpeek.store import SneakPeekModel, load_model
from fermata.foundation.errors import ConfigError


def peek_of(application: Application) -> SneakPeekModel | None:
    """The application's SneakPeek model, checked against its data."""
    given = application.class_options
    # Simulations make one up where there is no file; a server has none then.
    if given is None or not given.sneakpeek or not isinstance(given.sneakpeek, str):
        return None
    if given.sneakpeek == EMBEDDED:
        model = build_model(*training_data())
    else:
        model = load_model(Path(given.sneakpeek), Path(given.data) if given.data else None)
    # Of several inputs, the first is looked at.
    spec = input_of(application, signature_of(application, serving_of(application).model))
    _check_peek(application, spec, model)
    # Built from pixels, so it looks at pixels.
    normalised = spec.image and spec.dtype != "UINT8" and model.dtype == "uint8"
    scale = (tuple(spec.mean), tuple(spec.std)) if normalised else None
    return replace(model, fit=spec.fit if spec.sized else "", scale=scale)


def _check_peek(application: Application, spec: InputSpec, model: SneakPeekModel) -> None:
    """Refuse a SneakPeek model that could not look at the application's inputs, or that has its
    classes in another order."""
    shape = model.input_shape
    labels = tuple(application.labels)
    if model.names and labels and model.names != labels:
        raise ConfigError(
            f"sneakpeek of {application.name} has the classes {_few(model.names)}, and labels are "
            f"{_few(labels)}; build it again with --labels, in the order of the answers"
        )
    if spec.sized:
        if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]:
            return
        rule = "looks at pictures of any size need a model of square ones, [3, side, side]"
    elif min(spec.shape, default=0) < 0 or model.sees(tuple(spec.shape)):
        return
    else:
        rule = f"requests of {application.name} are {list(spec.shape)}"
    raise ConfigError(
        f"sneakpeek of {application.name} was built from samples of {list(shape)}: {rule}; build "
        "it again from inputs as they are sent"
    )


def _few(names: Sequence[str]) -> str:
    """The first names of a list."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def peeks(config: DeploymentConfig) -> dict[str, SneakPeekModel]:
    """SneakPeek models of all applications, by the router's name of each."""
    return {
        name: replace(model, on_backends=are_on_backends(config, application))
        for name, application in _named(config)
        if (model := peek_of(application)) is not None
    }


def placed_looks(config: DeploymentConfig) -> dict[str, PlacedLook]:
    """Looks that the backends of a group take, by the router's name of the application."""
    return {
        name: _placed(config, application)
        for name, application in _named(config)
        if are_on_backends(config, application)
    }


def _placed(config: DeploymentConfig, application: Application) -> PlacedLook:
    model, spec = peek_of(application), input_of(application)
    assert model is not None
    later = decodes_later(config, application)
    dtype = DTYPES[spec.dtype].name if spec.dtype in DTYPES else ""
    return PlacedLook(model, image_of(application, spec) if later else None, spec.shape, dtype)


def _named(config: DeploymentConfig) -> Iterator[tuple[str, Application]]:
    return zip(router_names(config.served), config.served, strict=True)
