"""Models by name from torchvision and transformers, and from any Python function."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fermata.deployments.models.model import Card, Model, TorchModel
from fermata.deployments.models.named_network import NamedNetwork, Tensors
from fermata.deployments.models.sizes import check_sides, shared
from fermata.deployments.specs.served_model import Signature, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.user_code import import_function

SIZE = 224
LENGTH = 128
INPUT_IDS = "input_ids"
LOGITS = "logits"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_torchvision(name: str, size: int | None = None, device: str = "cpu") -> TorchModel:
    """A torchvision classifier for [b, 3, size, size]: normalised floats, or pixels as bytes, which
    are normalised on the device.

    It has its weights where torch's hub folder already holds them. Nothing is downloaded: without
    them the network is random, and its card says so.
    """
    try:
        import torch
        from torchvision import models
    except ImportError:
        raise ConfigError(f"torchvision:{name} needs pip install torch torchvision") from None
    # Detectors and segmenters answer with structures, not with rows of scores.
    known = models.list_models(module=models)
    if name not in known:
        near = ", ".join(each for each in known if each[:3] == name[:3]) or ", ".join(known[:8])
        raise ConfigError(f"no model torchvision:{name}; close: {near}")
    side = SIZE if size is None else size
    weights = models.get_model_weights(name).DEFAULT
    file = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    network = models.get_model(name)
    if file.exists():
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    network.requires_grad_(False)
    labels = tuple(weights.meta["categories"])
    card = Card(
        f"torchvision:{name}@{side}",
        (3, side, side),
        "float32",
        (len(labels),),
        labels=labels,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        file_bytes=file.stat().st_size if file.exists() else 0,
        trained=file.exists(),
    )
    return TorchModel(card, network, _Pixels(network)).to(device)


def load_transformers(name: str, length: int | None = None, device: str = "cpu") -> TorchModel:
    """A classifier of token ids [b, length] from transformers.

    `name` is a folder, a name that its cache holds, or one of its architectures (`distilbert`),
    which then has random weights.

    Nothing is downloaded.
    """
    network, card = _classifier(name, LENGTH if length is None else length)
    forward = _masked(network)
    module = network.requires_grad_(False)
    return TorchModel(card, module, lambda batch: forward({INPUT_IDS: batch})).to(device)


def load_transformers_named(
    name: str, length: int | None = None, device: str = "cpu"
) -> NamedNetwork:
    """The same classifier with the inputs that its tokenizer makes, of any length."""
    network, card = _classifier(name, length)
    inputs = _inputs_of(network, length)
    module = network.requires_grad_(False).eval()
    return NamedNetwork(card, module, inputs, _masked(network), (LOGITS,)).to(device)


def transformers_signature(name: str, length: int | None = None) -> Signature:
    """Inputs and output of a classifier of transformers, which is loaded for that."""
    network, card = _classifier(name, length)
    return Signature(_inputs_of(network, length), (TensorSpec(LOGITS, "FP32", card.output_shape),))


def _inputs_of(network: Any, length: int | None) -> tuple[TensorSpec, ...]:
    """Those of the tokenizer's outputs that the network takes; ids alone are needed."""
    taken = inspect.signature(network.forward).parameters
    shape = (-1,) if length is None else (length,)
    limit = getattr(network.config, "max_position_embeddings", 0)
    return tuple(
        TensorSpec(each, "INT64", shape, each != INPUT_IDS, limit)
        for each in (INPUT_IDS, "attention_mask", "token_type_ids")
        if each in taken
    )


def _classifier(name: str, length: int | None) -> tuple[Any, Card]:
    try:
        import transformers
    except ImportError:
        raise ConfigError(f"transformers:{name} needs transformers; run make models") from None
    maker: Any = transformers.AutoModelForSequenceClassification
    # transformers reports progress and new heads on standard error.
    quiet: Any = transformers.logging
    quiet.set_verbosity_error()
    trained = name not in transformers.CONFIG_MAPPING
    try:
        if trained:
            network = maker.from_pretrained(name, local_files_only=True)
        else:
            network = maker.from_config(transformers.AutoConfig.for_model(name))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"transformers:{name} is no folder, name in its cache, or architecture with a "
            f"classifier: {reason}"
        ) from None
    config = network.config
    limit = getattr(config, "max_position_embeddings", length or 0)
    if length is not None and not 1 <= length <= limit:
        raise ConfigError(f"transformers:{name}@{length}: length must be 1 to {limit} tokens")
    labels = tuple(config.id2label[index] for index in range(config.num_labels))
    size, shape = ("", (-1,)) if length is None else (f"@{length}", (length,))
    return network, Card(
        f"transformers:{name}{size}", shape, "int64", (len(labels),), labels=labels, trained=trained
    )


