"""Parts of pictures that backends cut out: the pixels of a frontend's, each frame decoded once."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torchvision")

import torch

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import join_bytes
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.execution.tensors import InputError, KeptPicture, view
from fermata.deployments.backend.pictures.cutting import cut_all
from fermata.deployments.backend.pictures.decoding import DeviceDecoder
from fermata.deployments.backend.pictures.kept_frames import KeptFrames
from fermata.deployments.backend.pictures.picture_runner import PictureRunner
from fermata.deployments.models.pictures.cuts import all_bounds, cut_out
from fermata.deployments.models.pictures.decoding import decode, fit, frame_size
from fermata.deployments.specs.served_model import ImageSpec
from fermata.router.links.messages import CUT, Payload

SIDE = 32
SPEC = ImageSpec(SIDE, SIDE)
BOXES = [
    (0, 0, 80, 60),
    (10, 5, 42, 37),
    (3, 2, 9, 50),
    (0, 58, 80, 60),
    (79, 59, 80, 60),
    (20, 20, 27, 26),
]
"""The whole frame, one of the input's size, a slender one, an edge, one pixel and a small one."""


def frame(height: int = 60, width: int = 80) -> Any:
    """A smooth picture with some noise."""
    rng = np.random.default_rng(height * width)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + rng.integers(-9, 10, smooth.shape)).clip(0, 255).astype(np.uint8)


def jpeg(height: int = 60, width: int = 80) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame(height, width)).save(out, "JPEG")
    return out.getvalue()


def on_device(pixels: Any) -> Any:
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def apart(found: Any, wanted: Any) -> int:
    """The largest difference of a row [3, h, w] from pixels [h, w, 3]."""
    return int(np.abs(found.permute(1, 2, 0).numpy().astype(int) - wanted).max())


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("how", ["stretch", "crop", "centre", "whole"])
def test_parts_are_fitted_on_a_device_as_by_a_frontend(how: Any, bicubic: bool) -> None:
    spec = replace(SPEC, fit=how, bicubic=bicubic, resize=40)
    one, other = frame(), frame(90, 70)
    frames = [on_device(one)] * len(BOXES) + [on_device(other)] * 2
    boxes = [*BOXES, (0, 0, 70, 90), (30, 11, 69, 88)]
    rows = cut_all(torch, frames, boxes, spec)
    assert (rows.shape, rows.dtype) == ((len(boxes), 3, SIDE, SIDE), torch.uint8)
    for place, box in enumerate(boxes):
        picture = one if place < len(BOXES) else other
        assert apart(rows[place], fit(cut_out(picture, box), spec)) <= 1, box


@pytest.mark.parametrize(
    ("box", "wanted"),
    [
        ((1.5, 2.0, 3.5, 4.0), (1, 2, 4, 4)),
        ((-5.0, -1.0, 99.0, 7.2), (0, 0, 80, 8)),
        ((80.0, 0.0, 90.0, 10.0), None),
        ((4.0, 4.0, 4.0, 9.0), None),
        ((float("nan"), 0.0, 4.0, 4.0), None),
    ],
)
def test_a_box_takes_every_pixel_that_it_touches(box: Any, wanted: Any) -> None:
    assert all_bounds(np.array([box]), (60, 80)) == [wanted]


def test_boxes_beside_one_that_is_none_keep_their_pixels() -> None:
    far = (-1e300, -1e300, 1e300, 1e300)
    none = (float("inf"), 0.0, 4.0, 4.0)
    boxes = np.array([far, none, (1e300, 0.0, 1e301, 9.0), (1.5, 2.0, 3.5, 4.0)])
    assert all_bounds(boxes, (60, 80)) == [(0, 0, 80, 60), None, None, (1, 2, 4, 4)]


# Frames that are kept


def test_frames_used_longest_ago_go_first() -> None:
    kept = KeptFrames(bytes_max=3 * 60 * 80 * 3)
    for key in (1, 2, 3):
        kept.put(key, frame())
    assert kept.get(1) is not None
    kept.put(4, frame())
    assert [kept.get(key) is not None for key in (1, 2, 3, 4)] == [True, False, True, True]
    assert kept.bytes == kept.bytes_max
    kept.put(4, frame())
    assert (len(kept), kept.bytes) == (3, kept.bytes_max)
    kept.clear()
    assert (len(kept), kept.bytes) == (0, 0)


def test_a_frame_above_the_limit_is_not_kept() -> None:
    kept = KeptFrames(bytes_max=100)
    kept.put(1, frame())
    assert (len(kept), kept.bytes) == (0, 0)


class CountingDecoder(DeviceDecoder):
    """Counts the pictures that it decodes."""

    def __init__(self, kept: KeptFrames, spec: ImageSpec = SPEC) -> None:
        super().__init__(torch, spec, "cpu", kept)
        self.decoded = 0

    def _decode(self, encoded: Any) -> Any:
        self.decoded += len(encoded)
        return super()._decode(encoded)


