"""A model as its clients see it: name, versions, input, outputs and SLO."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from fermata.foundation.errors import ConfigError

Reader = Callable[[bytes], npt.NDArray[Any]]
Fit = Literal["stretch", "crop", "centre", "whole"]
OUTPUT = "output"
"""Name of the output of a model that returns a bare array."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of one request, without the batch dimension; -1 where a size varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """How a picture becomes the input tensor. A UINT8 input is not normalised."""

    height: int
    width: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Of each channel, on a scale of 0 to 1."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    fit: Fit = "stretch"
    """`stretch`: the whole picture, whatever its shape. `crop`: as torchvision has it, the shorter
    side to `resize`, then the middle. `centre`, `whole`: as
    `fermata.deployments.models.picture` has them; the input is square."""
    resize: int = 256
    """Shorter side before `crop`."""
    bicubic: bool = False
    """For `stretch` and `crop`."""
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.fit in ("centre", "whole") and self.height != self.width:
            raise ConfigError(
                f"fit={self.fit!r} makes squares, not {self.width}x{self.height}: use stretch"
            )


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An application as clients see it."""

    name: str
    input: TensorSpec
    slo_ns: int
    hard_limit_ns: int
    outputs: tuple[TensorSpec, ...] = ()
    """Empty where only the backend knows them."""
    versions: tuple[str, ...] = ("1",)
    """Every one of its name; the last one serves requests that name none."""
    version: str = ""
    """Its own; empty: it is all of them alike."""
    router_name: str = ""
    """What the router calls it; empty: as `application` says."""
    share: float = 1.0
    """Of requests that name no version; below 1 the others go to the version before it."""
    image: ImageSpec | None = None
    """Set where inputs are pictures: then encoded ones are decoded here."""
    read: Reader | None = None
    """Makes the input of a BYTES element, where inputs are something else; called in threads.
    A ValueError is the client's."""
    boxes: bool = False
    """Answers are rows of x1, y1, x2, y2, ... in input pixels of a `whole` picture; clients get
    them in pixels of their own."""
    sides: Mapping[str, int] = field(default_factory=dict)
    """By variant: the side of its pictures, where these differ. Pictures then keep the size that
    they come with, and the backend fits them to the variant that it runs."""
    variants: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the classes of the first output."""
    allow_nan: bool = False

    @property
    def takes_bytes(self) -> bool:
        """Clients send encoded inputs."""
        return self.image is not None or self.read is not None

    @property
    def own_versions(self) -> tuple[str, ...]:
        return (self.version,) if self.version else self.versions

    def application(self, version: str) -> str:
        """What the router calls it: old versions are applications of their own."""
        if self.router_name:
            return self.router_name
        return self.name if version in ("", self.versions[-1]) else f"{self.name}@{version}"
