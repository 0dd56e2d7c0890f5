"""Large JPEGs are decoded at a part of their size where the model's input is smaller still."""

import numpy as np
import pytest
from PIL import Image

from fermata.clients.frames import encode_jpeg
from fermata.deployments.models.pictures import decoding
from fermata.deployments.models.pictures.decoding import (
    decode,
    decode_fitted,
    decode_part,
    fit,
)
from fermata.deployments.specs.served_model import Fit, ImageSpec

pytest.importorskip("simplejpeg")
PIXELS_MAX = 10**8


def photograph(height: int, width: int) -> decoding.Pixels:
    """Smooth, as those of cameras are."""
    coarse = np.random.default_rng(height + width).integers(0, 256, (9, 16, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize(
    ("height", "width", "spec", "decoded"),
    [
        (720, 1280, ImageSpec(224, 224), (360, 640)),
        (1080, 1920, ImageSpec(224, 224), (270, 480)),
        (2160, 3840, ImageSpec(224, 224), (270, 480)),
        (1081, 1921, ImageSpec(224, 224), (271, 481)),
        (360, 640, ImageSpec(224, 224), (360, 640)),
        (720, 1280, ImageSpec(416, 416), (720, 1280)),
        (100, 4000, ImageSpec(224, 224), (100, 4000)),
        (448, 448, ImageSpec(224, 224), (224, 224)),
        (447, 447, ImageSpec(224, 224), (447, 447)),
        (512, 1024, ImageSpec(224, 224, fit="crop"), (256, 512)),
        (511, 1024, ImageSpec(224, 224, fit="crop"), (511, 1024)),
        (511, 1024, ImageSpec(224, 224, fit="crop", resize=232), (256, 512)),
        (720, 1280, ImageSpec(28, 28, fit="centre"), (720, 1280)),
    ],
)
def test_the_part_that_suffices(
    height: int, width: int, spec: ImageSpec, decoded: tuple[int, int]
) -> None:
    data = encode_jpeg(photograph(height, width))
    assert decode_part(data, PIXELS_MAX, spec).pixels.shape == (*decoded, 3)
    assert decode(data, PIXELS_MAX).shape == (height, width, 3)


@pytest.mark.parametrize("how", ["stretch", "crop"])
@pytest.mark.parametrize(
    ("height", "width", "side"),
    [
        (720, 1280, 224),
        (1281, 721, 224),
        (1080, 1920, 224),
        (3001, 599, 224),
        # The last pixels decoded are an eighth of the picture's, and the rest is padding.
        (1793, 1793, 224),
        (1025, 1793, 128),
        (513, 521, 64),
    ],
)
def test_answers_are_those_of_the_whole_picture_but_for_rounding(
    height: int, width: int, side: int, how: Fit
) -> None:
    spec = ImageSpec(side, side, fit=how, resize=side)
    data = encode_jpeg(photograph(height, width))
    found = decode_fitted(data, PIXELS_MAX, spec).astype(int)
    whole = fit(decode(data, PIXELS_MAX), spec).astype(int)
    assert found.shape == whole.shape
    assert np.abs(found - whole).mean() < 0.8
    assert np.abs(found - whole).max() < 10