def test_each_frame_is_decoded_once_for_all_models() -> None:
    kept, data = KeptFrames(), jpeg()
    detector, classifier = CountingDecoder(kept), CountingDecoder(kept, replace(SPEC, fit="centre"))
    rows, refused = detector([KeptPicture(data, 7), jpeg(40, 50)])
    assert (len(rows), refused, detector.decoded) == (2, {}, 2)
    # The one that nobody cuts is not kept.
    assert len(kept) == 1
    parts = [KeptPicture(data, 7, box) for box in BOXES]
    rows, refused = classifier(parts)
    assert (refused, classifier.decoded) == ({}, 0)
    whole = decode(data, 10**9)
    for place, box in enumerate(BOXES):
        wanted = fit(cut_out(whole, box), classifier.spec)
        assert apart(rows[place], wanted) <= 2


def test_another_backend_decodes_the_frame_that_comes_with_its_parts() -> None:
    decoder, data = CountingDecoder(KeptFrames()), jpeg()
    parts: list[Any] = [KeptPicture(data, 7, box) for box in BOXES[:3]]
    rows, _ = decoder(parts)
    assert decoder.decoded == 1
    # Whole pictures and parts share a batch.
    mixed, refused = decoder([jpeg(40, 50), *parts])
    assert (decoder.decoded, refused) == (2, {})
    assert torch.equal(mixed[1:], rows)


def test_parts_of_a_broken_frame_are_refused_alone() -> None:
    decoder, broken = CountingDecoder(KeptFrames()), b"\xff\xd8\xff" + b"nothing" * 40
    parts = [KeptPicture(broken, 7, BOXES[1]), KeptPicture(jpeg(), 8, BOXES[1])]
    rows, refused = decoder(parts)
    assert list(refused) == [0]
    assert "cannot decode" in refused[0]
    assert not rows[0].any()
    assert rows[1].any()


def test_a_lack_of_memory_releases_all_frames() -> None:
    class Full(CountingDecoder):
        def _decode(self, encoded: Any) -> Any:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    kept = KeptFrames()
    kept.put(1, on_device(frame()))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        Full(kept)([jpeg()])
    assert len(kept) == 0


@pytest.mark.parametrize("how", ["centre", "stretch"])
def test_a_backend_without_a_gpu_cuts_the_very_pixels_of_a_frontend(how: Any) -> None:
    spec = replace(SPEC, fit=how)
    plain = PlainRunner(lambda rows: rows, 8, (3, SIDE, SIDE))
    runner, data = PictureRunner(plain, spec, (3, SIDE, SIDE), "uint8"), jpeg()
    items = []
    for box in BOXES:
        item = np.empty((1,), object)
        item[0] = KeptPicture(data, 7, box)
        runner.check(item)
        items.append(item)
    rows = runner.run(runner.stage(items))
    assert len(runner.kept) == 1
    whole = decode(data, 10**9)
    for row, box in zip(rows, BOXES, strict=True):
        assert np.array_equal(row.transpose(1, 2, 0), fit(cut_out(whole, box), spec))


# On the link


def test_a_payload_tells_which_part_of_which_frame_it_is() -> None:
    data = join_bytes([b"abc"])
    whole = view(Payload(3, "BYTES", (1,), bytes(data), frame=3), Segments()).item()
    assert whole == KeptPicture(b"abc", 3)
    part = Payload(4, CUT, (1,), bytes(data), frame=3, cut=(1, 2, 3, 4))
    assert view(part, Segments()).item() == KeptPicture(b"abc", 3, (1, 2, 3, 4))


def test_a_backend_of_before_refuses_parts() -> None:
    """It knows neither field, and would take the whole frame for the part."""
    with pytest.raises(InputError, match="'CUT' is unknown"):
        view(Payload(4, CUT, (1,), bytes(join_bytes([b"abc"]))), Segments())


@pytest.mark.parametrize("cut", [(1, 2), (1, 2, 3, 4, 5)])
def test_a_part_has_four_edges(cut: tuple[int, ...]) -> None:
    payload = Payload(4, CUT, (1,), bytes(join_bytes([b"abc"])), frame=3, cut=cut)
    with pytest.raises(InputError, match="not at four edges"):
        view(payload, Segments())


@pytest.mark.parametrize(
    ("data", "shape"), [(b"\x09\0\0\0abc", (1,)), (b"", (1,)), (b"\0" * 8, (2,))]
)
def test_a_kept_picture_is_one(data: bytes, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="are not one"):
        view(Payload(4, "BYTES", shape, data, frame=4), Segments())


@pytest.mark.parametrize("read", [frame_size, lambda data: decode(data, 10**6)])
def test_what_is_no_picture_is_told_by_its_first_bytes(read: Any) -> None:
    with pytest.raises(BadRequestError, match="8 bytes that begin with 2f396a2f are no picture"):
        read(b"/9j/4AAQ")
