"""Pictures that a backend decodes: as a frontend does it, beside tensors, broken ones alone."""

import io
import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torchvision")

import torch

from fermata.deployments.backend.batch_pipeline import PipelineJob
from fermata.deployments.backend.execution.cuda.captured import Staged
from fermata.deployments.backend.execution.executor import (
    BatchOutcome,
    Executor,
    request_outputs,
)
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.execution.tensors import Array, InputError, Item, RowItems
from fermata.deployments.backend.pictures.decoding import DeviceDecoder
from fermata.deployments.backend.pictures.device_fitting import fit_all, fits_on_device, normalise
from fermata.deployments.backend.pictures.picture_runner import PictureRunner
from fermata.deployments.models.pictures.decoding import decode, fit, write
from fermata.deployments.specs.served_model import ImageSpec
from fermata.router.links.messages import Payload, Run

SIDE = 32
SPEC = ImageSpec(SIDE, SIDE)
PIXELS_MAX = 10**9


def frame(height: int, width: int) -> Any:
    """A smooth picture with some noise."""
    rng = np.random.default_rng(height * width)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + rng.integers(-9, 10, smooth.shape)).clip(0, 255).astype(np.uint8)


def jpeg(height: int = 60, width: int = 80, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame(height, width)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def item(data: bytes) -> Array:
    array = np.empty((1,), dtype=object)
    array[0] = data
    return array


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("how", ["stretch", "crop", "centre", "whole"])
def test_pictures_are_fitted_on_a_device_as_by_a_frontend(how: Any, bicubic: bool) -> None:
    spec = replace(SPEC, fit=how, bicubic=bicubic, resize=40)
    sizes = [(64, 80), (36, 64), (33, 32), (64, 80), (31, 200), (9, 12), (32, 32), (100, 65)]
    frames = [frame(*size) for size in sizes if fits_on_device(*size, spec)]
    assert len(frames) >= 3
    given = [torch.from_numpy(each).permute(2, 0, 1) for each in frames]
    found = fit_all(torch, given, spec).permute(0, 2, 3, 1).numpy().astype(int)
    for each, got in zip(frames, found, strict=True):
        assert np.abs(got - fit(each, spec)).max() <= 1


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16"])
def test_inputs_are_normalised_as_by_a_frontend(dtype: str, channels_last: bool) -> None:
    spec = replace(SPEC, channels_last=channels_last)
    pixels = frame(SIDE, SIDE)
    wanted = np.empty((SIDE, SIDE, 3) if channels_last else (3, SIDE, SIDE), dtype)
    write(pixels, spec, wanted)
    fitted = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    got = normalise(torch, fitted, spec, dtype)[0].numpy()
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert np.abs(got.astype(float) - wanted.astype(float)).max() <= 2e-3


BROKEN = b"\xff\xd8\xff" + b"nothing" * 40


def test_a_refused_picture_does_not_spoil_the_batch() -> None:
    decoder = DeviceDecoder(torch, SPEC, "cpu")
    good, slender = jpeg(), jpeg(20, 300)
    out = io.BytesIO()
    Image.fromarray(frame(40, 40)).save(out, "PNG")
    encoded = [good, BROKEN, out.getvalue(), slender]
    rows, refused = decoder(encoded)
    assert list(refused) == [1]
    assert "cannot decode" in refused[1]
    assert not rows[1].any()
    for place in (0, 2, 3):
        wanted = fit(decode(encoded[place], PIXELS_MAX), SPEC)
        assert np.abs(rows[place].permute(1, 2, 0).numpy().astype(int) - wanted).max() <= 2


MARK = b"not by this decoder"


def refusing_marked(decoder: DeviceDecoder) -> list[int]:
    """Has the decoder refuse lists with a marked picture, as nvJPEG refuses; returns the sizes of
    all lists that it is given."""
    sizes: list[int] = []
    usual = decoder.decode_jpeg

    def decode_jpeg(given: list[Any], **options: Any) -> Any:
        sizes.append(len(given))
        if any(MARK in each.numpy().tobytes() for each in given):
            raise RuntimeError("nvjpegDecode failed: unsupported")
        return usual(given, **options)

    decoder.decode_jpeg = decode_jpeg
    return sizes


@pytest.mark.parametrize("bad", [0, 37, 63])
def test_one_refused_picture_of_many_is_found_by_halving(bad: int) -> None:
    decoder = DeviceDecoder(torch, SPEC, "cpu")
    sizes = refusing_marked(decoder)
    encoded = [jpeg(40 + place, 60) for place in range(64)]
    encoded[bad] = jpeg(40 + bad, 60, comment=MARK)
    rows, refused = decoder(encoded)
    # Two halves each time, from 64 to 1.
    assert len(sizes) == 1 + 2 * 6
    assert sorted(sizes) == sorted([64, *(size for size in (32, 16, 8, 4, 2, 1) for _ in range(2))])
    assert not refused
    for place, data in enumerate(encoded):
        wanted = fit(decode(data, PIXELS_MAX), SPEC)
        assert np.abs(rows[place].permute(1, 2, 0).numpy().astype(int) - wanted).max() <= 2


def test_pictures_that_are_all_refused_are_all_decoded_by_the_cpu() -> None:
    decoder = DeviceDecoder(torch, SPEC, "cpu")
    sizes = refusing_marked(decoder)
    encoded = [jpeg(40 + place, 60, comment=MARK) for place in range(5)]
    rows, refused = decoder(encoded)
    assert len(sizes) == 2 * 5 - 1
    assert not refused
    for place, data in enumerate(encoded):
        wanted = fit(decode(data, PIXELS_MAX), SPEC)
        assert (rows[place].permute(1, 2, 0).numpy() == wanted).all()


def test_a_lack_of_memory_is_not_taken_for_a_refused_picture() -> None:
    decoder = DeviceDecoder(torch, SPEC, "cpu")
    calls: list[int] = []

    def decode_jpeg(given: list[Any], **options: Any) -> Any:
        calls.append(len(given))
        raise torch.OutOfMemoryError("CUDA out of memory")

    decoder.decode_jpeg = decode_jpeg
    with pytest.raises(torch.OutOfMemoryError):
        decoder([jpeg()] * 4)
    assert calls == [4]


class Buffers(PlainRunner):
    """A `GraphRunner`'s staging, on the CPU."""

    def __init__(self) -> None:
        super().__init__(lambda rows: rows.astype(np.int64).mean((1, 2, 3)), 8, (3, SIDE, SIDE))
        self.torch = torch

    def stage_by(self, size: int, fill: Callable[[Staged], None]) -> Staged:
        host, device = (torch.zeros((8, 3, SIDE, SIDE), dtype=torch.uint8) for _ in range(2))
        spare = Staged([host], [host.numpy()], [device], None, size, kept=False)
        fill(spare)
        return spare

    def stage(self, items: Sequence[Array]) -> Any:
        return self.stage_by(
            len(items),
            lambda spare: spare.device[0][: len(items)].copy_(torch.from_numpy(np.stack(items))),
        )

    def run(self, staged: Any) -> Any:
        return super().run(staged.device[0][: staged.size].numpy())


def on_device() -> PictureRunner:
    decoder = DeviceDecoder(torch, SPEC, "cpu")
    return PictureRunner(Buffers(), SPEC, (3, SIDE, SIDE), "uint8", decoder)


def on_cpu() -> PictureRunner:
    plain = PlainRunner(lambda rows: rows.astype(np.int64).mean((1, 2, 3)), 8, (3, SIDE, SIDE))
    return PictureRunner(plain, SPEC, (3, SIDE, SIDE), "uint8")


def job_of(items: list[Item]) -> PipelineJob:
    job = PipelineJob(0, Run(1, "v", tuple(range(len(items))), 0, 0))
    for rid, given in enumerate(items):
        rows = given.count if isinstance(given, RowItems) else 0
        job.inputs[rid] = Payload(rid, "", (), rows=rows)
    return job


def served(runner: PictureRunner, items: list[Item]) -> list[Any]:
    """What becomes of each request of one batch."""
    heard: queue.SimpleQueue[BatchOutcome] = queue.SimpleQueue()
    executor = Executor(heard.put)
    executor.begin(job_of(items), runner, list(enumerate(items)), {})
    outcome = heard.get(timeout=10)
    executor.stop()
    assert outcome.failed == ""
    return [
        each if isinstance(each, str) else float(np.frombuffer(each[0][3], np.float64)[0])
        for each in request_outputs(outcome)
    ]


def pixels_of(data: bytes) -> Any:
    return np.ascontiguousarray(fit(decode(data, PIXELS_MAX), SPEC).transpose(2, 0, 1))


@pytest.mark.parametrize("runner", [on_device(), on_cpu()])
def test_a_warm_up_decodes_the_smallest_and_the_largest_batch(runner: PictureRunner) -> None:
    inner: Any = runner.inner
    sizes: list[int] = []
    inner.model = lambda rows: sizes.append(len(rows))
    runner.warm_up()
    inner.model = lambda rows: rows.astype(np.int64).mean((1, 2, 3))
    assert sizes == [1, 8]


@pytest.mark.parametrize("runner", [on_device(), on_cpu()])
def test_pictures_and_tensors_run_in_one_batch(runner: PictureRunner) -> None:
    encoded = [jpeg(), jpeg(90, 70), jpeg(mode="L")]
    items = [item(encoded[0]), pixels_of(encoded[1]), item(BROKEN), item(encoded[2])]
    found = served(runner, items)
    wanted = [pixels_of(each).mean() for each in encoded]
    assert found[0] == pytest.approx(wanted[0], abs=0.5)
    assert found[1] == wanted[1]
    assert "cannot decode" in found[2]
    assert found[3] == pytest.approx(wanted[2], abs=0.5)
    assert served(runner, [items[1]]) == [wanted[1]]


@pytest.mark.parametrize("runner", [on_device(), on_cpu()])
def test_a_broken_picture_is_named_beside_a_request_of_several_rows(runner: PictureRunner) -> None:
    rows = np.full((2, 3, SIDE, SIDE), 7, np.uint8)
    found = served(runner, [RowItems(rows, 2), item(BROKEN), pixels_of(jpeg())])
    assert found[0] == 7
    assert "cannot decode" in found[1]
    assert found[2] == pixels_of(jpeg()).mean()


def test_an_item_is_checked_as_what_it_is() -> None:
    runner = on_cpu()
    runner.check(item(b"anything"))
    runner.check(pixels_of(jpeg()))
    with pytest.raises(InputError, match="shape"):
        runner.check(np.zeros((2, 2), np.uint8))
    with pytest.raises(InputError, match="2 pictures"):
        runner.check(np.array([b"a", b"b"], dtype=object))
