"""Where frames come from: a video, a folder of pictures, a camera, RTSP, or arrays."""

import io
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fermata.clients.source_clock import SourceClock
from fermata.clients.wire.errors import BadRequestError

try:
    import simplejpeg
except ImportError:
    # Pillow encodes as well, a little slower.
    simplejpeg = None

Frame = npt.NDArray[np.uint8] | bytes
"""Rows x columns x 3 in RGB, or a picture that is encoded already."""
TimedFrame = tuple[Frame, int | None]
"""A frame and its time on the source's own clock, where it has one."""
Source = str | Path | Iterable[Frame]
Each = TypeVar("Each")
EARLY = 0.25
"""Share of the time between two frames by which one may come early."""
WEB = ("http://", "https://")
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


class Capture(NamedTuple):
    """A frame, and when it was taken."""

    frame: Frame
    at_ns: int | None = None
    """On the monotonic clock; None: just now."""


def encode_jpeg(frame: Frame, quality: int = 80) -> bytes:
    """The frame as a JPEG; what is encoded already stays as it is."""
    if isinstance(frame, bytes):
        return frame
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise BadRequestError(f"a frame of {frame.dtype}{list(frame.shape)}: use uint8[h, w, 3]")
    if simplejpeg is not None:
        data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(frame), quality, "RGB", "420")
        return data
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "JPEG", quality=quality)
    return out.getvalue()


def open_captures(source: Source, fps: float | None = None) -> Iterator[Capture]:
    """Frames at the pace of the source, or at `fps`; `fps=0` gives them as fast as they are taken.

    Blocks between frames, so run it in a thread. A live source (camera, RTSP) sets its own pace;
    what it gives beyond `fps` is left out. Frames of cameras and RTSP carry their own time, so
    that those that waited in a buffer are as old as they are.
    """
    text = str(source) if isinstance(source, str | Path) else ""
    if text.startswith(("rtsp://", "rtsps://")):
        return thinned(timed(_decoded(text, None, {"rtsp_transport": "tcp"})), fps)
    if text.startswith(WEB):
        return _on_the_web(text, fps)
    if text.isdecimal() or text.startswith("/dev/video"):
        device = f"/dev/video{text}" if text.isdecimal() else text
        return thinned(timed(_decoded(device, "v4l2", {})), fps)
    return map(Capture, open_frames(source, fps))


def is_live(source: str) -> bool:
    """Whether a source is a camera, or may be one: see `has_end` for addresses of the web."""
    addresses = ("rtsp://", "rtsps://", *WEB, "/dev/video")
    return source.isdecimal() or source.startswith(addresses)


def has_end(source: str) -> bool:
    """Whether a source that has ended is not worth another try: all but cameras. A film on the web
    knows how long it is, which only a look at it tells, and blocks."""
    if not is_live(source):
        return True
    if not source.startswith(WEB):
        return False
    try:
        with _open(source, None, {}) as container:
            return _is_film(container)
    except BadRequestError:
        # Nothing is there now: that may be a camera which will be back.
        return False


def open_frames(source: Source, fps: float | None = None) -> Iterator[Frame]:
    """Frames of a source that is not live, at its pace or at `fps`."""
    if not isinstance(source, str | Path):
        return _paced(iter(source), fps)
    text = str(source)
    check_source(text)
    path = Path(text)
    if path.is_dir():
        return _paced(_pictures(path), fps)
    if path.suffix.lower() in PICTURES:
        return iter([path.read_bytes()])
    return _video(text, fps)


def check_source(text: str) -> None:
    """Refuse what is neither an address nor a device nor there."""
    if not (is_live(text) or Path(text).is_dir() or Path(text).is_file()):
        raise BadRequestError(
            f"{text!r} is no file, folder, camera number or rtsp:// address: give one of these"
        )


def _pictures(folder: Path) -> Iterator[Frame]:
    paths = sorted(each for each in folder.iterdir() if each.suffix.lower() in PICTURES)
    if not paths:
        raise BadRequestError(f"{str(folder)!r} holds no {', '.join(PICTURES)}")
    return (each.read_bytes() for each in paths)


def _video(path: str, fps: float | None) -> Iterator[Frame]:
    frames = (frame for frame, _ in _decoded(path, None, {}))
    if fps is None:
        with _open(path, None, {}) as container:
            fps = _rate(container)
    return _paced(frames, fps)


def _on_the_web(address: str, fps: float | None) -> Iterator[Capture]:
    """A film, which is shown at its pace like a file; or a camera, which sets its own."""
    with _open(address, None, {}) as container:
        frames = (frame for frame, _ in _pictures_in(address, container))
        if _is_film(container):
            pace = _rate(container) if fps is None else fps
            yield from map(Capture, _paced(frames, pace))
        else:
            yield from thinned(map(Capture, frames), fps)


def _is_film(container: Any) -> bool:
    return container.duration is not None


def _rate(container: Any) -> float:
    return float(container.streams.video[0].average_rate or 25)


def _open(address: str, kind: str | None, options: dict[str, str]) -> Any:
    try:
        import av
    except ImportError:
        raise BadRequestError("video needs PyAV: pip install av") from None
    try:
        container: Any = av.open(address, format=kind, options=options)
    except (av.error.FFmpegError, OSError) as error:
        raise _source_error(f"{address!r} cannot be opened as video: {error}") from None
    if not container.streams.video:
        container.close()
        raise _source_error(f"{address!r} has no video in it")
    return container


def _source_error(message: str) -> BadRequestError:
    """An error about a source, without the password that addresses of cameras often hold."""
    return BadRequestError(re.sub(r"//[^/@\s]*@", "//...@", message))


def _decoded(address: str, kind: str | None, options: dict[str, str]) -> Iterator[TimedFrame]:
    with _open(address, kind, options) as container:
        yield from _pictures_in(address, container)


def _pictures_in(address: str, container: Any) -> Iterator[TimedFrame]:
    stream = container.streams.video[0]
    # Several threads decode one picture together; several pictures at once would add delay.
    stream.thread_type = "SLICE"
    pictures = container.decode(stream)
    while (frame := _next(address, pictures)) is not None:
        time_ns = None if frame.time is None else int(frame.time * 1e9)
        yield frame.to_ndarray(format="rgb24"), time_ns


def _next(address: str, pictures: Iterator[Any]) -> Any:
    """The next one, or None behind the last."""
    from av.error import FFmpegError

    try:
        return next(pictures, None)
    except (FFmpegError, OSError) as error:
        raise _source_error(f"{address!r} has broken off: {error}") from None


def timed(
    frames: Iterator[TimedFrame], clock: Callable[[], int] = time.monotonic_ns
) -> Iterator[Capture]:
    """Frames of a live source, each with the time at which it was taken."""
    source = SourceClock()
    for frame, time_ns in frames:
        yield Capture(frame, source.captured_at_ns(clock(), time_ns))


def thinned(
    frames: Iterator[Each], fps: float | None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Each]:
    """Frames of a live source, no more than `fps` a second on average; all where that is 0."""
    due_at = -math.inf
    for frame in frames:
        if fps:
            now = clock()
            # Frames come a little early or late: that alone is no reason to leave one out.
            if now < due_at - EARLY / fps:
                continue
            due_at = (now if now - due_at > 1 / fps else due_at) + 1 / fps
        yield frame


def _paced(frames: Iterator[Frame], fps: float | None) -> Iterator[Frame]:
    if not fps:
        yield from frames
        return
    started_at = time.monotonic()
    for index, frame in enumerate(frames):
        wait_s = started_at + index / fps - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        yield frame
