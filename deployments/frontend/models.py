"""What a frontend serves: plain data that the application builder fills in."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy.typing as npt

from profiles.errors import ConfigError, ServingError

Reader = Callable[[bytes], npt.NDArray[Any]]
Fit = Literal["stretch", "crop", "centre", "whole"]


class UnknownModelError(ServingError):
    """No such model, or no such version of it."""

    grpc_status: ClassVar[str] = "NOT_FOUND"


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
    side to `resize`, then the middle. `centre`, `whole`: as `deployments.models.picture` has them;
    the input is square."""
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
    """The last one serves requests that name none."""
    image: ImageSpec | None = None
    """Set where inputs are pictures: then encoded ones are decoded here."""
    read: Reader | None = None
    """Makes the input of a BYTES element, where inputs are something else; called in threads.
    A ValueError is the client's."""
    boxes: bool = False
    """Answers are rows of x1, y1, x2, y2, ... in input pixels of a `whole` picture; clients get
    them in pixels of their own."""
    variants: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the classes of the first output."""
    allow_nan: bool = False

    @property
    def takes_bytes(self) -> bool:
        """Clients send encoded inputs."""
        return self.image is not None or self.read is not None

    def application(self, version: str) -> str:
        """What the router calls it: old versions are applications of their own."""
        return self.name if version in ("", self.versions[-1]) else f"{self.name}@{version}"


@dataclass(frozen=True, slots=True)
class Registry:
    """Models by name."""

    models: Mapping[str, ServedModel] = field(default_factory=dict)

    @classmethod
    def of(cls, models: Iterable[ServedModel]) -> "Registry":
        return cls({model.name: model for model in models})

    def find(self, name: str, version: str = "") -> tuple[ServedModel, str]:
        """The model and its version, which a client may also write as `name@version`."""
        model = self.models.get(name)
        if model is None and not version:
            stem, _, version = name.rpartition("@")
            model = self.models.get(stem)
        if model is None:
            known = ", ".join(sorted(self.models)[:10]) or "none"
            raise UnknownModelError(f"model {name!r} is not served here: use one of {known}")
        if version and version not in model.versions:
            known = ", ".join(model.versions)
            raise UnknownModelError(
                f"model {model.name!r} has no version {version!r}: use one of {known}"
            )
        return model, version or model.versions[-1]