def _masked(network: Any) -> Callable[[Tensors], Any]:
    """The network's scores; without a mask, padding is masked."""
    config = network.config
    padding = config.pad_token_id or 0

    def forward(given: Tensors) -> Any:
        # An id that does not exist would end the process on a GPU, and with it the whole batch.
        ids = given[INPUT_IDS].clamp(0, config.vocab_size - 1)
        mask = given.get("attention_mask")
        mask = (ids != padding).long() if mask is None else mask
        rest = {name: given[name] for name in given if name not in (INPUT_IDS, "attention_mask")}
        if "token_type_ids" in rest:
            kinds = getattr(config, "type_vocab_size", 2)
            rest["token_type_ids"] = rest["token_type_ids"].clamp(0, kinds - 1)
        return network(input_ids=ids, attention_mask=mask, **rest).logits

    return forward


class _Pixels:
    """A network that also takes bytes: a quarter of the copy to the device, and nothing to compute
    before it."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.constants: dict[str, tuple[Any, Any]] = {}
        """Scale and shift of each channel, by device: made once, since no graph may hold their
        making."""

    def __call__(self, batch: Any) -> Any:
        import torch

        if batch.dtype == torch.uint8:
            scale, shift = self._constants(str(batch.device))
            # In 32 bits up to here: half precision would round the scale for every pixel alike.
            batch = batch * scale - shift
        return self.network(batch.to(_kind(self.network)))

    def _constants(self, device: str) -> tuple[Any, Any]:
        import torch

        if device not in self.constants:
            mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
            scale, shift = 1 / (255 * std), mean / std
            self.constants[device] = (
                scale.reshape(3, 1, 1).to(device),
                shift.reshape(3, 1, 1).to(device),
            )
        return self.constants[device]


def load_function(
    path: str, input_shape: tuple[int, ...] | None, device: str, size: int | None = None
) -> Model:
    """Load the model that `module:function` returns; `function(device)` where it takes an argument.

    The model needs a `card`, or the caller gives the shape of one float32 input. A function with a
    parameter `size` makes a model for each size; the model of any other is shared by its sizes.
    """
    module_name, _, function_name = path.partition(":")
    try:
        function = import_function(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path}: no module {error.name!r} on the path") from None
    except AttributeError:
        raise ConfigError(f"{path}: module {module_name} has no {function_name}") from None
    if not callable(function):
        raise ConfigError(f"{path}: is a {type(function).__name__}, not a function")
    model = _called(path, function, device, size)
    if not callable(model):
        raise ConfigError(f"{path}: returned a {type(model).__name__}, which cannot be called")
    card = getattr(model, "card", None)
    if isinstance(card, Card):
        return model if size is None else at_size(model, card, f"{path}@{size}", size)
    if size is not None and input_shape is None:
        input_shape = (3, size, size)
    if input_shape is None:
        raise ConfigError(f"{path}: give its model a card, or the shape of one input (3x224x224)")
    name = path if size is None else f"{path}@{size}"
    check_sides(name, input_shape, size)
    return Plain(Card(name, input_shape, "float32", (-1,)), model)


def _called(path: str, function: Any, device: str, size: int | None) -> Any:
    """The function's model, for this size where it takes one."""
    wanted = _parameters(function)
    given = [device] if any(name != "size" for name in wanted) else []
    if "size" not in wanted:
        if size is None:
            return function(*given)
        return shared((path, id(function), device), lambda: function(*given))
    if size is not None:
        return function(*given, size=size)
    if wanted["size"].default is inspect.Parameter.empty:
        raise ConfigError(f"{path}: takes a size; name it, as in {path}@160")
    return function(*given)


def at_size(model: Any, card: Card, name: str, size: int) -> Model:
    """The model with a card for pictures of this side; the weights are its own ones still."""
    shape = card.input_shape
    if len(shape) != 3:
        raise ConfigError(
            f"{name}: its card says {list(shape)}, which has no side; leave out the size"
        )
    # Channels come first or last.
    sides = shape[:2] if shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4) else shape[1:]
    check_sides(name, sides, size)
    at = 0 if sides == shape[:2] and sides != shape[1:] else 1
    sized = (*shape[:at], size, size, *shape[at + 2 :])
    card = replace(card, name=name, input_shape=sized)
    if isinstance(model, TorchModel):
        return model.with_card(card)
    return Plain(card, model)


class Plain:
    """A bare function of a batch, with a card made for it."""

    def __init__(self, card: Card, function: Any) -> None:
        self.card = card
        self._function = function
        for name in ("check_device", "static_bytes", "end_sequences"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def __call__(self, batch: Any) -> Any:
        return self._function(batch)


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Positional parameters of a function, and its `size`."""
    try:
        given = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: each
        for name, each in given.items()
        if each.kind in (named if name == "size" else positional)
    }


def _kind(network: Any) -> Any:
    return next(network.parameters()).dtype
