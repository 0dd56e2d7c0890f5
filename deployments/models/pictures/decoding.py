"""Pictures to tensors: checked for size, decoded and scaled."""

import io
import math
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.models.pictures.pages import fit_line, fit_page
from fermata.deployments.models.pictures.picture import centre_square, whole_frame
from fermata.deployments.models.pictures.resizing.resize import resize_into
from fermata.deployments.specs.served_model import Fit, ImageSpec

try:
    import simplejpeg
except ImportError:
    # Pillow decodes as well, at 1.4 times the cost.
    simplejpeg = None

Pixels = npt.NDArray[np.uint8]
JPEG_MAGIC = b"\xff\xd8\xff"
JPEG_SCAN = b"\xff\xda"
SCANS_MAX = 32
"""Scans of a JPEG: encoders write ten, and each one more is a pass over all pixels."""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
PARTS = (1, 2, 4, 8)
"""Divisors of a side that libjpeg decodes to fast; between them it is slower than at full size."""
SIDE_MAX = 65_535
"""Side of a picture, as in JPEG; scaling takes memory for each pixel of a side too."""
PIXEL_BYTES_MAX = 24
"""Most memory of a pixel while its picture is decoded and fitted; WebP takes most of it."""
# Pillow would warn of pictures that are refused here anyway, once for each size.
Image.MAX_IMAGE_PIXELS = None


class Decoded(NamedTuple):
    """A picture that may be decoded at a part of its size."""

    pixels: Pixels
    height: float
    """Rows that are the picture's: of the last one a part may be, and the rest is padding."""
    width: float


def decode_fitted(data: bytes, pixels_max: int, spec: ImageSpec) -> Pixels:
    """Decode a picture to the size of the model's input; BadRequestError as for `decode`."""
    if simplejpeg is None or not data.startswith(JPEG_MAGIC):
        return fit(decode(data, pixels_max), spec)
    return _fit_decoded(decode_part(data, pixels_max, spec), spec)


def decode(data: bytes, pixels_max: int) -> Pixels:
    """Decode a picture to rows x columns x 3; BadRequestError if it is broken or too large."""
    if data.startswith(JPEG_MAGIC):
        _check_scans(data)
        if simplejpeg is not None:
            _check_jpeg(data, pixels_max)
            return _decode_jpeg(data)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_pixels(image.height, image.width, pixels_max)
            return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except UnidentifiedImageError:
        raise _no_picture(data) from None
    except (OSError, SyntaxError, ValueError) as error:
        raise BadRequestError(f"cannot decode the picture: {error}") from None


def _no_picture(data: bytes) -> BadRequestError:
    return BadRequestError(
        f"{len(data)} bytes that begin with {data[:4].hex()} are no picture: "
        f"send one of {', '.join(FORMATS)}"
    )


def _check_scans(data: bytes) -> None:
    """Refuse a small file that would keep a decoder for seconds, pass after pass."""
    scans = data.count(JPEG_SCAN)
    if scans > SCANS_MAX:
        raise BadRequestError(
            f"the JPEG has {scans} scans, at most {SCANS_MAX} are decoded: save it anew"
        )


def decode_part(data: bytes, pixels_max: int, spec: ImageSpec) -> Decoded:
    """A JPEG at the smallest part of its size that is still to be scaled down, if at all."""
    _check_scans(data)
    height, width = _check_jpeg(data, pixels_max)
    part = _part_that_suffices(height, width, spec)
    # Blocks of a JPEG come out at an eighth of their size or more, with less arithmetic, and there
    # are fewer pixels to scale then. libjpeg rounds up.
    pixels = _decode_jpeg(data, -(-height // part), -(-width // part))
    return Decoded(pixels, height / part, width / part)


def _check_jpeg(data: bytes, pixels_max: int) -> tuple[int, int]:
    """(height, width) of a JPEG that is not too large."""
    height, width = _jpeg_size(data)
    check_pixels(height, width, pixels_max)
    return height, width


def _decode_jpeg(data: bytes, height_min: int = 0, width_min: int = 0) -> Pixels:
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=height_min, min_width=width_min
        )
    except ValueError as error:
        raise BadRequestError(
            f"cannot decode the JPEG of {len(data)} bytes: {error}; send it whole"
        ) from None
    return pixels


def _part_that_suffices(height: int, width: int, spec: ImageSpec) -> int:
    """The largest divisor of both sides that leaves a picture to be scaled down, if at all."""
    if spec.fit == "stretch":
        spare = min(height / spec.height, width / spec.width)
    elif spec.fit == "crop":
        spare = min(height, width) / max(spec.resize, spec.height, spec.width)
    else:
        spare = 1.0
    return max(part for part in PARTS if part <= max(1.0, spare))


def _jpeg_size(data: bytes) -> tuple[int, int]:
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError) as error:
        # A KeyError stands for an unknown subsampling.
        raise BadRequestError(
            f"cannot decode the JPEG of {len(data)} bytes: {error}; send it whole"
        ) from None
    return height, width


