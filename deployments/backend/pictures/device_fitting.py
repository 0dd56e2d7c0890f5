"""Pictures on a device to a model's input: cut, scaled and normalised there.

The results are those of `fermata.deployments.models.pictures.decoding` but for rounding.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fermata.deployments.models.pictures.picture import CROP_MARGIN, reduction
from fermata.deployments.specs.served_model import ImageSpec

Tensor = Any
SHARE_MAX = 8
"""Sides of pictures that are scaled here differ at most so many times. Longer ones would be scaled
far beyond what is visible of them."""


def fits_on_device(height: int, width: int, spec: ImageSpec) -> bool:
    """Whether a picture of that size gets here what a frontend would make of it."""
    short = min(height, width)
    if max(height, width) > SHARE_MAX * short or spec.fit in ("page", "line"):
        return False
    # Enlarged by Pillow, the middle of a picture takes in what is around it.
    if spec.fit == "centre":
        return short >= spec.height + CROP_MARGIN
    return not spec.bicubic or short >= max(spec.height, spec.width)


def fit_all(torch: Any, pictures: Sequence[Tensor], spec: ImageSpec) -> Tensor:
    """Bytes [count, 3, height, width] from pictures [3, h, w] of any sizes."""
    alike: dict[tuple[int, int], list[int]] = {}
    for place, picture in enumerate(pictures):
        alike.setdefault((picture.shape[1], picture.shape[2]), []).append(place)
    rows = [
        (places, _fit(torch, torch.stack([pictures[place] for place in places]), spec))
        for places in alike.values()
    ]
    if len(rows) == 1:
        return rows[0][1]
    fitted = rows[0][1].new_empty((len(pictures), 3, spec.height, spec.width))
    for places, batch in rows:
        fitted[torch.tensor(places, device=fitted.device)] = batch
    return fitted


def _fit(torch: Any, batch: Tensor, spec: ImageSpec) -> Tensor:
    height, width = batch.shape[2:]
    if spec.fit == "centre":
        side = max(1, min(height, width) * spec.height // (spec.height + CROP_MARGIN))
        top, left = (height - side) // 2, (width - side) // 2
        middle = batch[:, :, top : top + side, left : left + side]
        return _scale(torch, middle, (spec.height, spec.width), bicubic=True)
    if spec.fit == "whole":
        ratio = reduction(height, width, spec.height)
        size = (max(1, round(height * ratio)), max(1, round(width * ratio)))
        square = batch.new_zeros((len(batch), 3, spec.height, spec.width))
        square[:, :, : size[0], : size[1]] = _scale(torch, batch, size, bicubic=False)
        return square
    if spec.fit == "stretch":
        return _scale(torch, batch, (spec.height, spec.width), spec.bicubic)
    short = max(spec.resize, spec.height, spec.width)
    scaled = [int(short * side / min(height, width)) for side in (height, width)]
    top, left = round((scaled[0] - spec.height) / 2), round((scaled[1] - spec.width) / 2)
    whole = _scale(torch, batch, (scaled[0], scaled[1]), spec.bicubic)
    return whole[:, :, top : top + spec.height, left : left + spec.width]


def _scale(torch: Any, batch: Tensor, size: tuple[int, int], bicubic: bool) -> Tensor:
    """Scaled as Pillow does it, which looks at all pixels that become one."""
    if tuple(batch.shape[2:]) == size:
        return batch
    scaled = torch.nn.functional.interpolate(
        batch.float(),
        size,
        mode="bicubic" if bicubic else "bilinear",
        antialias=True,
        align_corners=False,
    )
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def normalise(torch: Any, fitted: Tensor, spec: ImageSpec, dtype: str) -> Tensor:
    """In the type of the model's input; all but bytes are normalised."""
    made = fitted
    if dtype != "uint8":
        factor, less = _scales(torch, tuple(spec.mean), tuple(spec.std), fitted.device)
        made = (fitted * factor - less).to(getattr(torch, dtype))
    return made.permute(0, 2, 3, 1) if spec.channels_last else made


@lru_cache(64)
def _scales(torch: Any, mean: tuple[float, ...], std: tuple[float, ...], device: Any) -> Any:
    """Factor and offset of each channel. Kept, since whoever copies them to a device waits until it
    has done all that was asked of it before."""
    means, stds = (torch.tensor(given, device=device).reshape(3, 1, 1) for given in (mean, std))
    return 1 / (255 * stds), means / stds
