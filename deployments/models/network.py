"""Models by name from torchvision and transformers, and from any Python function."""

from pathlib import Path
from typing import Any

from fermata.deployments.models.model import Card, Model, TorchModel
from fermata.foundation.errors import ConfigError
from fermata.foundation.user_code import import_function

SIZE = 224
LENGTH = 128
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
    try:
        import transformers
    except ImportError:
        raise ConfigError(f"transformers:{name} needs transformers; run make models") from None
    tokens = LENGTH if length is None else length
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
    limit = getattr(config, "max_position_embeddings", tokens)
    if not 1 <= tokens <= limit:
        raise ConfigError(f"transformers:{name}@{tokens}: length must be 1 to {limit} tokens")
    labels = tuple(config.id2label[index] for index in range(config.num_labels))
    card = Card(
        f"transformers:{name}@{tokens}",
        (tokens,),
        "int64",
        (len(labels),),
        labels=labels,
        trained=trained,
    )
    padding = config.pad_token_id or 0

    def forward(batch: Any) -> Any:
        # An id that does not exist would end the process on a GPU, and with it the whole batch.
        ids = batch.clamp(0, config.vocab_size - 1)
        return network(input_ids=ids, attention_mask=(ids != padding).long()).logits

    return TorchModel(card, network.requires_grad_(False), forward).to(device)


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


def load_function(path: str, input_shape: tuple[int, ...] | None, device: str) -> Model:
    """Load the model that `module:function` returns; `function(device)` where it takes an argument.

    The model needs a `card`, or the caller gives the shape of one float32 input.
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
    model = function(device) if _takes_argument(function) else function()
    if not callable(model):
        raise ConfigError(f"{path}: returned a {type(model).__name__}, which cannot be called")
    if isinstance(getattr(model, "card", None), Card):
        return model  # type: ignore[no-any-return]
    if input_shape is None:
        raise ConfigError(f"{path}: give its model a card, or the shape of one input (3x224x224)")
    return Plain(Card(path, input_shape, "float32", (-1,)), model)


class Plain:
    """A bare function of a batch, with a card made for it."""

    def __init__(self, card: Card, function: Any) -> None:
        self.card = card
        self._function = function
        if hasattr(function, "check_device"):
            self.check_device = function.check_device

    def __call__(self, batch: Any) -> Any:
        return self._function(batch)


def _takes_argument(function: Any) -> bool:
    import inspect

    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in positional for each in given)


def _kind(network: Any) -> Any:
    return next(network.parameters()).dtype
