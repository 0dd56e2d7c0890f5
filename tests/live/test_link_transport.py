"""One link on real sockets, threads and time: busy loops, peers that do not read, large frames."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from test_links import HOST, OPTIONS, run, until

from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.connecting import connect
from fermata.router.links.heartbeat import HeartbeatThread, LoopWatch
from fermata.router.links.messages import (
    PROTOCOL,
    Hello,
    Message,
    Payload,
)
from fermata.router.links.session import LinkError
from fermata.router.links.transport import Link, LinkOptions, LinkServer

pytestmark = pytest.mark.live


class Recorder:
    def __init__(self) -> None:
        self.up: list[Link] = []
        self.down: list[Closed] = []

    def on_up(self, link: Link) -> None:
        self.up.append(link)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        pass

    def on_down(self, link: Link, closed: Closed) -> None:
        self.down.append(closed)

    def on_refused(self, link: Link, closed: Closed) -> None:
        self.down.append(closed)


def greet(role: str) -> Callable[[], Hello]:
    return lambda: Hello(PROTOCOL, role, 1, 0)


async def stay_busy(options: LinkOptions) -> None:
    heartbeat, events = HeartbeatThread(options.beat_ns), Recorder()
    server = LinkServer(greet("router"), events, heartbeat, options)
    port = await server.start(HOST)
    busy = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, options)
    # The loop stands still for both ends; what the heartbeat sends meanwhile is found afterwards.
    time.sleep(1.0)
    await asyncio.sleep(0.7)
    assert events.down == []
    assert busy.open
    await server.stop("done")
    heartbeat.stop()


def test_a_busy_loop_is_not_taken_for_dead() -> None:
    run(lambda: stay_busy(LinkOptions(silence_ns=ms(400))))


def test_a_silent_peer_is_taken_for_dead() -> None:
    async def test() -> None:
        options = LinkOptions(silence_ns=ms(400))
        heartbeat, still = HeartbeatThread(options.beat_ns), HeartbeatThread(ms(3_600_000))
        events = Recorder()
        server = LinkServer(greet("router"), events, heartbeat, options)
        port = await server.start(HOST)
        silent = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), still, options)
        await until(lambda: events.down)
        # From 400 ms on; a machine that is busy looks a little later.
        assert events.down[0].code is CloseCode.SILENT
        heard_ms = int(events.down[0].detail.removeprefix("nothing heard for ").split()[0])
        assert 400 <= heard_ms < 1000
        await until(lambda: not silent.open)
        await server.stop("done")
        heartbeat.stop()
        still.stop()

    run(test)


def test_a_loop_that_hangs_is_noticed_from_beside_it() -> None:
    async def test() -> None:
        options = replace(OPTIONS, silence_ns=ms(40))
        heartbeat, hung = HeartbeatThread(options.beat_ns), threading.Event()
        post = asyncio.get_running_loop().call_soon_threadsafe
        heartbeat.watch_loop(LoopWatch(post, 50, hung.set))
        server = LinkServer(greet("router"), Recorder(), heartbeat, OPTIONS)
        port = await server.start(HOST)
        await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, OPTIONS)
        for _ in range(20):
            # Busy, time and again, and never for long.
            time.sleep(0.05)
            await asyncio.sleep(0.01)
        assert not hung.is_set()
        # On this thread: the loop stands still until the other one has noticed.
        assert hung.wait(30)
        await server.stop("done")
        heartbeat.stop()

    run(test)


def test_peer_that_does_not_read_is_cut_and_others_are_refused_in_words() -> None:
    async def test() -> None:
        options = LinkOptions(silence_ns=ms(5000), buffer_bytes_max=1 << 20)
        heartbeat, events = HeartbeatThread(options.beat_ns), Recorder()
        server = LinkServer(greet("router"), events, heartbeat, options)
        port = await server.start(HOST)
        link = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, options)
        await until(lambda: events.up)
        link.transport.pause_reading()
        while not events.down:
            events.up[0].send(Payload(1, "UINT8", (1 << 18,), bytes(1 << 18)))
            await asyncio.sleep(0)
        assert events.down[0].code is CloseCode.CONGESTED
        refused = Recorder()
        # One that speaks no other version.
        later = replace(options, speaks=(PROTOCOL + 1,))
        with pytest.raises(LinkError, match=f"backend 1 speaks protocol {PROTOCOL + 1}"):
            await connect(f"{HOST}:{port}", greet("backend"), refused, heartbeat, later)
        with pytest.raises(LinkError, match="cannot be reached"):
            await connect(f"{HOST}:1", greet("backend"), refused, heartbeat, options)
        link.transport.resume_reading()
        await server.stop("done")
        heartbeat.stop()

    run(test)


def test_a_link_to_a_peer_that_does_not_read_ends_all_the_same() -> None:
    async def test() -> None:
        options = LinkOptions(silence_ns=ms(30_000))
        heartbeat, events = HeartbeatThread(options.beat_ns), Recorder()
        server = LinkServer(greet("router"), events, heartbeat, options)
        port = await server.start(HOST)
        link = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, options)
        await until(lambda: events.up)
        link.transport.pause_reading()
        for _ in range(64):
            events.up[0].send(Payload(1, "UINT8", (1 << 18,), bytes(1 << 18)))
        events.up[0].flush()
        assert events.up[0].backlog
        # Long before the peer's silence would be noticed, and before the test's own time is up.
        async with asyncio.timeout(10):
            await server.stop("done")
        assert events.down == [Closed(CloseCode.SHUTDOWN, "done")]
        link.transport.abort()
        heartbeat.stop()

    run(test)


async def send_large_frames(options: LinkOptions) -> None:
    """They and the backlog keep their order, and the goodbye comes last."""
    heartbeat = HeartbeatThread(ms(1))
    got: list[int] = []

    class Reader(Recorder):
        def on_messages(self, link: Link, messages: list[Message]) -> None:
            got.extend(each.rid for each in messages if isinstance(each, Payload))

    server = LinkServer(greet("router"), Reader(), heartbeat, options)
    port = await server.start(HOST)
    link = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, options)
    # Heartbeats every millisecond from their thread must never cut into a frame.
    for rid in range(2000):
        link.send(Payload(rid, "UINT8", (1,), bytes(rid * 100)))
        if rid % 7 == 0:
            link.flush()
        if rid % 50 == 0:
            await asyncio.sleep(0.002)
    await until(lambda: len(got) == 2000)
    assert got == list(range(2000))
    await server.stop("done")
    assert await link.ended == Closed(CloseCode.SHUTDOWN, "done", by_peer=True)
    heartbeat.stop()


def test_large_frames_and_backlog_keep_their_order() -> None:
    run(lambda: send_large_frames(OPTIONS))
