"""A client that follows its network: what it sends, what it says of itself, what it hears."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.bandwidth import BandwidthEstimator
from clients.clock import time_left_ns
from clients.frame_size import FrameSizer
from clients.frames import Frame, encode_jpeg
from clients.wire import parameters as names
from clients.wire.open_inference_pb2 import InferParameter
from clients.wire.parameters import integer

SIDES = tuple(range(64, 1921, 32))
"""That frames may be sent at, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A frame as it is sent."""

    data: bytes
    side: int
    """Its longer side; 0 where it was sent as it came."""
    scale: float
    """Pixels of the frame as it was, for each pixel sent."""


class Adaptation:
    """Sizes the frames of one stream. Frames are made in one thread and answered in another."""

    def __init__(self, fps: float, slo_ns: int, sides: tuple[int, ...], quality: int) -> None:
        self.fps = fps
        self.slo_ns = slo_ns
        self.quality = quality
        self.estimator = BandwidthEstimator()
        self.sizer = FrameSizer(sides)
        self.served = True
        """False while the server has no room for this client."""
        self.lock = threading.Lock()

    def encode(self, now_ns: int, frame: Frame) -> Sized:
        """The frame in the size that the server asked for, or that the network can carry."""
        if isinstance(frame, bytes):
            return Sized(frame, 0, 1.0)
        estimator = self.estimator
        with self.lock:
            bandwidth_bps = estimator.bandwidth_bps(now_ns)
            backlog_bits = estimator.backlog_bits(now_ns, bandwidth_bps)
            side = self.sizer.choose(bandwidth_bps, backlog_bits, estimator.round_trip_ns)
        small, scale = shrink(frame, side)
        data = encode_jpeg(small, self.quality)
        with self.lock:
            self.sizer.on_encoded(side, 8 * len(data))
        return Sized(data, side, scale)

    def on_sent(self, now_ns: int, index: int, sized: Sized, left_ns: int) -> int:
        """The frame leaves; returns what will be left of its SLO when the server has it."""
        estimator = self.estimator
        with self.lock:
            bandwidth_bps = estimator.bandwidth_bps(now_ns)
            waiting_bits = estimator.backlog_bits(now_ns, bandwidth_bps) + 8 * len(sized.data)
            estimator.on_sent(now_ns, index, 8 * len(sized.data))
        return time_left_ns(left_ns, waiting_bits, bandwidth_bps, estimator.round_trip_ns // 2)

    def report(self, now_ns: int, side: int, given: Any) -> None:
        """Write into a request's parameters what the server should know of this client."""
        with self.lock:
            bandwidth_bps = self.estimator.bandwidth_bps(now_ns)
        given[names.FPS].double_param = self.fps
        given[names.SLO_US].int64_param = self.slo_ns // 1000
        given[names.BANDWIDTH].double_param = bandwidth_bps
        given[names.ROUND_TRIP_US].int64_param = self.estimator.round_trip_ns // 1000
        given[names.INPUT_SIZE].int64_param = side

    def on_answer(self, now_ns: int, index: int, given: Mapping[str, InferParameter]) -> None:
        """An answer, or a refusal: both say how long the frame was at the server."""
        server_us = integer(given, names.SERVER_US)
        with self.lock:
            if server_us is None:
                self.estimator.on_lost(index)
            else:
                self.estimator.on_acknowledged(now_ns - server_us * 1000, index)
            side = integer(given, names.INPUT_SIZE)
            network_us = integer(given, names.NETWORK_US)
            if side is not None and network_us is not None:
                self.sizer.on_advice(side, network_us * 1000)
        if names.SERVED in given:
            self.served = given[names.SERVED].bool_param

    def on_disconnect(self) -> None:
        """Nobody will answer what was under way."""
        with self.lock:
            self.estimator.in_flight.clear()


def shrink(frame: npt.NDArray[np.uint8], side: int) -> tuple[npt.NDArray[np.uint8], float]:
    """The frame with its longer side at most this, its shape kept; and by how much it shrank."""
    height, width = frame.shape[:2]
    longer = max(height, width)
    if longer <= side:
        return frame, 1.0
    size = (max(1, round(width * side / longer)), max(1, round(height * side / longer)))
    small = Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(small), longer / side


def original_boxes(rows: npt.NDArray[Any], scale: float) -> npt.NDArray[Any]:
    """Rows of x1, y1, x2, y2, ... in pixels of the frame as it was before it shrank."""
    moved = rows.copy()
    if moved.ndim == 2:
        moved[:, :4] *= scale
    return moved
