"""A network of Darknet as a torch module: its .cfg says the layers, its .weights the numbers.

Only what small detectors need is known: convolutions, groups, pooling, doubling and YOLO heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fermata.deployments.models.model import Array
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

Options = dict[str, str]
"""Of one layer, as its .cfg gives them."""
KNOWN = ("convolutional", "route", "maxpool", "upsample", "yolo")
HEADER_BYTES = 20
"""Three numbers of the version, and 64 bits that count the pictures it was trained on."""
EPSILON = 1e-5
SLOPE = 0.1
"""Of a leaky unit below zero."""


@dataclass(frozen=True, slots=True)
class Head:
    """A map of cells that each answer with some boxes."""

    anchors: tuple[tuple[int, int], ...]
    """Width and height of each box of a cell before it is stretched, in input pixels."""
    classes: int
    scale: float
    """Share of a cell's side that a box's middle may move over; above 1, beyond it."""


def read_layers(path: Path) -> list[tuple[str, Options]]:
    """(kind, options) of each section of a .cfg file but the first, which is for training."""
    found: list[tuple[str, Options]] = []
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("["):
            found.append((text.strip("[]"), {}))
        elif text:
            key, _, value = text.partition("=")
            found[-1][1][key.strip()] = value.strip()
    layers = found[1:]
    for kind, _ in layers:
        if kind not in KNOWN:
            raise ConfigError(f"{path.name}: layer {kind} is not among {', '.join(KNOWN)}")
    return layers


def number(given: Options, key: str, usual: str = "") -> int:
    """A whole number of a layer."""
    return int(given.get(key, usual))


def numbers(given: Options, key: str) -> list[int]:
    """Whole numbers of a layer, with commas between them."""
    return [int(each) for each in given.get(key, "").split(",")]


class WeightsFile:
    """The numbers of a .weights file, taken one tensor after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.numbers: Array = np.fromfile(path, "<f4", offset=HEADER_BYTES)
        self.at = 0

    def take(self, *shape: int) -> Array:
        size = int(np.prod(shape))
        if self.at + size > len(self.numbers):
            raise ConfigError(f"{self.path.name} ends too early; install it again")
        found: Array = self.numbers[self.at : self.at + size].reshape(shape)
        self.at += size
        return found

    def convolution(self, channels: int, filters: int, side: int, normed: bool) -> tuple[Any, Any]:
        """Kernel and bias, the batch norm that follows the convolution folded into both."""
        bias = self.take(filters)
        scale: Array = np.ones(filters, np.float32)
        if normed:
            gain, mean, variance = self.take(filters), self.take(filters), self.take(filters)
            scale = gain / np.sqrt(variance + EPSILON)
            bias = bias - mean * scale
        kernel = self.take(filters, channels, side, side) * scale[:, None, None, None]
        return kernel.astype(np.float32), bias.astype(np.float32)


def load_darknet(layers_path: Path, weights_path: Path) -> "torch.nn.Module":
    """The network of pixels from 0 to 1; it gives a raw map [b, boxes * (5 + classes), h, w] for
    each of its `heads`."""
    import torch

    class Darknet(torch.nn.Module):
        """Layers that each read the one before, or those that they name."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = read_layers(layers_path)
            self.heads = tuple(_head(given) for kind, given in self.layers if kind == "yolo")
            self.convolutions = torch.nn.ModuleList(
                _convolutions(torch, self.layers, WeightsFile(weights_path))
            )

        def forward(self, batch: "torch.Tensor") -> "list[torch.Tensor]":
            told: list[torch.Tensor] = []
            maps: list[torch.Tensor] = []
            convolutions = iter(self.convolutions)
            value = batch
            for index, (kind, given) in enumerate(self.layers):
                if kind == "convolutional":
                    value = next(convolutions)(value)
                    if given.get("activation") == "leaky":
                        value = torch.nn.functional.leaky_relu(value, SLOPE)
                elif kind == "route":
                    value = _routed(torch, told, index, given)
                elif kind == "maxpool":
                    side, step = number(given, "size"), number(given, "stride")
                    value = torch.nn.functional.max_pool2d(value, side, step)
                elif kind == "upsample":
                    scale = number(given, "stride")
                    value = torch.nn.functional.interpolate(value, scale_factor=scale)
                else:
                    maps.append(value)
                told.append(value)
            return maps

    network: Any = Darknet()
    network.requires_grad_(False)
    # Interleaved channels: a fifth faster on a CPU, and what tensor cores want.
    found: torch.nn.Module = network.to(memory_format=torch.channels_last).eval()
    return found


def _convolutions(
    torch: Any, layers: Sequence[tuple[str, Options]], weights: WeightsFile
) -> "list[torch.nn.Module]":
    """The convolutions in order, with their weights."""
    found: list[Any] = []
    channels = [3]
    """Of the picture, and then of each layer's output."""
    for index, (kind, given) in enumerate(layers):
        if kind == "route":
            parts = [channels[1 + place] for place in _sources(index, given)]
            channels.append(sum(parts) // number(given, "groups", "1"))
            continue
        if kind != "convolutional":
            channels.append(channels[-1])
            continue
        filters, side = number(given, "filters"), number(given, "size")
        padding = side // 2 if given.get("pad") == "1" else 0
        made = torch.nn.Conv2d(channels[-1], filters, side, number(given, "stride"), padding)
        normed = given.get("batch_normalize") == "1"
        kernel, bias = weights.convolution(channels[-1], filters, side, normed)
        made.weight.data = torch.from_numpy(kernel)
        made.bias.data = torch.from_numpy(bias)
        found.append(made)
        channels.append(filters)
    return found


def _sources(index: int, given: Options) -> list[int]:
    """Layers that a route joins; negative ones count back from it."""
    return [each if each >= 0 else index + each for each in numbers(given, "layers")]


def _routed(torch: Any, told: "Sequence[torch.Tensor]", index: int, given: Options) -> Any:
    parts = [told[place] for place in _sources(index, given)]
    value = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    groups = number(given, "groups", "1")
    return value if groups == 1 else value.chunk(groups, dim=1)[number(given, "group_id")]


def _head(given: Options) -> Head:
    sides = numbers(given, "anchors")
    sizes = list(zip(sides[::2], sides[1::2], strict=True))
    mask = numbers(given, "mask")
    scale = float(given.get("scale_x_y", "1"))
    return Head(tuple(sizes[each] for each in mask), number(given, "classes"), scale)
