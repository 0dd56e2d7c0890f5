"""Which JPEGs are passed on as they are, by their header alone."""

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fermata.deployments.models.pictures.jpeg_header import baseline_size


def picture(width: int = 50, height: int = 30, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width)
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def jpeg(image: Image.Image | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    (image or picture()).save(out, "JPEG", **options)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        jpeg(),
        jpeg(subsampling=0),
        jpeg(subsampling=1),
        jpeg(quality=95, optimize=True),
        jpeg(picture(mode="L")),
        jpeg(comment=b"\xff\xc2 is no marker here"),
        jpeg(restart_marker_blocks=2),
        jpeg()[:2] + b"\xff\xff\xff" + jpeg()[3:],
    ],
    ids=range(8),
)
def test_baseline_pictures_have_a_size(data: bytes) -> None:
    assert baseline_size(data) == (30, 50)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8\xff\xd9",
        jpeg(progressive=True),
        jpeg(picture(mode="CMYK")),
        jpeg(keep_rgb=True),
        jpeg()[:-1],
        jpeg()[: len(jpeg()) // 2],
        jpeg() + b"more",
        jpeg()[:-2] + b"\xff\xda" + b"\xff\xd9",
        b"\x89PNG" + jpeg(),
    ],
    ids=range(11),
)
def test_all_others_have_none(data: bytes) -> None:
    assert baseline_size(data) is None


def test_no_header_raises() -> None:
    rng = random.Random(1)
    whole = bytearray(jpeg())
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(min(700, len(data)))] = rng.randrange(256)
        found = baseline_size(bytes(data[: rng.randrange(len(data))] + b"\xff\xd9"))
        assert found is None or min(found) > 0
