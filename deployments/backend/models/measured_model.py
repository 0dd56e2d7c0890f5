"""A model of any name, opened to be measured without a server."""

from dataclasses import replace

import numpy as np

from fermata.clients.wire.dtypes import NAMES
from fermata.deployments.backend.execution.tensors import held_as
from fermata.deployments.backend.models.loaders import open_variant
from fermata.deployments.models.model import Card, Model, TorchModel
from fermata.deployments.models.named_network import NamedNetwork
from fermata.deployments.models.network import Plain
from fermata.deployments.models.signatures import is_file, read_signature
from fermata.deployments.models.sizes import split_size
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError


def open_measured(
    name: str, device: str, half: bool = False, shape: tuple[int, ...] | None = None
) -> Model:
    """The model on a device, to be called with a batch of one array; `shape` of one input."""
    spec = ModelSpec(name, name, input_shape=shape)
    if is_file(name):
        spec = _described(spec, shape)
    model = open_variant(spec, device)
    if half and isinstance(model, TorchModel | NamedNetwork) and not model.exact:
        model.to(device, "float16")
    if isinstance(model, NamedNetwork):
        return _OneInput(model, _card_of(spec))
    return model


class _OneInput(Plain):
    """A network that takes arrays by name, called with its only one."""

    def __init__(self, network: NamedNetwork, card: Card) -> None:
        name = network.inputs[0].name
        super().__init__(card, lambda batch: network({name: batch}))
        self.static_bytes = network.static_bytes
        self.to = network.to


def _card_of(spec: ModelSpec) -> Card:
    assert spec.input_shape is not None
    return Card(spec.name, spec.input_shape, held_as(spec.input_dtype or "FP32"), (-1,))


def _described(spec: ModelSpec, shape: tuple[int, ...] | None) -> ModelSpec:
    """The spec of a file, with type and shape of its only input."""
    size = split_size(spec.model)[1]
    first = TensorSpec("", "FP32", shape or ())
    try:
        own = read_signature(spec.model)
    except ConfigError:
        # TorchScript does not always tell; a size or a shape is enough then.
        if shape is None and size is None:
            raise
        own = None
    if own is not None:
        if len(own.inputs) != 1:
            raise ConfigError(
                f"{spec.name} takes {', '.join(map(str, own.inputs))}; only models of one input "
                "are measured here, a server measures this one at its start"
            )
        first = own.inputs[0]
    found = shape or first.shape or ((3, size, size) if size is not None else ())
    if not found or -1 in found:
        raise ConfigError(
            f"{spec.name} takes inputs of any size; give --input-sizes, or --input as in 3x224x224"
        )
    if np.dtype(held_as(first.datatype)) not in NAMES:
        raise ConfigError(f"{spec.name} takes {first.datatype}; only numbers are measured here")
    return replace(spec, input_shape=found, input_dtype=first.datatype)
