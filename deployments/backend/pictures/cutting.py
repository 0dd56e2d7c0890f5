"""Parts of pictures on a device, fitted to a model's input: a batch of any boxes at once.

Scaling is a product with a matrix of weights along either side, as Pillow computes them. So boxes
of all sizes share their kernels, and the results are those of
`fermata.deployments.models.pictures.decoding.fit` but for rounding. GPUs have kernels of their own
for it, where those can be compiled.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from fermata.deployments.backend.execution.out_of_memory import is_out_of_memory
from fermata.deployments.models.pictures.cuts import Bounds
from fermata.deployments.models.pictures.picture import centre_part, reduction
from fermata.deployments.specs.served_model import ImageSpec

Tensor = Any
KERNELS = "fermata.deployments.backend.pictures.cutting_kernels"
log = logging.getLogger(__name__)
CUBIC = -0.5
"""The parameter of Pillow's bicubic filter."""


@dataclass(frozen=True, slots=True)
class Side:
    """How one side of a part becomes one of the input."""

    begin: float
    """First visible point, in pixels of the frame."""
    scale: float
    """Pixels of the frame for each of the input."""
    low: int
    high: int
    """The pixels that the part has; those around it do not count."""
    filled: int
    """Pixels of the input that show it; the rest is black."""


def sides_of(bounds: Bounds, spec: ImageSpec) -> tuple[Side, Side]:
    """Across and down, of a part of a frame."""
    left, top, right, bottom = bounds
    width, height = right - left, bottom - top
    if spec.fit == "centre":
        x, y, side = centre_part(height, width, spec.height)
        scale = side / spec.height
        return (
            Side(left + x, scale, left, right, spec.width),
            Side(top + y, scale, top, bottom, spec.height),
        )
    if spec.fit == "whole":
        ratio = reduction(height, width, spec.height)
        columns, rows = max(1, round(width * ratio)), max(1, round(height * ratio))
        return (
            Side(left, width / columns, left, right, columns),
            Side(top, height / rows, top, bottom, rows),
        )
    if spec.fit == "stretch":
        return (
            Side(left, width / spec.width, left, right, spec.width),
            Side(top, height / spec.height, top, bottom, spec.height),
        )
    assert spec.fit == "crop", f"parts of pictures are not fitted by {spec.fit!r}"
    short = max(spec.resize, spec.height, spec.width)
    scaled = [int(short * side / min(height, width)) for side in (width, height)]
    return (
        _middle(left, right, scaled[0], spec.width),
        _middle(top, bottom, scaled[1], spec.height),
    )


def _middle(low: int, high: int, scaled: int, wanted: int) -> Side:
    """The middle of a side that is scaled as a whole."""
    length = high - low
    scale = length / scaled
    begin = round((scaled - wanted) / 2) * scale
    end = min(begin + wanted * scale, length)
    return Side(low + begin, (end - begin) / wanted, low, high, wanted)


def cut_all(
    torch: Any, frames: Sequence[Tensor], bounds: Sequence[Bounds], spec: ImageSpec
) -> Tensor:
    """Bytes [count, 3, height, width]: a part of each of these frames [3, h, w]."""
    if frames[0].is_cuda and (kernels := _kernels()) is not None:
        return kernels(torch, frames, bounds, spec)
    return cut_by_products(torch, frames, bounds, spec)


@cache
def _kernels() -> "Kernels | None":
    """The GPU's own kernels; None where nothing can compile them."""
    try:
        return Kernels(import_module(KERNELS).cut)
    except ImportError as error:
        log.info("parts of pictures are cut by matrices: %s", error)
        return None


class Kernels:
    """Cuts by kernels of its own until one cannot be compiled, and by matrices from then on."""

    def __init__(self, cut: Any) -> None:
        self.cut = cut
        self.broken = False

    def __call__(
        self, torch: Any, frames: Sequence[Tensor], bounds: Sequence[Bounds], spec: ImageSpec
    ) -> Tensor:
        if not self.broken:
            rows = [_row(sides_of(each, spec)) for each in bounds]
            try:
                return self.cut(torch, frames, rows, (spec.height, spec.width), _is_cubic(spec))
            # Compilers fail in ways of their own.
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.broken = True
                log.warning("parts of pictures are cut by matrices, which is slower: %s", error)
        return cut_by_products(torch, frames, bounds, spec)


def _is_cubic(spec: ImageSpec) -> bool:
    return spec.fit == "centre" or (spec.bicubic and spec.fit != "whole")


