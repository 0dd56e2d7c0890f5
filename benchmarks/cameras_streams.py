"""Cameras of a benchmark in a few processes, each a whole client on an emulated uplink."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cameras_scene import NAME, variant_name
from fermata.clients.load.adaptive import Film, cached_encoder
from fermata.clients.network.emulated_link import BandwidthTrace
from fermata.clients.pending import FrameResult
from fermata.clients.stream import FrameStream, StreamOptions
from fermata.foundation.units import SECOND, ms, seconds
from fermata.profiles.detection import Detections, nothing_found

PROCESSES = 4
START_S = 4.0
"""For the processes to be ready, so that all cameras begin together."""
QUALITY = 100
"""So that the uplink matters: a frame of 640 pixels has 0.4 to 1 Mbit."""
SHIFT = 7
"""Frames of the film between one camera and the next, so that no two show the same."""


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """One camera."""

    number: int
    trace: str
    uplink: BandwidthTrace
    slo_ms: float
    fps: float


@dataclass(frozen=True, slots=True)
class CameraFrame:
    """How a frame ended."""

    camera: int
    place: int
    """Frames taken of the film."""
    at_s: float
    """Since the camera's first."""
    in_time: bool
    side: int
    why: str
    """Why it was missed; empty where it was not."""
    found: Detections
    """Nothing where it did not come in time."""


def stream_all(
    server: str, film: Path, cameras: Sequence[CameraSpec], side: int, duration_s: float
) -> list[CameraFrame]:
    """Frames of all cameras, which follow their networks; or send `side` alone where it is given,
    to the variant of that side."""
    start_at_ns = time.monotonic_ns() + seconds(START_S)
    parts = [cameras[index::PROCESSES] for index in range(min(PROCESSES, len(cameras)))]
    given = [(server, film, part, side, duration_s, start_at_ns) for part in parts]
    # Anew for each run: grpc.aio does not outlive the loop it was first used on.
    with multiprocessing.get_context("spawn").Pool(len(parts)) as pool:
        return [frame for found in pool.starmap(_stream_part, given) for frame in found]


def _stream_part(
    server: str,
    film: Path,
    cameras: Sequence[CameraSpec],
    side: int,
    duration_s: float,
    start_at_ns: int,
) -> list[CameraFrame]:
    frames = list(np.load(film))
    encoder = cached_encoder(frames)

    async def each(camera: CameraSpec) -> list[CameraFrame]:
        options = StreamOptions(
            slo_ns=ms(camera.slo_ms),
            fps=camera.fps,
            client=f"{side}-{camera.number}",
            quality=QUALITY,
            quality_min=QUALITY,
            adapt=True,
            boxes="boxes",
            uplink=camera.uplink,
            encoder=encoder,
        )
        if side:
            options = replace(options, sides=(side,), variant=variant_name(side))
        # Cameras take their frames at other times than their neighbours.
        phase_ns = int(camera.number * 0.618 % 1 / camera.fps * SECOND)
        await asyncio.sleep(max(0, start_at_ns + phase_ns - time.monotonic_ns()) / 1e9)
        shown = _shown(frames, camera, int(duration_s * camera.fps))
        results = [each async for each in FrameStream(server, NAME, shown, options)]
        return [_frame(camera, len(frames), results[0], result) for result in results]

    async def together() -> list[list[CameraFrame]]:
        return await asyncio.gather(*map(each, cameras))

    return [frame for found in asyncio.run(together()) for frame in found]


def _shown(film: Film, camera: CameraSpec, count: int) -> Iterator[Any]:
    return (film[_place(camera, index, len(film))] for index in range(count))


def _place(camera: CameraSpec, index: int, frames: int) -> int:
    return (SHIFT * camera.number + index) % frames


def _frame(camera: CameraSpec, frames: int, first: FrameResult, result: FrameResult) -> CameraFrame:
    in_time = result.ok and result.latency_ns <= ms(camera.slo_ms)
    outputs = result.outputs
    found = nothing_found()
    if in_time:
        found = Detections(
            outputs["boxes"].reshape(-1, 4).astype(np.float64),
            outputs["classes"].reshape(-1),
            outputs["scores"].reshape(-1).astype(np.float64),
        )
    return CameraFrame(
        camera.number,
        _place(camera, result.index, frames),
        (result.captured_at_ns - first.captured_at_ns) / 1e9,
        in_time,
        result.side,
        "" if in_time else f"{result.status} {result.message}".strip(),
        found,
    )
