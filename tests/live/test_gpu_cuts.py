"""Crops on a GPU: as a frontend would cut them, out of frames that other streams have decoded."""

import io
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torchvision")

from fermata.deployments.backend.execution.tensors import KeptPicture
from fermata.deployments.backend.pictures.cutting import _kernels, cut_all, cut_by_products
from fermata.deployments.backend.pictures.decoding import DeviceDecoder
from fermata.deployments.backend.pictures.kept_frames import KeptFrames
from fermata.deployments.models.pictures.cuts import cut_out
from fermata.deployments.models.pictures.decoding import fit
from fermata.deployments.specs.served_model import ImageSpec

torch: Any = import_module("torch")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

HEIGHT, WIDTH = 360, 640
SPEC = ImageSpec(224, 224, fit="centre")
LEVELS = 2
"""Weights of 16 bits round otherwise than Pillow's."""


def frame(seed: int) -> Any:
    """A smooth picture with some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 16, 3), np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + rng.integers(-9, 10, smooth.shape)).clip(0, 255).astype(np.uint8)


def jpeg(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame(seed)).save(out, "JPEG")
    return out.getvalue()


def boxes(count: int, seed: int) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        left, top = int(rng.integers(0, WIDTH - 1)), int(rng.integers(0, HEIGHT - 1))
        right, bottom = int(rng.integers(left + 1, WIDTH)), int(rng.integers(top + 1, HEIGHT))
        found.append((left, top, right, bottom))
    return found


def apart(rows: Any, pictures: list[Any], bounds: list[Any], spec: ImageSpec) -> int:
    """The largest difference from what a frontend makes of these parts."""
    found = rows.permute(0, 2, 3, 1).cpu().numpy().astype(int)
    wanted = [fit(cut_out(each, box), spec) for each, box in zip(pictures, bounds, strict=True)]
    return int(np.abs(found - np.stack(wanted)).max())


def copy_of(kept: KeptFrames, key: int) -> Any:
    found = kept.get(key)
    assert found is not None
    return found[0].clone()


@pytest.mark.parametrize("how", ["stretch", "crop", "centre", "whole"])
def test_crops_are_those_of_a_frontend(how: Any) -> None:
    spec, bounds = replace(SPEC, fit=how), boxes(64, 1)
    pictures = [frame(place % 7) for place in range(64)]
    there = {seed: torch.from_numpy(frame(seed)).permute(2, 0, 1).cuda() for seed in range(7)}
    rows = cut_all(torch, [there[place % 7] for place in range(64)], bounds, spec)
    assert apart(rows, pictures, bounds, spec) <= LEVELS


@pytest.mark.parametrize("how", ["stretch", "crop", "centre", "whole"])
def test_kernels_cut_frames_of_several_sizes(how: Any) -> None:
    spec, bounds = replace(SPEC, fit=how), boxes(12, 2)
    pictures = [frame(place % 3)[: HEIGHT - 32 * (place % 3)] for place in range(12)]
    bounds = [
        (left, min(top, HEIGHT - 70), right, min(max(bottom, top + 1), HEIGHT - 65))
        for left, top, right, bottom in bounds
    ]
    bounds = [(left, min(top, bottom - 1), right, bottom) for left, top, right, bottom in bounds]
    there = [torch.from_numpy(each).permute(2, 0, 1).contiguous().cuda() for each in pictures]
    kernels = _kernels()
    assert kernels is not None
    rows = kernels(torch, there, bounds, spec)
    assert not kernels.broken
    assert apart(rows, pictures, bounds, spec) <= LEVELS
    by_products = cut_by_products(torch, there, bounds, spec)
    assert apart(by_products, pictures, bounds, spec) <= LEVELS


def test_frames_may_be_dropped_while_another_stream_reads_them() -> None:
    # Room for three frames: each batch drops those of the one before.
    kept = KeptFrames(3 * HEIGHT * WIDTH * 3)
    detector = DeviceDecoder(torch, replace(SPEC, fit="whole"), "cuda", kept)
    classifier = DeviceDecoder(torch, SPEC, "cuda", kept)
    detecting, classifying = torch.cuda.Stream(), torch.cuda.Stream()
    made: list[tuple[Any, list[Any], list[Any]]] = []
    with torch.inference_mode():
        for batch in range(20):
            keys = [3 * batch + each for each in range(3)]
            data = [jpeg(key) for key in keys]
            with torch.cuda.stream(detecting):
                detector([KeptPicture(*each) for each in zip(data, keys, strict=True)])
                # Copies: whoever held a frame would keep its memory from being used again.
                copies = [copy_of(kept, key) for key in keys]
            bounds = boxes(6, batch)
            parts = [KeptPicture(data[n % 3], keys[n % 3], box) for n, box in enumerate(bounds)]
            with torch.cuda.stream(classifying):
                rows, refused = classifier(parts)
            assert refused == {}
            made.append((rows, [copies[n % 3] for n in range(6)], bounds))
    torch.cuda.synchronize()
    for rows, pictures, bounds in made:
        pixels = [each.permute(1, 2, 0).cpu().numpy() for each in pictures]
        assert apart(rows, pixels, bounds, SPEC) <= LEVELS
