"""Cameras of a load that follow their networks: each is a whole client, on an emulated uplink."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from fermata.clients.load.ledger import LoadLedger
from fermata.clients.load.sender import LINGER_S, Sender, SenderOptions
from fermata.clients.network.adaptation import Encoder, shrunk_jpeg
from fermata.clients.network.emulated_link import BandwidthTrace
from fermata.clients.pending import FrameResult
from fermata.clients.stream import FrameStream, StreamOptions
from fermata.clients.wire.errors import WireError

Film = Sequence[npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class AdaptiveOptions(SenderOptions):
    """How one process sends frames of cameras."""

    stream: StreamOptions = field(default_factory=StreamOptions)
    film: Film = ()
    """Frames that every camera sees, over and over."""


class AdaptiveSender(Sender):
    """Sends what is due of each camera by a stream of its own."""

    options: AdaptiveOptions

    async def connect(self) -> None:
        """Streams connect as they begin."""
        self.encoder = cached_encoder(self.options.film)

    async def run(self, start_at_ns: int) -> LoadLedger:
        self.start_at_ns = start_at_ns
        cameras = np.unique(self.arrivals.client).tolist()
        await asyncio.gather(*(self._stream(camera) for camera in cameras))
        await asyncio.sleep(LINGER_S)
        self.ledger.close()
        return self.ledger

    async def _stream(self, camera: int) -> None:
        options = self.options
        rows = np.flatnonzero(self.arrivals.client == camera)
        how = replace(
            options.stream,
            client=f"camera-{camera}",
            uplink=from_step(options.stream.uplink, camera),
            encoder=self.encoder,
        )
        (model,) = {self.targets[each].model for each in self.arrivals.target[rows].tolist()}
        frames = self._frames(self.arrivals.at_ns[rows].tolist())
        try:
            async for result in FrameStream(options.server, model, frames, how):
                self._enter(int(rows[result.index]), result)
        except WireError as error:
            self.ledger.messages.setdefault("UNSENT", str(error))

    def _frames(self, due_ns: Sequence[int]) -> Iterator[npt.NDArray[np.uint8]]:
        film = self.options.film
        for number, at_ns in enumerate(due_ns):
            time.sleep(max(0, at_ns - self.now_ns()) / 1e9)
            if self.is_over(at_ns):
                return
            yield film[number % len(film)]

    def _enter(self, row: int, result: FrameResult) -> None:
        captured_ns = result.captured_at_ns - self.start_at_ns
        if not result.attempts:
            self.ledger.skip(row)
            return
        self.ledger.send(row, captured_ns)
        answered_ns = captured_ns + result.latency_ns
        self.ledger.answer(row, answered_ns, result.status, result.message)
        self.ledger.batch[row] = result.batch_size


def from_step(trace: BandwidthTrace | None, camera: int) -> BandwidthTrace | None:
    """The trace from another step on for each camera, far from those of its neighbours."""
    if trace is None:
        return None
    first = int(camera * 0.618 * len(trace.bps)) % len(trace.bps)
    return replace(trace, bps=trace.bps[first:] + trace.bps[:first])


def cached_encoder(film: Film) -> Encoder:
    """Makes each JPEG once: hundreds of cameras would keep the cores busy with what a camera's own
    chip does."""
    numbers = {id(frame): number for number, frame in enumerate(film)}

    @cache
    def encoded(number: int, side: int, quality: int) -> tuple[bytes, float]:
        return shrunk_jpeg(film[number], side, quality)

    return lambda frame, side, quality: encoded(numbers[id(frame)], side, quality)
