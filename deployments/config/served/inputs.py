"""The inputs of an application's models: as its entry, its signature or a model's card says."""

import numpy as np

from fermata.applications.application import Application
from fermata.applications.server_options import InputSpec
from fermata.applications.variant import Variant
from fermata.clients.wire.dtypes import NAMES
from fermata.clients.wire.tensors import FLOATS
from fermata.deployments.config.backend_groups import groups_of
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.served.look_places import are_on_backends
from fermata.deployments.config.served.sequences import (
    control_inputs,
    has_sequences,
)
from fermata.deployments.config.served.signature import (
    check_same,
    named_inputs,
    signature_of,
)
from fermata.deployments.models.catalog import describe
from fermata.deployments.models.sizes import split_size
from fermata.deployments.specs.served_model import (
    ImageSpec,
    Signature,
    TensorSpec,
)
from fermata.foundation.errors import ConfigError


def input_of(application: Application, signature: Signature | None = None) -> InputSpec:
    """The first input of a request: as configured, or as the model that serves says of itself."""
    if signature is not None:
        first = signature.inputs[0]
        return InputSpec(first.name, first.datatype, first.shape)  # type: ignore[arg-type]
    card = describe(serving_of(application).model)
    if application.input is not None or card is None:
        return application.input or InputSpec()
    return InputSpec(
        dtype=NAMES[np.dtype(card.input_dtype)],  # type: ignore[arg-type]
        shape=card.input_shape,
        image=bool(card.fit),
        fit=card.fit or "stretch",  # type: ignore[arg-type]
    )


def model_inputs(
    application: Application, signature: Signature | None, given: InputSpec
) -> tuple[TensorSpec, ...]:
    """Inputs that a model gets by name; none where it gets one array."""
    named = named_inputs(application, signature)
    if not has_sequences(application):
        return named
    if given.sized or (signature is None and describe(serving_of(application).model) is not None):
        raise ConfigError(
            f"{application.name}: {serving_of(application).model} keeps no state between requests; "
            "leave sequences and state out"
        )
    named = named or (first_input(given),)
    known = {each.name for each in named}
    controls = control_inputs(application, signature)
    return (*named, *(each for each in controls if each.name not in known))


def serving_of(application: Application) -> Variant:
    """The variant that serves unless the policy chooses."""
    for variant in application.variants:
        if variant.name == application.serving:
            return variant
    return application.variants[0]


def side_of(variant: Variant) -> int:
    """Side of the pictures that a variant takes, as the configuration says it; 0: not at all."""
    if variant.input_size:
        return variant.input_size
    return split_size(variant.model)[1] or 0


def check_input(application: Application, variant: Variant, given: InputSpec) -> None:
    card = describe(variant.model)
    if card is not None and card.input_shape != given.shape:
        raise ConfigError(
            f"{variant.name} takes inputs of {list(card.input_shape)}, {application.name} gives it "
            f"{list(given.shape)}; give it an application of its own"
        )


def input_shape(variant: Variant, given: InputSpec) -> tuple[int, ...]:
    if not given.sized:
        return given.shape
    is_number = given.dtype == "UINT8" or given.dtype in FLOATS
    if not is_number or not given.image or given.fit not in ("whole", "centre"):
        raise ConfigError(
            f"{variant.name}: input.sized needs image: true, dtype: UINT8 or floating-point, and "
            f"fit: whole or centre; {given.dtype} and {given.fit} are given"
        )
    side = side_of(variant)
    if not side:
        raise ConfigError(
            f"{variant.name}: input.sized needs the side of its pictures; give input_size, or name "
            "it as in imagenet:lite0@160"
        )
    return (3, side, side)


def image_of(application: Application, given: InputSpec) -> ImageSpec | None:
    if not given.image:
        return None
    if len(given.shape) != 3 or -1 in given.shape:
        raise ConfigError(
            f"input.shape={list(given.shape)} of {application.name} must be channels, height, width"
        )
    return ImageSpec(given.shape[1], given.shape[2], given.mean, given.std, given.fit)


def decodes_later(config: DeploymentConfig, application: Application) -> bool:
    """Whether plain JPEGs of an application are decoded by its backends, on their GPU."""
    given = input_of(application)
    devices = [each.backend.device for each in groups_of(config)]
    other = next((device for device in devices if device not in ("cuda", "auto")), "")
    if given.decode == "gpu" and other:
        raise ConfigError(
            f"input.decode=gpu of {application.name} needs backend.device: cuda, not {other}"
        )
    # Frames of other sizes, and those that frontends look at, are needed decoded.
    looked_at = application.class_options is not None and not are_on_backends(config, application)
    # A model that is loaded for its batch cannot say in time which pictures are broken.
    decoded = given.sized or looked_at or config.backend.swap
    if application.inputs or not given.image or decoded or has_sequences(application):
        return False
    return given.decode == "gpu" or (given.decode == "auto" and set(devices) == {"cuda"})


def first_input(given: InputSpec) -> TensorSpec:
    return TensorSpec(given.name, given.dtype, given.shape)


def shared_signature(application: Application) -> Signature | None:
    """The signature of an application, which all of its variants have."""
    found = {each.name: signature_of(application, each.model) for each in application.variants}
    known = {name: each for name, each in found.items() if each is not None}
    if known:
        check_same(application, known)
    return found[serving_of(application).name]
