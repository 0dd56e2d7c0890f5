"""CPU time of a backend for each crop, without a device: all but what that and its driver do.

Batches come as bytes of a router that is played. Their frames are decoded already.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.pipelines_gpu_scene import CROPS_MEAN, jpegs, sections
from benchmarks.pipelines_roles import (
    CLASSES,
    FRONTENDS,
    SEED,
    SETTING,
    PlayedLink,
    Stopwatch,
    decoded,
    on_wire,
)
from fermata.deployments.backend.execution.cuda.captured import Staged
from fermata.deployments.backend.execution.flights import OwnRun
from fermata.deployments.backend.execution.runners.finite import FiniteRunner, NonFiniteCounts
from fermata.deployments.backend.frontends import FrontendPeer
from fermata.deployments.backend.pictures.cutting import Kernels
from fermata.deployments.backend.pictures.decoding import DeviceDecoder
from fermata.deployments.backend.pictures.kept_frames import KeptFrames
from fermata.deployments.backend.pictures.picture_runner import PictureRunner
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.memory.arena import Arena
from fermata.foundation.precise_timer import LoopTimer
from fermata.foundation.units import ms
from fermata.router.links.messages import CUT, RID_BITS, Done, Payload, Result, Run

BATCH = 100
WAIT_S = 0.0005


class PlayedTensor:
    """As much of a tensor as is looked at on the host."""

    shape = (3, 360, 640)
    nbytes = 3 * 360 * 640
    is_cuda = False

    def contiguous(self) -> "PlayedTensor":
        return self

    def data_ptr(self) -> int:
        return 1 << 40

    def __getitem__(self, place: object) -> "PlayedTensor":
        return self

    def copy_(self, other: object, non_blocking: bool = False) -> None:
        pass

    def permute(self, *axes: int) -> "PlayedTensor":
        return self


def played_cut(
    torch: Any, frames: Sequence[Any], sides: Sequence[Sequence[float]], *_: object
) -> PlayedTensor:
    """Numbers that kernels are told, and no kernels."""
    held = [frame.contiguous() for frame in frames]
    rows = [
        (frame.data_ptr(), frame.shape[1], frame.shape[2], *both)
        for frame, both in zip(held, sides, strict=True)
    ]
    assert len(np.array(rows, np.float64)) == len(frames)
    return PlayedTensor()


class PlayedDecoder(DeviceDecoder):
    """Cuts out of frames that are kept; no device has them."""

    def __init__(self, spec: Any, kept: KeptFrames) -> None:
        self.torch = None
        self.spec = spec
        self.device = "cpu"
        self.kept = kept
        self.kernels = Kernels(played_cut)

    def _cut(self, encoded: Sequence[Any], frames: dict[int, Any]) -> Any:
        bounds: list[Any] = [encoded[place].cut for place in frames]
        return self.kernels(None, list(frames.values()), bounds, self.spec)


class PlayedRunner:
    """A network that takes no time."""

    torch = None
    batch_size_max = 128

    def stage_by(self, size: int, fill: Callable[[Any], None]) -> Any:
        spare = Staged((), (), (PlayedTensor(),), None, size, True)
        fill(spare)
        return spare

    def launch(self, staged: Any) -> OwnRun:
        return OwnRun(self.run, staged)

    def run(self, staged: Any) -> Any:
        return np.full((staged.size, CLASSES), 0.5, np.float32)

    def close(self) -> None:
        pass


class BackendScene:
    """A backend with a router and frontends that are played."""

    def __init__(self) -> None:
        model, _ = registry(read_config(sections(SETTING))).known("classify")
        kept = KeptFrames()
        runner: Any = PlayedRunner()
        shape, decoder = (3, 224, 224), PlayedDecoder(model.image, kept)
        runner = PictureRunner(runner, model.image, shape, "uint8", decoder)  # type: ignore[arg-type]
        runner = FiniteRunner(runner, "lite0", NonFiniteCounts(), required=False)
        self.kept = kept
        self.arena = Arena(64 << 20)
        self.places = [self.arena.place(0, "BYTES", (1,), each.data) for each in jpegs()]
        self.process = BackendProcess(BackendSettings(1), {"lite0": runner}, _nowhere)
        self.router = PlayedLink("router", 0)
        self.frontends = [PlayedLink("frontend", 1 + each) for each in range(FRONTENDS)]
        self.watch = Stopwatch()
        self.rng = np.random.default_rng(SEED)
        self.crops = 0
        self.frames = self._frames()

    def start(self) -> None:
        process: Any = self.process
        process.loop = asyncio.get_running_loop()
        process.timer = LoopTimer(process.loop, process._on_timer, process.clock)
        process.executor = process.make_executor(
            lambda outcome: process._post(lambda: process._on_outcome(outcome))
        )
        process.router = self.router
        process.pipeline.on_router_up(0)
        process.carry_out()
        for link in self.frontends:
            peer: Any = FrontendPeer(link.peer.address)
            peer.link = link
            process.frontends.peers[link.peer.number] = peer
        self.router.sent()

    def stop(self) -> None:
        self.process.executor.stop()
        self.process.heartbeat.stop()
        self.process.timer.close()
        self.arena.close()

    def _frames(self) -> Iterator[tuple[int, Payload]]:
        """Frames that a detector has had here, each with its place."""
        number = 0
        while True:
            number += 1
            frame = (1 + number % FRONTENDS << RID_BITS) + 16 * number
            self.kept.put(frame, PlayedTensor())
            yield frame, self.places[number % len(self.places)]

    def _order(self, batch: int) -> Run:
        """A batch of crops, as a router orders it."""
        rids: list[int] = []
        inputs: list[Payload] = []
        while len(rids) < BATCH:
            frame, place = next(self.frames)
            for number in range(min(15, int(self.rng.geometric(1 / CROPS_MEAN)))):
                rids.append(frame + 1 + number)
                box = 10 * number, 20, 10 * number + 100, 140
                told = b"", place.segment, place.offset, place.length
                inputs.append(Payload(rids[-1], CUT, (1,), *told, frame=frame, cut=box))
        return Run(batch, "lite0", tuple(rids[:BATCH]), 0, ms(6), tuple(inputs[:BATCH]))

    async def play(self, warmup: int, batches: int) -> float:
        """CPU time of a crop, in microseconds."""
        for number in range(warmup + batches):
            if number == warmup:
                self.watch.counts, self.crops = True, 0
            await self._batch(number)
        return self.watch.spent_ns / 1e3 / self.crops

    async def _batch(self, number: int) -> None:
        order = self._order(number)
        self.crops += len(order.rids)
        data = on_wire([order])
        with self.watch:
            for message in decoded(data):
                self.process.on_order(self.router, message)  # type: ignore[arg-type]
            self.process.carry_out()
        while not self.router.outbox:
            with self.watch:
                await asyncio.sleep(WAIT_S)
        with self.watch:
            said = [each.sent() for each in (*self.frontends, self.router)]
        *results, done = [decoded(each) for each in said if each]
        assert isinstance(done[0], Done)
        answered = [each.rid for one in results for each in one if isinstance(each, Result)]
        assert sorted(answered) == sorted(order.rids)


async def _nowhere() -> str:
    raise AssertionError("the router is played")


def backend_us(quick: bool) -> float:
    async def play() -> float:
        scene = BackendScene()
        scene.start()
        try:
            return await scene.play(10, 30 if quick else 200)
        finally:
            scene.stop()

    return asyncio.run(play())
