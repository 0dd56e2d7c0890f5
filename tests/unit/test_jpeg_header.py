"""Which JPEGs are passed on as they are, by their header alone."""

import io
import random
import struct
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from fermata.deployments.models.pictures.decoding import decode
from fermata.deployments.models.pictures.jpeg_header import baseline_size

SCAN, END = b"\xff\xda", b"\xff\xd9"


def picture(width: int = 50, height: int = 30, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width)
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def jpeg(image: Image.Image | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    (image or picture()).save(out, "JPEG", **options)
    return out.getvalue()


def with_thumbnail(image: Image.Image | None = None, **options: Any) -> bytes:
    """A JPEG as cameras write it: another whole JPEG, of 16x12, lies in its EXIF segment."""
    small = jpeg(picture(16, 12))
    entries = {0x0201: 4, 0x0202: 4}
    # Two directories: an empty one, and that of the thumbnail, whose bytes follow it.
    directory = b"II*\0" + struct.pack("<I", 8) + struct.pack("<HI", 0, 14)
    begins = 14 + 2 + 12 * len(entries) + 4
    values = dict(zip(entries, (begins, len(small)), strict=True))
    directory += struct.pack("<H", len(entries))
    for tag, kind in entries.items():
        directory += struct.pack("<HHII", tag, kind, 1, values[tag])
    return jpeg(image, exif=b"Exif\0\0" + directory + struct.pack("<I", 0) + small, **options)


def with_second_picture(**options: Any) -> bytes:
    """A multi-picture file: a second whole JPEG comes behind the end of the first."""
    out = io.BytesIO()
    picture().save(out, "MPO", save_all=True, append_images=[picture(20, 10)], **options)
    return out.getvalue()


PADDING = bytes(4096)


def test_files_of_cameras_are_made_as_cameras_write_them() -> None:
    thumbnail = with_thumbnail()
    assert thumbnail.count(SCAN) == thumbnail.count(END) == 2
    with Image.open(io.BytesIO(thumbnail)) as image:
        offset = image.getexif().get_ifd(ExifTags.IFD.IFD1)[0x0201]
        assert image.info["exif"][6 + offset :].startswith(b"\xff\xd8")
    pair = with_second_picture()
    with Image.open(io.BytesIO(pair)) as image:
        assert (image.format, image.n_frames) == ("MPO", 2)  # type: ignore[attr-defined]
    first = pair.index(END, pair.index(SCAN)) + len(END)
    assert pair[first:].lstrip(b"\0").startswith(b"\xff\xd8")


@pytest.mark.parametrize(
    "data",
    [
        with_thumbnail(),
        with_thumbnail(picture(mode="L")),
        with_thumbnail(restart_marker_blocks=2),
        jpeg() + PADDING,
        jpeg() + b"more",
        jpeg() + b"\xff" * 7,
        with_thumbnail() + PADDING,
        with_second_picture(),
        # Some encoders fill up before a marker.
        jpeg()[:-2] + b"\xff\xff" + END,
        jpeg() + jpeg(progressive=True),
    ],
    ids=range(10),
)
def test_pictures_in_or_behind_a_picture_do_not_count(data: bytes) -> None:
    assert baseline_size(data) == (30, 50)
    # The CPU decodes the same picture of them.
    assert decode(data, 10**6).shape == (30, 50, 3)


@pytest.mark.parametrize(
    "data",
    [
        jpeg()[:-2] + PADDING,
        with_thumbnail()[:-2],
        with_thumbnail()[:-2] + PADDING,
        with_thumbnail()[: len(with_thumbnail()) // 2] + PADDING,
        # The end is that of another picture.
        jpeg()[:-2] + jpeg(),
        jpeg()[: len(jpeg()) // 2] + jpeg(),
        with_thumbnail(progressive=True),
        with_thumbnail(picture(mode="CMYK")),
        with_thumbnail(keep_rgb=True),
        jpeg(progressive=True) + PADDING,
        # Tables between scans, and the number of lines behind one.
        jpeg()[:-2] + b"\xff\xc4\0\4\xff\xd9" + END,
        jpeg()[:-2] + b"\xff\xdc\0\4\0\x1e" + END,
        # A segment that is longer than the file.
        jpeg()[:2] + b"\xff\xe1\xff\xff" + jpeg()[2:],
        # The whole scan is in a segment that is skipped.
        jpeg()[:2] + b"\xff\xe1" + (len(jpeg())).to_bytes(2, "big") + jpeg()[2:],
    ],
    ids=range(14),
)
def test_broken_and_odd_pictures_of_cameras_have_none(data: bytes) -> None:
    assert baseline_size(data) is None


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
        jpeg()[:-2] + b"\xff\xda" + b"\xff\xd9",
        b"\x89PNG" + jpeg(),
    ],
    ids=range(10),
)
def test_all_others_have_none(data: bytes) -> None:
    assert baseline_size(data) is None


def frame_of(height: int, width: int) -> bytes:
    """The frame segment of a colour picture of any size."""
    return b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + bytes([3, *THIRDS])


THIRDS = (1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1)


@pytest.mark.parametrize("marker", [0x00, 0x01, 0xD0, 0xD8, 0xF0, 0xC8])
def test_no_larger_picture_is_hidden_from_the_check(marker: int) -> None:
    # Decoders take no length from these markers, so they would find the first picture. With one,
    # which is that frame's marker, the second comes next.
    hidden = frame_of(60_000, 60_000) + jpeg()[2:]
    length = int.from_bytes(hidden[:2], "big")
    data = jpeg()[:2] + bytes([0xFF, marker]) + hidden.ljust(length, b"\0") + jpeg()[2:]
    assert data[4 + length :] == jpeg()[2:]
    assert baseline_size(data) is None


@pytest.mark.parametrize("length", [0, 1])
def test_a_segment_is_as_long_as_its_length_at_least(length: int) -> None:
    segment = b"\xff\xe1" + length.to_bytes(2, "big")
    assert baseline_size(jpeg()[:2] + segment + jpeg()[2:]) is None


def test_a_picture_has_one_frame() -> None:
    assert baseline_size(jpeg()[:2] + frame_of(60_000, 60_000) + jpeg()[2:]) is None
    assert baseline_size(jpeg()[:2] + frame_of(30, 50) + jpeg()[2:]) is None


def test_no_header_raises() -> None:
    rng = random.Random(1)
    whole = bytearray(jpeg())
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(min(700, len(data)))] = rng.randrange(256)
        found = baseline_size(bytes(data[: rng.randrange(len(data))] + b"\xff\xd9"))
        assert found is None or min(found) > 0