def _row(sides: tuple[Side, Side]) -> list[float]:
    """Both sides of a part, as they are told to a device."""
    return [
        float(value)
        for side in sides
        for value in (side.begin, side.scale, side.low, side.high, side.filled)
    ]


def cut_by_products(
    torch: Any, frames: Sequence[Tensor], bounds: Sequence[Bounds], spec: ImageSpec
) -> Tensor:
    """The same on any device, with nothing to compile."""
    alike: dict[tuple[int, int], list[int]] = {}
    for place, frame in enumerate(frames):
        alike.setdefault((frame.shape[1], frame.shape[2]), []).append(place)
    made = [
        (places, _cut(torch, [frames[each] for each in places], [bounds[each] for each in places],
                      spec))
        for places in alike.values()
    ]  # fmt: skip
    if len(made) == 1:
        return made[0][1]
    rows = made[0][1].new_empty((len(frames), 3, spec.height, spec.width))
    for places, batch in made:
        rows[torch.tensor(places, device=rows.device)] = batch
    return rows


def _cut(torch: Any, frames: Sequence[Tensor], bounds: Sequence[Bounds], spec: ImageSpec) -> Tensor:
    """The same of frames of one size."""
    first = frames[0]
    _, height, width = first.shape
    # Half precision holds every value of a byte, and a GPU multiplies it far faster.
    kind = torch.float16 if first.is_cuda else torch.float32
    # Several parts are of one frame.
    places: dict[int, int] = {}
    own = [places.setdefault(id(each), len(places)) for each in frames]
    given = list({id(each): each for each in frames}.values())
    told = _to_device(torch, own, [sides_of(each, spec) for each in bounds], first)
    cubic = _is_cubic(spec)
    across = _weights(torch, told[:, 1:6], width, spec.width, cubic).to(kind)
    down = _weights(torch, told[:, 6:11], height, spec.height, cubic).to(kind)
    count = len(frames)
    whole = torch.stack(given).to(kind)[told[:, 0].long()]
    # Pillow goes along rows first, and keeps bytes in between.
    rows = torch.bmm(whole.reshape(count, 3 * height, width), across.transpose(1, 2))
    rows = rows.round_().clamp_(0, 255).reshape(count, 3, height, spec.width)
    rows = rows.permute(0, 2, 1, 3).reshape(count, height, 3 * spec.width)
    fitted = torch.bmm(down, rows).reshape(count, spec.height, 3, spec.width)
    return fitted.permute(0, 2, 1, 3).round().clamp_(0, 255).to(torch.uint8)


def _to_device(
    torch: Any, own: Sequence[int], sides: Sequence[tuple[Side, Side]], like: Tensor
) -> Tensor:
    """A row for each part: its frame's place, then both of its sides. One copy, not waited for."""
    rows = [[float(place), *_row(pair)] for place, pair in zip(own, sides, strict=True)]
    told = torch.tensor(rows, dtype=torch.float32)
    if not like.is_cuda:
        return told
    return told.pin_memory().to(like.device, non_blocking=True)


def _weights(torch: Any, sides: Tensor, length: int, wanted: int, cubic: bool) -> Tensor:
    """Weights [count, wanted, length] of a frame's pixels in those of the input."""
    begin, scale, low, high, filled = (each[:, None, None] for each in sides.unbind(1))
    at = torch.arange(wanted, device=sides.device, dtype=torch.float32)[None, :, None]
    pixel = torch.arange(length, device=sides.device, dtype=torch.float32)[None, None, :]
    middle = begin + (at + 0.5) * scale
    # Shrunk, all pixels count that become one; enlarged, its neighbours do.
    far = ((pixel + 0.5 - middle) / scale.clamp(min=1.0)).abs_()
    weights = _bicubic(torch, far) if cubic else (1.0 - far).clamp_(min=0.0)
    weights = weights * ((pixel >= low) & (pixel < high) & (at < filled))
    total = weights.sum(dim=2, keepdim=True)
    return weights / torch.where(total == 0.0, torch.ones_like(total), total)


def _bicubic(torch: Any, far: Tensor) -> Tensor:
    near = ((CUBIC + 2.0) * far - (CUBIC + 3.0)) * far * far + 1.0
    rest = (((far - 5.0) * far + 8.0) * far - 4.0) * CUBIC
    return torch.where(far < 1.0, near, torch.where(far < 2.0, rest, torch.zeros_like(far)))
