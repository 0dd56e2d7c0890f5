"""Many cameras in one process. Trouble of one is its own: the others go on, and it is opened again
where it is live."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing, suppress

from rich.live import Live
from rich.table import Table
from rich.text import Text

from fermata.clients.frames import has_end
from fermata.clients.pending import FrameResult
from fermata.clients.stream import FrameStream, StreamOptions
from fermata.clients.wire.errors import WireError
from fermata.commands.streaming.camera import Camera
from fermata.commands.streaming.drawing import FrameDrawer
from fermata.commands.streaming.summary import ResultCounts
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import seconds

SHOWN_S = 1.0
RECENT_NS = seconds(5)
"""Frame rates are those of so long."""
AGAIN_S = 2.0
"""Before a live source that ended is opened again."""


class RunningCamera:
    """One camera, its options, and how it has fared."""

    def __init__(
        self, camera: Camera, options: StreamOptions, drawer: FrameDrawer | None = None
    ) -> None:
        self.camera = camera
        self.options = options
        self.drawer = drawer
        """Saves its frames, where that is wanted."""
        self.counts = ResultCounts(options.slo_ns)
        self.recent_ns: deque[int] = deque()
        """When its last frames ended."""
        self.trouble = ""
        """Why it sends nothing; empty while it does."""

    async def run(self, server: str, frames: int | None) -> None:
        """Until its source has ended, for good; forever where that is a camera."""
        while True:
            await self._stream(server, frames)
            done = frames is not None and self.counts.requests >= frames
            # A look at an address of the web waits for its server, and others go on meanwhile.
            if done or await asyncio.to_thread(has_end, self.camera.source):
                return
            self.trouble = self.trouble or "its source has ended"
            await asyncio.sleep(AGAIN_S)

    async def _stream(self, server: str, frames: int | None) -> None:
        stream = FrameStream(server, self.camera.model, self.camera.source, self.options)
        if self.drawer is not None:
            self.drawer.begin()
        try:
            async with aclosing(aiter(stream)) as results:
                async for result in results:
                    self.on_result(time.monotonic_ns(), result)
                    if self.drawer is not None:
                        # Other cameras go on meanwhile.
                        await asyncio.to_thread(self.drawer.save, result)
                    if frames is not None and self.counts.requests >= frames:
                        return
        except (WireError, ConfigError) as error:
            self.trouble = str(error)

    def on_result(self, now_ns: int, result: FrameResult) -> None:
        """Count one more frame that has ended."""
        self.trouble = ""
        self.counts.add(result)
        self.recent_ns.append(now_ns)
        # Here too: nobody may ever ask for the rate.
        self._forget(now_ns)

    def fps(self, now_ns: int) -> float:
        """Frames a second that ended lately."""
        self._forget(now_ns)
        return len(self.recent_ns) / (RECENT_NS / 1e9)

    def _forget(self, now_ns: int) -> None:
        while self.recent_ns and self.recent_ns[0] < now_ns - RECENT_NS:
            self.recent_ns.popleft()


def run_cameras(
    server: str, cameras: Sequence[RunningCamera], frames: int | None, shown: bool
) -> bool:
    """Stream all until each has ended; true where the user has had enough before."""
    try:
        asyncio.run(_run(server, cameras, frames, shown))
    except KeyboardInterrupt:
        return True
    return False


async def _run(
    server: str, cameras: Sequence[RunningCamera], frames: int | None, shown: bool
) -> None:
    showing = asyncio.ensure_future(_show(cameras)) if shown else None
    try:
        await asyncio.gather(*(each.run(server, frames) for each in cameras))
    finally:
        if showing is not None:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing


async def _show(cameras: Sequence[RunningCamera]) -> None:
    with Live(table_of(cameras), auto_refresh=False, transient=True) as screen:
        while True:
            await asyncio.sleep(SHOWN_S)
            screen.update(table_of(cameras), refresh=True)


def table_of(cameras: Sequence[RunningCamera]) -> Table:
    """A row for each camera, those that miss most first."""
    table = Table()
    for heading in ("camera", "model", "variant"):
        table.add_column(heading, no_wrap=True)
    for heading in ("frames", "fps", "side", "in time", "p50, p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trouble")
    now_ns = time.monotonic_ns()
    told = [(each, each.counts.summary()) for each in cameras]
    for each, summary in sorted(told, key=lambda pair: -pair[1].bad_rate):
        last, latency = each.counts.last, summary.latency_ms
        style = "green" if summary.bad_rate <= 0.01 else "red"
        table.add_row(
            Text(each.camera.name),
            each.camera.model,
            (last.variant if last is not None else "") or "-",
            f"{summary.requests:,}",
            f"{each.fps(now_ns):.1f}",
            str(last.side) if last is not None and last.side else "-",
            Text(f"{1 - summary.bad_rate:.1%}", style) if summary.requests else "-",
            "-" if latency.p50 is None else f"{latency.p50:.0f}, {latency.p99:.0f} ms",
            # Not as markup, which addresses and messages may look like.
            Text(each.trouble or _refusal(each)),
        )
    return table


def _refusal(each: RunningCamera) -> str:
    last = each.counts.last
    return "" if last is None or last.ok else f"{last.status} {last.message}"[:80]
