"""JPEGs on a GPU: whatever frontends pass on is decoded there, and one that is refused is alone."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchvision")

from fermata.deployments.backend.pictures.decoding import DeviceDecoder
from fermata.deployments.models.pictures.decoding import decode
from fermata.deployments.models.pictures.jpeg_header import baseline_size
from fermata.deployments.specs.served_model import ImageSpec
from tests.unit.test_jpeg_header import PADDING, jpeg, picture, with_second_picture, with_thumbnail

torch: Any = import_module("torch")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

DEVICE = "cuda"
LEVELS = 4
"""Mean difference from the CPU's pixels, where no samples of colour are left out."""


def frames_of(encoded: list[bytes]) -> tuple[list[Any], list[int]]:
    """The frames that the device decodes, None for others, and the sizes of lists it was given."""
    decoder = DeviceDecoder(torch, ImageSpec(32, 32), DEVICE)
    sizes: list[int] = []
    usual = decoder.decode_jpeg

    def decode_jpeg(given: list[Any], **options: Any) -> Any:
        sizes.append(len(given))
        return usual(given, **options)

    decoder.decode_jpeg = decode_jpeg
    found = decoder._frames(encoded)
    return [found.get(place) for place in range(len(encoded))], sizes


def test_files_of_cameras_are_decoded_on_the_device() -> None:
    encoded = [
        jpeg(subsampling=0),
        jpeg(picture(mode="L")),
        with_thumbnail(subsampling=0),
        with_second_picture(subsampling=0),
        jpeg(subsampling=0) + PADDING,
        jpeg(subsampling=0) + b"more",
        jpeg(subsampling=0) + jpeg(progressive=True),
    ]
    assert {baseline_size(each) for each in encoded} == {(30, 50)}
    frames, sizes = frames_of(encoded)
    # None was refused, or there would be more lists.
    assert sizes == [len(encoded)]
    for data, frame in zip(encoded, frames, strict=True):
        wanted = decode(data, 10**6).astype(int)
        pixels = frame.permute(1, 2, 0).cpu().numpy().astype(int)
        assert pixels.shape == wanted.shape
        assert np.abs(pixels - wanted).mean() <= LEVELS


def test_a_picture_that_is_refused_costs_a_few_lists() -> None:
    encoded = [jpeg()] * 64
    encoded[41] = b"\xff\xd8\xff" + b"nothing" * 40
    frames, sizes = frames_of(encoded)
    assert [place for place, each in enumerate(frames) if each is None] == [41]
    assert len(sizes) == 1 + 2 * 6
