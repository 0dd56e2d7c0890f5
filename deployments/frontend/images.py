"""Pictures to tensors: a limit on their size before any pixel is decoded, then decode and scale."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from clients.wire.errors import BadRequestError
from deployments.frontend.models import ImageSpec
from deployments.models.picture import centre_square, whole_frame

try:
    import simplejpeg
except ImportError:
    # Pillow decodes as well, at 1.4 times the cost.
    simplejpeg = None

Pixels = npt.NDArray[np.uint8]
JPEG_MAGIC = b"\xff\xd8\xff"
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
# Pillow would warn of pictures that are refused here anyway, once for each size that they claim.
Image.MAX_IMAGE_PIXELS = None


def decode(data: bytes, pixels_max: int) -> Pixels:
    """Rows x columns x 3 of a picture; BadRequestError where it is none, cut off or too large."""
    if simplejpeg is not None and data.startswith(JPEG_MAGIC):
        return _decode_jpeg(data, pixels_max)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_pixels(image.height, image.width, pixels_max)
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise BadRequestError(
            f"{len(data)} bytes that begin with {data[:4].hex()} are no picture: "
            f"send one of {', '.join(FORMATS)}"
        ) from None
    except (OSError, SyntaxError, ValueError) as error:
        raise BadRequestError(f"the picture cannot be decoded: {error}") from None


def _decode_jpeg(data: bytes, pixels_max: int) -> Pixels:
    height, width = _jpeg_size(data)
    check_pixels(height, width, pixels_max)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB")
    except ValueError as error:
        raise BadRequestError(
            f"the JPEG of {len(data)} bytes cannot be decoded: {error}; send it whole"
        ) from None
    return pixels


def _jpeg_size(data: bytes) -> tuple[int, int]:
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError) as error:
        # A KeyError names a subsampling that it does not know.
        raise BadRequestError(
            f"the JPEG of {len(data)} bytes cannot be decoded: {error}; send it whole"
        ) from None
    return height, width


def check_pixels(height: int, width: int, pixels_max: int) -> None:
    """Refuse what nobody has the memory to decode."""
    if height * width > pixels_max:
        raise BadRequestError(
            f"the picture has {width}x{height} pixels, at most {pixels_max} are decoded: "
            "send a smaller one"
        )


def frame_size(data: bytes) -> tuple[int, int]:
    """(height, width) that the header of a picture claims."""
    try:
        if simplejpeg is not None and data.startswith(JPEG_MAGIC):
            return _jpeg_size(data)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.height, image.width
    except (OSError, SyntaxError, ValueError) as error:
        raise BadRequestError(f"the picture cannot be decoded: {error}") from None


def fit(pixels: Pixels, spec: ImageSpec) -> Pixels:
    """The picture at the size the model takes, rows x columns x 3."""
    if spec.fit == "centre":
        return centre_square(pixels, spec.height).transpose(1, 2, 0)
    if spec.fit == "whole":
        return whole_frame(pixels, spec.height).transpose(1, 2, 0)
    height, width = pixels.shape[:2]
    image = Image.fromarray(pixels)
    how = Image.Resampling.BICUBIC if spec.bicubic else Image.Resampling.BILINEAR
    if spec.fit == "stretch":
        if (height, width) == (spec.height, spec.width):
            return pixels
        return np.asarray(image.resize((spec.width, spec.height), how))
    # As torchvision does: the longer side rounded down, the corner rounded to even.
    if height < width:
        size = (int(spec.resize * width / height), spec.resize)
    else:
        size = (spec.resize, int(spec.resize * height / width))
    image = image.resize(size, how)
    left = round((size[0] - spec.width) / 2)
    top = round((size[1] - spec.height) / 2)
    return np.asarray(image.crop((left, top, left + spec.width, top + spec.height)))


def write(pixels: Pixels, spec: ImageSpec, out: npt.NDArray[Any]) -> None:
    """Write the fitted picture into the input tensor, normalised unless that is of bytes."""
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
