"""The control plane and the routers of two seats: whom it asks, and what it tells again."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from test_scaling_loop import _scaled, snapshot

from fermata.deployments.control.leader_client import ANSWER_S, LOOK_S, LeaderClient
from fermata.deployments.control.scaling import ScalingLoop
from fermata.foundation.errors import ConfigError, GoneError, NoAnswerError
from fermata.partitioner.plan import Plan
from fermata.profiles.profile import linear
from fermata.router.telemetry.snapshot import PlacementSnapshot, RouterSnapshot

SOON_S = 2 * LOOK_S + 0.5


class Router:
    """Leads in a term, or waits; places applications at once."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.away = False
        self.error: Exception | None = None
        self.wanted: list[int] = []
        self.home = {"a": 0, "b": 0}
        self.asked = 0

    async def leading(self) -> int:
        self.asked += 1
        if self.error is not None:
            raise self.error
        while self.away:
            await asyncio.sleep(0.01)
        return self.term

    async def _leads(self) -> None:
        if not await self.leading():
            raise NoAnswerError("this router waits")

    async def snapshot(self) -> RouterSnapshot:
        await self._leads()
        told = snapshot(1, 0, a=(0, 0, 0), b=(0, 0, 0))
        placed = PlacementSnapshot(dict(self.home), {}, [])
        return replace(told, term=self.term, wanted=self.wanted, placement=placed)

    async def place(self, plan: Plan) -> list[str]:
        await self._leads()
        self.home |= plan.home
        return []

    async def set_target(self, wanted: list[int]) -> None:
        await self._leads()
        self.wanted = wanted


def play(story: Callable[[LeaderClient, Router, Router], Awaitable[None]]) -> None:
    """The first router leads, the second one waits."""

    async def run() -> None:
        seats, first, second = LeaderClient(), Router(4), Router(0)
        tasks = [
            asyncio.ensure_future(seats.keep(each))  # type: ignore[arg-type]
            for each in (first, second)
        ]
        await seats.found
        await story(seats, first, second)
        for task in tasks:
            task.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_router_that_is_stopped_holds_nobody_up() -> None:
    async def story(seats: LeaderClient, first: Router, second: Router) -> None:
        first.away, second.term = True, 5
        began_s = time.monotonic()
        assert (await seats.snapshot()).term == 5
        assert time.monotonic() - began_s < ANSWER_S + 1
        # It comes back, and has not heard yet that another one leads.
        first.away = False
        await asyncio.sleep(SOON_S)
        assert (await seats.snapshot()).term == 5

    play(story)


def test_nobody_answers_where_nobody_leads() -> None:
    async def story(seats: LeaderClient, first: Router, second: Router) -> None:
        first.term = 0
        await asyncio.sleep(SOON_S)
        with pytest.raises(NoAnswerError, match="no router leads"):
            await seats.snapshot()

    play(story)


def test_a_router_that_is_away_is_not_asked_again_and_again() -> None:
    async def story(seats: LeaderClient, first: Router, second: Router) -> None:
        first.away = True
        await asyncio.sleep(ANSWER_S + SOON_S)
        asked = first.asked
        for _ in range(5):
            with pytest.raises(NoAnswerError, match="does not answer"):
                await seats.snapshot()
        await asyncio.sleep(SOON_S)
        assert first.asked == asked

    play(story)


@pytest.mark.parametrize("error", [GoneError("ended"), ConfigError("slo_ms=1 is below 3")])
def test_what_nothing_can_follow_ends_the_looking(error: Exception) -> None:
    async def run() -> None:
        router = Router(4)
        router.error = error
        seats = LeaderClient()
        looking = asyncio.ensure_future(seats.keep(router))  # type: ignore[arg-type]
        with pytest.raises(type(error)):
            await seats.found
        await looking

    with pytest.raises(type(error)):
        asyncio.run(asyncio.wait_for(run(), 20))


def test_another_router_is_told_targets_and_plan_at_once() -> None:
    async def story(seats: LeaderClient, first: Router, second: Router) -> None:
        profiles = {"a-1": linear("a", 1, 5), "b-1": linear("b", 1, 5)}
        first.home, first.wanted = {"a": 1, "b": 0}, [3, 2]
        scaling = ScalingLoop(_scaled(every_s=300), profiles, seats, Cluster())  # type: ignore[arg-type]
        await scaling.start()
        first.away, second.term = True, 5
        await asyncio.sleep(2 * SOON_S)
        assert second.home == {"a": 1, "b": 0}
        assert second.wanted == [3, 2]
        # The same one starts anew.
        second.term, second.wanted, second.home = 6, [], {"a": 0, "b": 0}
        await asyncio.sleep(2 * SOON_S)
        assert (second.home, second.wanted) == ({"a": 1, "b": 0}, [3, 2])
        # What another control plane has told it stays.
        second.term, second.wanted = 7, [1, 1]
        await asyncio.sleep(SOON_S)
        assert second.wanted == [1, 1]
        scaling.check()
        scaling.stop()

    play(story)


class Cluster:
    async def backends_there(self) -> int:
        return 2

    async def device_bytes(self) -> int:
        return 0
