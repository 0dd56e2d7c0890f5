"""What a frontend serves: plain data that the application builder fills in."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy.typing as npt

from fermata.clients.wire.errors import shown
from fermata.foundation.errors import ConfigError, ServingError

Reader = Callable[[bytes], npt.NDArray[Any]]
Fit = Literal["stretch", "crop", "centre", "whole"]


class UnknownModelError(ServingError):
    """No such model, or no such version of it."""

    grpc_status: ClassVar[str] = "NOT_FOUND"


class UnloadedModelError(UnknownModelError):
    """No backend has loaded it."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


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


class Registry:
    """Models by name and version; those that no backend has loaded are known, but not served."""

    def __init__(
        self, models: Iterable[ServedModel] = (), rng: random.Random | None = None
    ) -> None:
        self.rng = rng or random.Random()
        """Decides who tries a new version out."""
        self.models: dict[str, dict[str, ServedModel]] = {}
        """By name, then by version, oldest first."""
        for model in models:
            known = self.models.setdefault(model.name, {})
            known.update(dict.fromkeys(model.own_versions, model))
        self.absent: dict[str, str] = {}
        """Why, by what the router calls it."""
        self.newest: dict[str, tuple[ServedModel, str]] = {}
        """What serves requests that name no version."""
        self.trials: dict[str, tuple[float, tuple[ServedModel, str]]] = {}
        """Share of those that a newer version is tried out on, and that version."""
        self.set_absent({})

    @classmethod
    def of(cls, models: Iterable[ServedModel]) -> "Registry":
        return cls(models)

    def every(self) -> list[tuple[ServedModel, str]]:
        """Each version of each model."""
        return [
            (model, version)
            for versions in self.models.values()
            for version, model in versions.items()
        ]

    def set_absent(self, absent: Mapping[str, str]) -> None:
        """These applications, as the router calls them, are served by nobody."""
        self.absent = dict(absent)
        self.newest.clear()
        self.trials.clear()
        for model, version in self.every():
            if model.application(version) in self.absent:
                continue
            if model.share < 1.0 and model.name in self.newest:
                self.trials[model.name] = (model.share, (model, version))
            else:
                self.newest[model.name] = (model, version)
                self.trials.pop(model.name, None)

    def find(self, name: str, version: str = "") -> tuple[ServedModel, str]:
        """A loaded model and its version, which a client may also write as `name@version`."""
        if not version:
            if name in self.trials:
                share, tried = self.trials[name]
                if self.rng.random() < share:
                    return tried
            found = self.newest.get(name)
            if found is not None:
                return found
        model, version = self.known(name, version)
        reason = self.absent.get(model.application(version))
        if reason is not None:
            raise UnloadedModelError(
                f"model {model.name!r} version {version} is not served: {reason}; "
                "load it, or ask for another"
            )
        return model, version

    def stem(self, name: str) -> str:
        """The model's name, of `name` or `name@version`; no matter whether there is such a one."""
        return name if name in self.models else name.rpartition("@")[0] or name

    def known(self, name: str, version: str = "") -> tuple[ServedModel, str]:
        """The same, loaded or not; the highest version where none is named."""
        versions = self.models.get(name)
        if versions is None:
            # Whatever version is asked for: who may use a model is known by the stem, and may hear
            # of no other.
            stem = self.stem(name)
            named = name[len(stem) + 1 :]
            versions = self.models.get(stem)
            if versions is not None and version not in ("", named):
                raise UnknownModelError(
                    f"{shown(name)} and version {shown(version)}: say one of the two"
                )
            version = named
        if versions is None:
            known = ", ".join(sorted(self.models)[:10]) or "none"
            raise UnknownModelError(f"model {shown(name)} is not served here: use one of {known}")
        version = version or next(reversed(versions))
        if version not in versions:
            known = ", ".join(versions)
            stem = next(iter(versions.values())).name
            raise UnknownModelError(
                f"model {stem!r} has no version {shown(version)}: use one of {known}"
            )
        return versions[version], version
