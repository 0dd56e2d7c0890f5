"""Looks of one frontend, taken by itself and by a backend beside it: CPU there, and time of a look.

`python -m benchmarks.pictures_looking --only places`; the backend has a GPU where there is one.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.figures import Figure
from benchmarks.sneakpeek_setting import Labels
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.frontends import Frontends
from fermata.deployments.backend.looks.desk import LookDesk
from fermata.deployments.backend.looks.looker import Looker
from fermata.deployments.backend.models.loaders import pick_device
from fermata.deployments.frontend.link_hub import LinkHub
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.process import node_name
from fermata.deployments.frontend.requests.looks.peeker import Peeker
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.sneakpeek.building import BuildOptions, build
from fermata.deployments.sneakpeek.labelled_data import ArrayData
from fermata.deployments.sneakpeek.placed_look import PlacedLook
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import seconds
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import PROTOCOL, Evidence, FrontendAddress, Hello, Payload
from fermata.router.links.transport import LinkOptions

EMBEDDING = "imagenet:lite0@64/5"
SIDE = 224
TOGETHER = 8
"""Looks that wait at a time."""
TERMS = RequestTerms("pictures", seconds(60), seconds(60), 3 * SIDE * SIDE)
NODE = node_name()


@dataclass(frozen=True, slots=True)
class Spent:
    """Cost of looks in one place."""

    cpu_ms: float
    """CPU time of the frontend's process for one look."""
    took_ms: float
    """From the request for a look to its votes, the median."""


def pictures(count: int) -> tuple[np.ndarray, Labels]:
    """Noise around two levels of grey."""
    rng = np.random.default_rng(11)
    labels = np.arange(count, dtype=np.int64) % 2
    noise = rng.integers(0, 60, (count, 3, SIDE, SIDE))
    return (noise + 100 * labels[:, None, None, None]).astype(np.uint8), labels


def model() -> SneakPeekModel:
    return build(ArrayData(*pictures(60)), BuildOptions(embedding=EMBEDDING)).model


async def nowhere() -> str:
    raise AssertionError("there is no router")


class NoBatches:
    """A backend without batches (`FrontendEvents`)."""

    def on_payloads(self, payloads: list[Payload]) -> None: ...

    def on_data_lost(self, frontend: int) -> None: ...

    def on_frontend_down(self, frontend: int, reason: str) -> None: ...

    def on_reach(self, unreachable: frozenset[int]) -> None: ...


def look_for(address: str) -> None:
    """A backend in a process of its own, which looks for the frontend there until it is killed."""

    async def serve() -> None:
        options = LinkOptions()
        me = Hello(PROTOCOL, "backend", 1, 0, "", NODE)
        heartbeat = HeartbeatThread(options.beat_ns)
        loop = asyncio.get_running_loop()
        frontends = Frontends(lambda: me, NoBatches(), heartbeat, options, loop.create_task)
        placed = {"pictures": PlacedLook(model(), shape=(3, SIDE, SIDE))}
        desk = LookDesk(Looker(placed, pick_device("auto")), Segments(), frontends)
        await desk.load()
        frontends.add(FrontendAddress(1, address, NODE))
        # Told twice: this opens the link.
        frontends.send(1, desk.told())
        await asyncio.Event().wait()

    asyncio.run(serve())


class Frontend:
    """As much of a frontend as looks need."""

    def __init__(self, on_backends: bool) -> None:
        self.on_backends = on_backends
        self.waiting: dict[int, tuple[asyncio.Future[None], int]] = {}
        self.took_ns: list[int] = []

    async def start(self, undo: AsyncExitStack) -> None:
        self.hub = LinkHub(FrontendOptions(number=1), Registry(), nowhere, NODE)
        arena = Arena(64 << 20)
        undo.callback(arena.close)
        pool = ThreadPoolExecutor(1)
        undo.callback(pool.shutdown)
        heartbeat = HeartbeatThread(FrontendOptions(number=1).links.beat_ns)
        undo.callback(heartbeat.stop)
        models = {"pictures": replace(model(), on_backends=self.on_backends)}
        self.peeker = Peeker(models, pool, self.hear, send_look=self.hub.send_look)
        await self.hub.listen(undo, arena, pool, heartbeat, self.peeker)
        # Nobody schedules: a request is open until its votes are there.
        self.hub.table.on_router_up(0, 1)

    def hear(self, evidence: Evidence) -> None:
        done, from_ns = self.waiting.pop(evidence.rid)
        self.took_ns.append(time.monotonic_ns() - from_ns)
        done.set_result(None)

    async def look(self, picture: np.ndarray) -> None:
        arena, data = self.hub.arena, picture.tobytes()
        now_ns = time.monotonic_ns()
        rid = self.hub.table.admit(
            now_ns, TERMS, lambda one: arena.place(one, "UINT8", picture.shape, data)
        )
        assert isinstance(rid, int)
        done = asyncio.get_running_loop().create_future()
        self.waiting[rid] = (done, now_ns)
        self.hub.driver.waiters[rid] = lambda rid, outcome: None
        self.peeker.take(rid, "pictures", picture)
        await done
        self.hub.driver.cancel(rid)

    async def measure(self, images: np.ndarray) -> Spent:
        await asyncio.gather(*(self.look(each) for each in images[:TOGETHER]))
        self.took_ns.clear()
        from_s = time.process_time()
        for first in range(0, len(images), TOGETHER):
            await asyncio.gather(*(self.look(each) for each in images[first : first + TOGETHER]))
        cpu_ms = 1e3 * (time.process_time() - from_s) / len(images)
        return Spent(cpu_ms, float(np.median(self.took_ns)) / 1e6)


async def _measured(on_backends: bool, count: int) -> Spent:
    images, _ = pictures(count)
    async with AsyncExitStack() as undo:
        frontend = Frontend(on_backends)
        await frontend.start(undo)
        if on_backends:
            context = multiprocessing.get_context("spawn")
            backend = context.Process(target=look_for, args=(frontend.hub.address,), daemon=True)
            backend.start()
            undo.callback(backend.kill)
            async with asyncio.timeout(120):
                while not frontend.peeker.backends.lookers:
                    await asyncio.sleep(0.05)
        return await frontend.measure(images)


def places(quick: bool) -> Iterator[Figure]:
    """Looks at pictures of 224 pixels, 8 at a time, in both places one after the other."""
    count = 64 if quick else 256
    own = asyncio.run(_measured(False, count))
    there = asyncio.run(_measured(True, count))
    device = pick_device("auto")
    name = f"a look with {EMBEDDING}, {TOGETHER} at a time"
    yield Figure(f"{name}, on the frontend: its CPU", own.cpu_ms, "ms", 0.0)
    yield Figure(f"{name}, on a backend ({device}): the frontend's CPU", there.cpu_ms, "ms", 0.0)
    ratio = there.cpu_ms / own.cpu_ms
    yield Figure("CPU of the frontend, second over first", ratio, "", 0.5, at_most=True)
    yield Figure(f"{name}, on the frontend: time", own.took_ms, "ms", 0.0)
    yield Figure(f"{name}, on a backend ({device}): time", there.took_ms, "ms", 0.0)
    slower = there.took_ms / own.took_ms
    yield Figure("time of a look, second over first", slower, "", 0.0)
