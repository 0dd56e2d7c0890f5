"""What 100,000 queued requests cost the router: its own process, fed over a real link."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.figures import Figure, run
from benchmarks.live_server import resident_mb
from fermata.foundation.units import ms, seconds
from fermata.router.assembly import RouterConfig
from fermata.router.leadership.actor import RouterActor
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.connecting import connect
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import PROTOCOL, RID_BITS, Hello, Message, Submit
from fermata.router.links.transport import Link, LinkOptions
from fermata.router.policies.application import ApplicationSpec, VariantSpec

QUEUED = 100_000
CHUNK = 1_000
MB_MAX = 100
NUMBER = 7
"""Of the frontend that this process stands for."""
CONFIG = RouterConfig((ApplicationSpec("m", seconds(600), (VariantSpec("m-1", (ms(5),)),)),))


class Silent:
    """A frontend that only asks."""

    def on_up(self, link: Link) -> None: ...
    def on_down(self, link: Link, closed: Closed) -> None: ...
    def on_refused(self, link: Link, closed: Closed) -> None: ...
    def on_messages(self, link: Link, messages: list[Message]) -> None: ...


def serve(pipe: Connection) -> None:
    """A router without backends, until the pipe says stop; answers every word with its queue."""

    async def main() -> None:
        actor = RouterActor(CONFIG, generation=1)
        pipe.send(await actor.address())
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv) != "stop":
            pipe.send(len(actor.live.engine.outbox.queued))
        await actor.stop()

    asyncio.run(main())


async def fill(address: str, count: int) -> None:
    """Submit so many requests that none of them can be served."""
    options = LinkOptions()
    heartbeat = HeartbeatThread(options.beat_ns)
    me = Hello(PROTOCOL, "frontend", NUMBER, 0, "127.0.0.1:1", "here")
    link = await connect(address, lambda: me, Silent(), heartbeat, options)
    for first in range(0, count, CHUNK):
        for number in range(first, first + CHUNK):
            link.send(Submit((NUMBER << RID_BITS) | number, "m", seconds(600), seconds(600)))
        link.flush()
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    link.close(CloseCode.SHUTDOWN, "done")
    await link.ended
    heartbeat.stop()


def queue_mb(count: int) -> tuple[int, float]:
    """How many requests were queued, and what the router grew by."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        address = ours.recv()
        assert process.pid is not None
        idle_mb = resident_mb(process.pid)
        grown_mb, queued = 0.0, 0

        async def main() -> None:
            nonlocal grown_mb, queued
            filling = asyncio.ensure_future(fill(address, count))
            while not filling.done():
                ours.send("how many")
                seen = await asyncio.get_running_loop().run_in_executor(None, ours.recv)
                queued = max(queued, seen)
                assert process.pid is not None
                grown_mb = max(grown_mb, resident_mb(process.pid) - idle_mb)
                await asyncio.sleep(0.1)
            await filling

        asyncio.run(main())
        ours.send("stop")
        process.join(10)
    finally:
        process.kill()
    return queued, grown_mb


def measure(quick: bool) -> Iterator[Figure]:
    queued, grown_mb = queue_mb(QUEUED // 10 if quick else QUEUED)
    yield Figure("requests queued at the router", queued, "", QUEUED // 10 if quick else QUEUED)
    yield Figure("router's memory above idle", grown_mb, "MB", MB_MAX, at_most=True)


if __name__ == "__main__":
    run("Memory of a router with 100,000 queued requests", measure)
