"""The signature of an application: as its entry says, or as its model says of itself."""

from fermata.applications.application import Application
from fermata.applications.server_options import BoxOptions, TensorOptions
from fermata.applications.variant import EMULATED
from fermata.deployments.models.catalog import describe
from fermata.deployments.models.signatures import read_signature
from fermata.deployments.specs.served_model import Signature, TensorSpec
from fermata.foundation.errors import ConfigError


def signature_of(application: Application, model: str) -> Signature | None:
    """Named tensors of an application on this model; None where `input` or a card describes it."""
    outputs = tuple(map(_spec, application.outputs))
    if application.inputs:
        return Signature(tuple(map(_spec, application.inputs)), outputs)
    if application.input is not None or describe(model) is not None:
        return None
    own = read_signature(model)
    if own is None:
        return None
    if not own.inputs:
        raise ConfigError(f"{model} has no inputs; serve a model that has some")
    return Signature(own.inputs, outputs or own.outputs)


def told_outputs(application: Application, model: str) -> tuple[TensorSpec, ...]:
    """Outputs as the entry says; of a file with an `input` beside it, as the file says."""
    if application.outputs:
        return tuple(map(_spec, application.outputs))
    try:
        own = read_signature(model)
    except ConfigError:
        # TorchScript does not always tell, and a broken file is refused by the backend.
        return ()
    return () if own is None else own.outputs


def boxes_of(
    application: Application, model: str, outputs: tuple[TensorSpec, ...], pictures: bool
) -> BoxOptions | None:
    """Boxes among the outputs: as the entry says, or as an embedded model's card does."""
    card, given = describe(model), application.boxes
    if given is None:
        return None if card is None or not pictures else card.boxes
    if model == EMULATED:
        return None
    if not pictures:
        raise ConfigError(
            f"boxes of {application.name} are given in pixels of clients' frames; it needs input "
            "with image: true"
        )
    names = [each.name for each in outputs]
    if names and given.output not in names:
        raise ConfigError(
            f"boxes.output={given.output!r} of {application.name}: {model} has no such output; "
            f"give one of {', '.join(names)}"
        )
    return given


def named_inputs(application: Application, signature: Signature | None) -> tuple[TensorSpec, ...]:
    """Inputs that a model gets by name; none where it gets one array."""
    if signature is None or (len(signature.inputs) == 1 and not application.inputs):
        return ()
    return signature.inputs


def check_same(application: Application, signatures: dict[str, Signature]) -> None:
    """Refuse variants that take other inputs than the first: one request may run on any."""
    (first, wanted), *others = signatures.items()
    for variant, own in others:
        if own.inputs != wanted.inputs:
            raise ConfigError(
                f"{variant} takes {_text(own)}, and {first} of {application.name} takes "
                f"{_text(wanted)}; give it an application of its own"
            )


def _text(signature: Signature) -> str:
    return ", ".join(map(str, signature.inputs))


def _spec(given: TensorOptions) -> TensorSpec:
    return TensorSpec(given.name, given.dtype, given.shape, given.optional)
