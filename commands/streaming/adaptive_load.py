"""Cameras of `fermata load --adapt`."""

from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from fermata.clients.describe import ModelDescription
from fermata.clients.frames import is_live, open_frames
from fermata.clients.load.adaptive import AdaptiveOptions
from fermata.clients.load.sender import SenderOptions
from fermata.commands.streaming.camera import Camera, film, refuse_other_inputs
from fermata.foundation.errors import ConfigError

FRAMES_MAX = 60
"""Frames of the film that are kept, and sent over and over."""
FILM_BYTES_MAX = 64 << 20
"""Each process has a film of its own."""


def adaptive(
    options: SenderOptions, camera: Camera, found: ModelDescription, priority: int = 0
) -> AdaptiveOptions:
    """How cameras like this one are sent."""
    camera = replace(camera, source=film(camera.source))
    camera.check()
    refuse_other_inputs(found)
    if is_live(camera.source):
        raise ConfigError(f"film={camera.source!r}: give a video that is a file")
    return AdaptiveOptions(
        options.server,
        access=options.access,
        stream=replace(camera.options(found, 0, options.access), priority=priority),
        film=_beginning(camera.source),
    )


def _beginning(source: str) -> list[npt.NDArray[np.uint8]]:
    kept: list[npt.NDArray[np.uint8]] = []
    for frame in islice(open_frames(source, 0), FRAMES_MAX):
        assert not isinstance(frame, bytes), "pictures were refused"
        kept.append(frame)
        if len(kept) * frame.nbytes > FILM_BYTES_MAX:
            break
    if not kept:
        raise ConfigError(f"{source!r} has no frames: give another film")
    return kept
