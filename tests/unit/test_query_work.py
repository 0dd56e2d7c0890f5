"""Work for queries: on the loop where it is short, in a thread where it is not."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from fermata.deployments.frontend.requests.queries.begun_together import (
    AWAITED_NS_MAX,
    BegunTogether,
)
from fermata.deployments.frontend.requests.queries.driver_means import INLINE_NS_MAX, DriverMeans
from fermata.foundation.learnt_time import LearntTime
from fermata.foundation.units import ms


class Clock:
    """Time that work spends, as tests say."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


async def played(took_ns: list[int], fails: bool = False) -> list[tuple[bool, Any]]:
    """For each piece of work: whether it ran on the loop, and its result."""
    clock, loop = Clock(), asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        driver: Any = SimpleNamespace(
            loop=loop,
            pool=pool,
            clock=clock,
            observer=None,
            limits=SimpleNamespace(pixels_max=1),
            table=SimpleNamespace(counts=None, limits=SimpleNamespace(grace_ns=0)),
        )
        means, cost = DriverMeans(driver), LearntTime()
        found: list[tuple[bool, Any]] = []
        for each_ns in took_ns:
            ended: asyncio.Future[Any] = loop.create_future()
            threads: list[int] = []

            def work(each_ns: int = each_ns, threads: list[int] = threads) -> int:
                threads.append(threading.get_ident())
                clock.now_ns += each_ns
                if fails:
                    raise ValueError("spilt milk")
                return each_ns

            means.run_aside(work, ended.set_result, cost)
            assert not threads or threads[0] != threading.get_ident(), "nothing runs at once"
            found.append((False, await ended))
            found[-1] = threads == [threading.get_ident()], found[-1][1]
        return found


def test_short_work_runs_on_the_loop_once_that_is_known() -> None:
    found = asyncio.run(played([INLINE_NS_MAX // 4] * 3))
    assert found == [(False, INLINE_NS_MAX // 4), *[(True, INLINE_NS_MAX // 4)] * 2]


def test_long_work_runs_in_threads_and_one_long_run_sends_it_there() -> None:
    short_ns, long_ns = INLINE_NS_MAX // 10, 100 * INLINE_NS_MAX
    assert [here for here, _ in asyncio.run(played([long_ns] * 3))] == [False] * 3
    found = asyncio.run(played([short_ns, short_ns, long_ns, short_ns, *[short_ns] * 200]))
    assert [here for here, _ in found[:4]] == [False, True, True, False]
    assert found[-1][0]


def test_errors_are_handed_over() -> None:
    for _, error in asyncio.run(played([1000], fails=True)):
        assert isinstance(error, ValueError)


class Loop:
    """Timers of a loop, in virtual time."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Any, Any]] = []

    def call_soon(self, call: Any) -> None:
        call()

    def call_later(self, delay_s: float, call: Any) -> Any:
        timer = SimpleNamespace(cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.timers.append((delay_s, call, timer))
        return timer

    def due(self) -> list[float]:
        return [delay_s for delay_s, _, timer in self.timers if not timer.cancelled]


def a_group(size: int) -> tuple[BegunTogether, Loop, Clock, list[int]]:
    loop, clock, told = Loop(), Clock(), list[int]()
    group = BegunTogether(loop, clock)  # type: ignore[arg-type]
    for _ in range(size):
        group.begin()
    return group, loop, clock, told


def test_one_that_began_alone_is_followed_at_once() -> None:
    group, loop, _, told = a_group(1)
    group.end(lambda: told.append(0))
    assert (told, loop.due()) == ([0], [])


def test_those_that_began_together_are_followed_together() -> None:
    group, loop, clock, told = a_group(3)
    clock.now_ns = ms(1)
    group.end(lambda: told.append(0))
    group.end(lambda: told.append(1))
    assert (told, loop.due()) == ([], [0.001])
    group.end(lambda: told.append(2))
    assert (told, loop.due()) == ([0, 1, 2], [])


def test_nobody_is_awaited_for_long() -> None:
    group, loop, clock, told = a_group(2)
    clock.now_ns = ms(500)
    group.end(lambda: told.append(0))
    ((delay_s, call, _),) = loop.timers
    assert delay_s == AWAITED_NS_MAX / 1e9
    call()
    assert told == [0]
    group.end(lambda: told.append(1))
    assert (told, loop.due()) == ([0, 1], [])
