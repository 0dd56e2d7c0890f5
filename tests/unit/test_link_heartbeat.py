"""Heartbeats of a process: one sick link is no matter of the others, nor is one bad attempt."""

import asyncio
from collections.abc import Callable

from fermata.foundation.units import ms
from fermata.router.links.closing import Closed
from fermata.router.links.connecting import PersistentLink
from fermata.router.links.heartbeat import HeartbeatThread, LoopWatch
from fermata.router.links.messages import PROTOCOL, Hello, Message
from fermata.router.links.session import LinkError
from fermata.router.links.transport import Link, LinkOptions

NEVER_BEATS = ms(1_000_000)


class Pulse:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1
        if self.error is not None:
            raise self.error


def test_a_link_that_cannot_beat_keeps_no_other_from_it() -> None:
    heartbeat = HeartbeatThread(NEVER_BEATS)
    links = [Pulse(RuntimeError("its TLS has ended")), Pulse(), Pulse()]
    for link in links:
        heartbeat.join(link)
    for _ in range(3):
        heartbeat.beat_all()
    heartbeat.stop()
    # The sick one is left to its peer, who hears nothing any more and cuts it.
    assert [link.beats for link in links] == [1, 3, 3]


def test_a_loop_that_hangs_is_told_from_one_that_is_busy() -> None:
    posted: list[Callable[[], None]] = []
    hung: list[bool] = []
    heartbeat = HeartbeatThread(NEVER_BEATS)
    heartbeat.watch_loop(LoopWatch(posted.append, 3, lambda: hung.append(True)))
    for _ in range(4):
        # Busy for three beats, then it turns.
        for _ in range(3):
            heartbeat.beat_all()
        assert len(posted) == 1
        posted.pop()()
    assert not hung
    for _ in range(4):
        heartbeat.beat_all()
    heartbeat.stop()
    assert hung


class Nobody:
    def on_up(self, link: Link) -> None: ...
    def on_messages(self, link: Link, messages: list[Message]) -> None: ...
    def on_down(self, link: Link, closed: Closed) -> None: ...
    def on_refused(self, link: Link, closed: Closed) -> None: ...


def test_whatever_an_attempt_fails_of_another_follows() -> None:
    asked: list[Exception] = []

    async def resolve() -> str:
        asked.append(LinkError("not there") if len(asked) % 2 else KeyError("the cluster's own"))
        raise asked[-1]

    async def test() -> None:
        heartbeat = HeartbeatThread(NEVER_BEATS)
        options = LinkOptions(backoff_ns_min=1, backoff_ns_max=1)
        kept = PersistentLink(
            resolve, lambda: Hello(PROTOCOL, "x", 0, 0), Nobody(), heartbeat, options
        )
        kept.start()
        while len(asked) < 4:
            await asyncio.sleep(0)
            assert not kept.task.done()
        await asyncio.sleep(0)
        assert kept.trouble
        await kept.stop("done")

    asyncio.run(test())
