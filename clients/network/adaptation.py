"""A client that follows its network: what it sends, what it says of itself, what it hears."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fermata.clients.frames import Frame, encode_jpeg
from fermata.clients.network.jpeg_quality import steps
from fermata.clients.network.uplink import Uplink
from fermata.clients.wire import parameters as names
from fermata.clients.wire.open_inference_pb2 import InferParameter
from fermata.clients.wire.parameters import integer

SIDES = tuple(range(64, 1921, 32))
"""That frames may be sent at, beside the very side that is asked for."""
CROP_MARGIN = 32
"""With `fit: centre` a model of side s sees s / (s + 32) of the shorter side."""


Encoder = Callable[[npt.NDArray[np.uint8], int, int], tuple[bytes, float]]
"""Makes a JPEG of a frame, of this longer side and quality; returns how much it shrank too."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A frame as it is sent."""

    data: bytes
    side: int
    """Its side as the model's fit counts it; 0 where it was sent as it came."""
    scale: float
    """Pixels of the frame as it was, for each pixel sent."""
    least_bits: int = 0
    """Bits that it would have at the lowest quality; 0 where nobody chose its quality."""


def shrink(frame: npt.NDArray[np.uint8], side: int) -> tuple[npt.NDArray[np.uint8], float]:
    """The frame with its longer side at most this, its shape kept; and by how much it shrank."""
    height, width = frame.shape[:2]
    longer = max(height, width)
    if longer <= side:
        return frame, 1.0
    size = (max(1, round(width * side / longer)), max(1, round(height * side / longer)))
    small = Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(small), longer / side


def shrunk_jpeg(frame: npt.NDArray[np.uint8], side: int, quality: int) -> tuple[bytes, float]:
    """A JPEG of the frame made smaller, and by how much it shrank."""
    small, scale = shrink(frame, side)
    return encode_jpeg(small, quality), scale


class Adaptation:
    """Sizes the frames of one stream. Frames are made in one thread and answered in another."""

    def __init__(
        self,
        fps: float,
        slo_ns: int,
        sides: tuple[int, ...],
        quality: int,
        fit: str = "whole",
        encoder: Encoder = shrunk_jpeg,
        quality_min: int = 100,
    ) -> None:
        """`quality` is the best that frames may have, and the only one unless `quality_min` is
        below it."""
        self.encoder = encoder
        self.fit = fit
        self.source_size = 0
        """The largest side that its source fills; 0 before the first frame."""
        qualities = steps(quality_min, quality)
        self.uplink = Uplink(fps, slo_ns, sides, sides is SIDES, qualities)
        self.lock = threading.Lock()

    def encode(self, now_ns: int, frame: Frame) -> Sized:
        """The frame in the size that the server asked for, or that the network can carry."""
        if isinstance(frame, bytes):
            return Sized(frame, 0, 1.0)
        with self.lock:
            self.source_size = side_of(frame, self.fit)
            self.uplink.sizer.side_max = self.source_size
            side = self.uplink.choose_side(now_ns)
            quality = self.uplink.choose_quality(side)
        data, scale = self.encoder(frame, longer_side(frame, side, self.fit), quality)
        bits = 8 * len(data)
        with self.lock:
            self.uplink.on_encoded(side, bits, quality)
        return Sized(data, side, scale, round(self.uplink.sizer.least_bits(quality, bits)))

    def send(self, now_ns: int, index: int, sized: Sized, left_ns: int) -> int:
        """The frame is to leave; returns what the server has of its SLO, or 0: do not send it."""
        with self.lock:
            return self.uplink.send(now_ns, index, 8 * len(sized.data), left_ns)

    def why_not_sent(self) -> str:
        """The reason why the last frame was not to be sent."""
        if self.uplink.thinned:
            return "its network does not carry so many frames"
        return "no time was left to send it"

    def report(self, now_ns: int, side: int, given: Any, least_bits: int = 0) -> None:
        """Write into a request's parameters what the server should know of this client."""
        uplink = self.uplink
        with self.lock:
            bandwidth_bps, rate = uplink.bandwidth_bps(now_ns), uplink.rate(now_ns)
        given[names.FPS].double_param = rate
        given[names.SLO_US].int64_param = uplink.slo_ns // 1000
        given[names.BANDWIDTH].double_param = bandwidth_bps
        given[names.ROUND_TRIP_US].int64_param = uplink.round_trip_ns // 1000
        given[names.INPUT_SIZE].int64_param = side
        if least_bits and len(uplink.sizer.qualities) > 1:
            given[names.FRAME_BITS].int64_param = least_bits
        if self.source_size:
            given[names.SOURCE_SIZE].int64_param = self.source_size
        given[names.ACKNOWLEDGE].bool_param = True

    def on_probe(self, round_trip_ns: int) -> None:
        """A message without a payload has come back."""
        with self.lock:
            self.uplink.estimator.on_probe(round_trip_ns)

    def on_message(self, now_ns: int, index: int, given: Mapping[str, InferParameter]) -> bool:
        """Word from the server; true where that is the frame's answer or refusal, false where it
        only says that it has the frame."""
        answer = names.RECEIVED not in given
        server_us = integer(given, names.SERVER_US)
        side, network_us = integer(given, names.INPUT_SIZE), integer(given, names.NETWORK_US)
        with self.lock:
            if answer:
                server_ns = None if server_us is None else server_us * 1000
                self.uplink.on_answer(now_ns, index, server_ns)
            else:
                self.uplink.on_received(now_ns, index)
            if side is not None and network_us is not None:
                served = names.SERVED not in given or given[names.SERVED].bool_param
                self.uplink.on_advice(side, network_us * 1000, served)
        return answer

    def on_disconnect(self) -> None:
        """Nobody will answer what was under way."""
        with self.lock:
            self.uplink.on_disconnect()


def longer_side(frame: npt.NDArray[np.uint8], side: int, fit: str) -> int:
    """The longer side of a frame that leaves a model of this side all the pixels that it takes.

    With `centre`, a model sees the middle of the shorter side, less a margin."""
    if fit != "centre":
        return side
    height, width = _sides(frame)
    return -(-(side + CROP_MARGIN) * max(height, width) // min(height, width))


def side_of(frame: npt.NDArray[np.uint8], fit: str) -> int:
    """The side of the largest model that the frame fills as it is."""
    height, width = _sides(frame)
    if fit != "centre":
        return max(height, width)
    return max(1, min(height, width) - CROP_MARGIN)


def _sides(frame: npt.NDArray[np.uint8]) -> tuple[int, int]:
    height, width = frame.shape[:2]
    return int(height), int(width)


def original_boxes(
    given: npt.NDArray[Any], scale: float, axis: str = "last", numbers: int = 4
) -> npt.NDArray[Any]:
    """Boxes in pixels of the frame as it was before it shrank; `axis` holds a box's numbers, of
    which so many place it."""
    # A batch dimension of one row may come first.
    where = given.ndim - 1 if axis == "last" else max(0, given.ndim - 2)
    moved = given.copy()
    if moved.ndim >= 2:
        places = np.moveaxis(moved, where, -1)[..., :numbers]
        found = places * scale
        places[...] = found if moved.dtype.kind == "f" else np.rint(found)
    return moved
