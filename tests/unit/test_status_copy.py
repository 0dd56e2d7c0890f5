"""Many who read `/status` ask the router once."""

import asyncio
from typing import Any

import pytest
from snapshots import application, router

from fermata.deployments.control.canaries import Canaries
from fermata.deployments.control.router_poller import RouterPoller
from fermata.foundation.errors import NoAnswerError
from fermata.router.telemetry.snapshot import RouterSnapshot


class CountingLeader:
    """A router that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    async def snapshot(self) -> RouterSnapshot:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise NoAnswerError("it is away")
        return router({"cats": application(answered={"good": self.asked})})


def poller(leader: Any, copy_s: float = 60.0) -> RouterPoller:
    found = RouterPoller(leader, "test", Canaries({}), copy_s)
    found.task.cancel()
    return found


def test_a_flood_of_readers_is_one_question() -> None:
    async def play() -> int:
        leader = CountingLeader()
        watch = poller(leader)
        await asyncio.gather(*(watch.status() for _ in range(1000)))
        for _ in range(1000):
            await watch.status()
        return leader.asked

    assert asyncio.run(play()) == 1


def test_a_copy_is_not_handed_out_for_long() -> None:
    async def play() -> list[int]:
        watch = poller(CountingLeader(), copy_s=-1.0)
        told = [await watch.status() for _ in range(3)]
        return [each.router.applications["cats"].answered["good"] for each in told]

    assert asyncio.run(play()) == [1, 2, 3]


def test_a_question_that_failed_is_asked_again_and_one_who_gives_up_stops_nobody() -> None:
    async def play() -> int:
        leader = CountingLeader()
        watch = poller(leader)
        leader.away = True
        with pytest.raises(NoAnswerError):
            await watch.status()
        leader.away = False
        first = asyncio.ensure_future(watch.status())
        second = asyncio.ensure_future(watch.status())
        await asyncio.sleep(0)
        first.cancel()
        await second
        return leader.asked

    assert asyncio.run(play()) == 2
