"""Options that only servers use: an application's input, and the trial of a version."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fermata.foundation.sections import Count, Fraction, Limits, Positive

Dtype = Literal[
    "FP32",
    "FP16",
    "BF16",
    "FP64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "BOOL",
    "BYTES",
]
Size = Annotated[int, Limits(low=-1)]
"""The size of a dimension; -1: it varies."""
Fit = Literal["stretch", "crop", "centre", "whole", "page", "line"]

Decode = Literal["auto", "gpu", "cpu"]
Precision = Literal["auto", "fp32", "fp16", "bf16"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Content of one request."""

    name: str = "input"
    """Tensor name in requests."""
    dtype: Dtype = "FP32"
    """As the model takes it, after preprocessing."""
    shape: tuple[Size, ...] = (1,)
    """Without the batch dimension; -1 where it varies."""
    image: bool = False
    """Encoded JPEG in a BYTES tensor is decoded, resized to `shape` and normalised."""
    fit: Fit = "stretch"
    """How a picture gets that size: `stretch` ignores its proportions, `crop` is torchvision's
    middle, `centre` EfficientNet's, `whole` keeps all of it in the top left of a square.
    `page` and `line` are PP-OCR's: as `whole`, with sides that are multiples of 32; and a line of
    text at the left, the rest grey."""
    decode: Decode = "auto"
    """Where a plain JPEG is decoded: `gpu`, a batch at a time in the backend; `cpu`, in the
    frontend; `auto`, on the GPU where every backend gets one, as docs/gpu.md tells. Other pictures
    are for the CPU."""
    sized: bool = False
    """Variants differ in the side of their pictures: each frame keeps the size it comes with, and
    is fitted to the variant that runs it; `fit` is `whole` or `centre`."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Subtracted from each channel of an image, on a scale of 0 to 1."""
    std: tuple[Positive, ...] = (0.229, 0.224, 0.225)
    """Then divided by this."""


@dataclass(frozen=True, slots=True)
class BoxOptions:
    """Boxes in a detector's answers; clients get them in pixels of the frames that they sent."""

    output: str = "output"
    """Output that holds them: four numbers a box, or eight, and any number of others after."""
    format: Literal["xyxy", "xywh", "cxcywh", "yxyx", "quad"] = "xyxy"
    """The four numbers: two corners, the upper left corner and a size, the middle and a size, or
    two corners with y first. They keep this format. `quad` has eight: four corners, clockwise from
    the upper left one, of a rectangle at any angle."""
    unit: Literal["pixels", "shares"] = "pixels"
    """Measures of the model's input: its pixels, or shares of its sides from 0 to 1."""
    axis: Literal["last", "first"] = "last"
    """Dimension of one answer that holds the numbers of a box: `last` for [boxes, 4 or more],
    `first` for [4 or more, boxes]."""


@dataclass(frozen=True, slots=True)
class TensorOptions:
    """A tensor of a signature."""

    name: str
    """Tensor name in requests and answers."""
    dtype: Dtype = "FP32"
    """As the model takes or gives it."""
    shape: tuple[Size, ...] = (1,)
    """Without the batch dimension; -1 where it varies."""
    optional: bool = False
    """Requests may leave this input out; the model then does not get it."""


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """A new version that is tried out on some requests before it gets them all."""

    share: Annotated[float, Limits(high=1.0, ends=False)] = 0.1
    """Share of requests that name no version; the others go to the version before it."""
    bad_rate_max: Fraction = 0.05
    """Above it the version is withdrawn: nobody is sent to it until a client loads it anew."""
    requests_min: Count = 100
    """Nobody judges before so many have ended."""