def check_pixels(height: int, width: int, pixels_max: int) -> None:
    """Refuse a picture that takes too much memory to decode."""
    if height * width > pixels_max or max(height, width) > SIDE_MAX:
        raise BadRequestError(
            f"the picture has {width}x{height} pixels, at most {pixels_max}, and {SIDE_MAX} a "
            "side, are decoded: send a smaller one"
        )


def frame_size(data: bytes) -> tuple[int, int]:
    """(height, width) from the header of a picture."""
    try:
        if simplejpeg is not None and data.startswith(JPEG_MAGIC):
            return _jpeg_size(data)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.height, image.width
    except UnidentifiedImageError:
        raise _no_picture(data) from None
    except (OSError, SyntaxError, ValueError) as error:
        raise BadRequestError(f"cannot decode the picture: {error}") from None


def decode_square(data: bytes, pixels_max: int, side: int, how: str) -> Pixels:
    """A picture as the UINT8 input [3, side, side] of a model with this fit."""
    spec = ImageSpec(side, side, fit=cast(Fit, how))
    return np.ascontiguousarray(decode_fitted(data, pixels_max, spec).transpose(2, 0, 1))


def fit(pixels: Pixels, spec: ImageSpec) -> Pixels:
    """The picture at the size of the model's input, rows x columns x 3."""
    return _fit_decoded(Decoded(pixels, *pixels.shape[:2]), spec)


def _fit_decoded(decoded: Decoded, spec: ImageSpec) -> Pixels:
    pixels, height, width = decoded
    if spec.fit == "centre":
        return centre_square(pixels, spec.height).transpose(1, 2, 0)
    if spec.fit == "whole":
        return whole_frame(pixels, spec.height).transpose(1, 2, 0)
    if spec.fit == "page":
        return fit_page(pixels, spec.height)
    if spec.fit == "line":
        return fit_line(pixels, spec.height, spec.width)
    if spec.fit == "stretch":
        if (width, height) == (spec.width, spec.height):
            return pixels
        out = _empty(spec)
        resize_into(pixels, out, (0, 0, width, height), spec.bicubic)
        return out
    # As torchvision does: the longer side rounded down, the corner rounded to even. But only the
    # visible part is scaled: the whole of 4000x1 pixels would be a million wide.
    short = max(spec.resize, spec.height, spec.width)
    scaled = [int(short * side / min(height, width)) for side in (height, width)]
    rows, top, bottom = _middle(height, scaled[0], spec.height)
    columns, left, right = _middle(width, scaled[1], spec.width)
    out = _empty(spec)
    resize_into(pixels[rows, columns], out, (left, top, right, bottom), spec.bicubic)
    return out


def _empty(spec: ImageSpec) -> Pixels:
    """Rows x columns x 3 that lie as the model's input does."""
    if spec.channels_last:
        return np.empty((spec.height, spec.width, 3), np.uint8)
    return np.empty((3, spec.height, spec.width), np.uint8).transpose(1, 2, 0)


def _middle(length: float, scaled: int, wanted: int) -> tuple[slice, float, float]:
    """The pixels that fill the `wanted` ones in the middle when `length` is scaled to `scaled`.

    Returns a slice of them, and the begin and end of the visible part inside it.
    """
    scale = length / scaled
    corner = round((scaled - wanted) / 2)
    begin, end = corner * scale, (corner + wanted) * scale
    # Bicubic scaling reads two scaled pixels to either side.
    margin = 2 * max(scale, 1.0) + 1
    first = max(0, math.floor(begin - margin))
    last = math.ceil(min(length, end + margin))
    return slice(first, last), begin - first, min(end, length) - first


def write(pixels: Pixels, spec: ImageSpec, out: npt.NDArray[Any]) -> None:
    """Write the fitted picture into the input tensor; all but UINT8 is normalised."""
    source = pixels if spec.channels_last else pixels.transpose(2, 0, 1)
    if out.dtype == np.uint8:
        out[...] = source
        return
    mean, std = np.array(spec.mean, np.float32), np.array(spec.std, np.float32)
    scale, shift = 1 / (255 * std), mean / std
    if not spec.channels_last:
        scale, shift = scale[:, None, None], shift[:, None, None]
    if out.dtype == np.float32:
        np.multiply(source, scale, out=out)
        out -= shift
    else:
        out[...] = source * scale - shift
