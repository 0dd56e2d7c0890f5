"""A model as its clients see it: name, versions, input, outputs and SLO."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from fermata.applications.server_options import BoxOptions
from fermata.applications.shapes import in_bucket
from fermata.deployments.specs.pipelines import ServedPipeline
from fermata.foundation.errors import ConfigError

Reader = Callable[[bytes], npt.NDArray[Any]]
Fit = Literal["stretch", "crop", "centre", "whole", "page", "line"]
OUTPUT = "output"
"""Name of the output of a model that returns a bare array."""
SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END = "sequence_id", "sequence_start", "sequence_end"
"""Inputs of a model that keeps the state of sequences itself."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of one request, without the batch dimension; -1 for a size that varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    """Requests may leave this input out."""
    size_max: int = 0
    """The largest size of a dimension that varies; 0: any."""

    def __str__(self) -> str:
        return f"{self.name} {self.datatype}{list(self.shape)}"


CONTROLS = (
    TensorSpec(SEQUENCE_ID, "UINT64", ()),
    TensorSpec(SEQUENCE_START, "BOOL", ()),
    TensorSpec(SEQUENCE_END, "BOOL", ()),
)


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, by name."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    """Empty if nobody knows them before a batch has run."""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """Conversion of a picture to the input tensor. A UINT8 input is not normalised."""

    height: int
    width: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel, on a scale of 0 to 1."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    fit: Fit = "stretch"
    """`stretch`: the whole picture, at any aspect ratio. `crop`: as in torchvision, the shorter
    side to `resize`, then the middle. `centre`, `whole`: as in
    `fermata.deployments.models.pictures.picture`, for a square input. `page`, `line`: as in
    `pages.py` beside that, the first for a square input too."""
    resize: int = 256
    """Shorter side before `crop`."""
    bicubic: bool = False
    """Bicubic scaling for `stretch` and `crop`; otherwise bilinear."""
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.fit in ("centre", "whole", "page") and self.height != self.width:
            raise ConfigError(
                f"fit={self.fit!r} makes squares, not {self.width}x{self.height}: use stretch"
            )


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """Inputs that a model gets for the sequence of a request, beside those of its client."""

    idle_ns: int
    """A sequence without a request for so long ends."""
    controls: tuple[TensorSpec, ...] = ()
    """Those of `CONTROLS` that the model takes, where it keeps the state itself."""
    state: tuple[tuple[TensorSpec, str], ...] = ()
    """Inputs that hold the state, each with the output that is the next one; zeros at the start."""

    @property
    def hidden_outputs(self) -> frozenset[str]:
        return frozenset(output for _, output in self.state)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An application as clients see it."""

    name: str
    input: TensorSpec
    slo_ns: int
    hard_limit_ns: int
    outputs: tuple[TensorSpec, ...] = ()
    """Empty if only the backend knows them."""
    versions: tuple[str, ...] = ("1",)
    """All versions under its name; the last one serves requests that name none."""
    version: str = ""
    """Its own version; empty: it serves all of them."""
    router_name: str = ""
    """The router's name for it; empty: the one that `application` returns."""
    share: float = 1.0
    """Share of requests that name no version; the others go to the version before it."""
    image: ImageSpec | None = None
    """Set if inputs are pictures; encoded ones are decoded in the frontend."""
    decoded_later: bool = False
    """Plain JPEGs are passed on as they are, and decoded by the backend."""
    read: Reader | None = None
    """Makes the input from a BYTES element if inputs are not pictures; called in threads.
    A ValueError is the client's."""
    boxes: BoxOptions | None = None
    """Boxes among its outputs, which clients get in pixels of their own picture."""
    sides: Mapping[str, int] = field(default_factory=dict)
    """Side of each variant's pictures, if they differ. Pictures then keep the size that they come
    with, and the backend fits them to the variant that it runs."""
    variants: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the classes of the first output."""
    allow_nan: bool = False
    more_inputs: tuple[TensorSpec, ...] = ()
    """Inputs after the first one."""
    stateful: SequenceSpec | None = None
    """Set if its requests are steps of sequences."""
    rows_max: int = 1
    """Rows that one batch takes; a request with more is split here, and joined."""
    buckets: tuple[int, ...] = ()
    """Largest sizes of its shape buckets, rising; empty: it has none."""
    bucket_rows: tuple[int, ...] = ()
    """Rows that one batch takes, in each of these."""
    pipeline: ServedPipeline | None = None
    """Set if its requests are queries. Its input is then that of the first stage."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.input, *self.more_inputs)

    @property
    def takes_bytes(self) -> bool:
        """Whether clients may send encoded inputs."""
        return self.image is not None or self.read is not None

    @property
    def wants_frame(self) -> bool:
        """Whether the size of a client's picture is needed beside the input that is made of it."""
        if self.pipeline is not None:
            return self.pipeline.stages[0].model.wants_frame
        return self.boxes is not None or bool(self.sides)

    @property
    def own_versions(self) -> tuple[str, ...]:
        return (self.version,) if self.version else self.versions

    def application(self, version: str) -> str:
        """The router's name for a version: old versions are applications of their own."""
        if self.router_name:
            return self.router_name
        return self.name if version in ("", self.versions[-1]) else f"{self.name}@{version}"

    def applications(self, version: str) -> tuple[str, ...]:
        """The router's names for a version: each shape bucket is an application of its own, and a
        pipeline has those of its stages."""
        if self.pipeline is not None:
            return tuple(dict.fromkeys(each.application for each in self.pipeline.stages))
        name = self.application(version)
        return tuple(in_bucket(name, bucket) for bucket in self.buckets) or (name,)
