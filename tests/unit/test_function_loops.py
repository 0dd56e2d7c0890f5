"""Threads of users' functions: one that is held keeps nobody but its own pipeline waiting."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fermata.deployments.frontend.requests.queries.function_loops import (
    HELD_MAX,
    HELD_NS,
    FunctionLoop,
    FunctionLoops,
    ThreadLoop,
)


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@asynccontextmanager
async def loops_of(clock: Clock) -> AsyncIterator[FunctionLoops]:
    loops = FunctionLoops(asyncio.get_running_loop(), clock)
    try:
        yield loops
    finally:
        loops.close()
        for each in [each for some in loops.loops.values() for each in some]:
            await asyncio.to_thread(each.thread.join)


async def answered(loop: FunctionLoop) -> int:
    """The thread that takes what is posted now."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    loop.post(lambda: loop.reply(found.set_result, threading.get_ident()))
    return await found


def use(loops: FunctionLoops, name: str) -> FunctionLoop:
    loop = loops.of(name)
    assert loop is not None
    return loop


def test_each_function_has_a_thread_and_keeps_it() -> None:
    async def play() -> None:
        async with loops_of(Clock()) as loops:
            threads = [await answered(use(loops, name)) for name in ("a", "b", "a")]
            assert threads[0] == threads[2] != threads[1]
            assert threading.get_ident() not in threads

    asyncio.run(play())


def test_one_that_is_held_gets_no_more_queries_until_it_goes_on() -> None:
    async def play() -> None:
        clock, free = Clock(), threading.Event()
        async with loops_of(clock) as loops:
            first = use(loops, "a")
            held = await answered(first)
            begun = threading.Event()
            first.post(lambda: (begun.set(), free.wait()))
            await asyncio.to_thread(begun.wait)
            first.post(lambda: None)
            # It has taken all but the last, and nothing for a while.
            assert use(loops, "a") is first
            clock.now_ns += HELD_NS
            assert not first.is_held(clock.now_ns)
            first.post(lambda: None)
            clock.now_ns += HELD_NS + 1
            assert first.is_held(clock.now_ns)
            second = use(loops, "a")
            assert await answered(second) != held
            free.set()
            assert await answered(first) == held
            assert not first.is_held(clock.now_ns)

    asyncio.run(play())


def test_a_function_that_holds_many_threads_gets_no_more() -> None:
    async def play() -> None:
        clock, free = Clock(), threading.Event()
        async with loops_of(clock) as loops:
            for _ in range(HELD_MAX):
                loop = use(loops, "a")
                begun = threading.Event()
                loop.post(lambda begun=begun: (begun.set(), free.wait()))
                await asyncio.to_thread(begun.wait)
                loop.post(lambda: None)
                loop.post(lambda: None)
                clock.now_ns += HELD_NS + 1
            assert loops.of("a") is None
            # Another function is not concerned.
            await answered(use(loops, "b"))
            free.set()
            for each in loops.loops["a"]:
                await answered(each)
            assert loops.of("a") is not None

    asyncio.run(play())


def test_a_task_that_exits_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def play() -> None:
        async with loops_of(Clock()) as loops:
            loop = use(loops, "a")
            thread = await answered(loop)
            tasks: list[asyncio.Task[None]] = []
            loop.post(lambda: tasks.append(loop.loop.create_task(leave())))
            assert await answered(loop) == thread
            assert await answered(loop) == thread

    asyncio.run(play())
    assert "a pipeline's function tried to exit" in caplog.text


def test_what_comes_after_the_frontend_has_ended_is_nobodys() -> None:
    gone = asyncio.new_event_loop()
    gone.close()
    loop = ThreadLoop("a", gone, Clock())
    seen: list[int] = []
    done = threading.Event()
    loop.post(lambda: (loop.reply(seen.append, 1), done.set()))
    assert done.wait(10)
    loop.stop()
    loop.thread.join(10)
    assert not loop.thread.is_alive()
    assert seen == []
