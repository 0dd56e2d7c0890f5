"""Event loops for users' functions: each pipeline has a thread, and keeps nobody else waiting."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol

from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import SECOND
from fermata.router.links.heartbeat import Clock

HELD_NS = SECOND
"""A thread that takes nothing for so long is held by a function, and gets no more queries."""
HELD_MAX = 4
"""Threads of one function that may be held; with more, its queries are refused."""


class FunctionLoop(Protocol):
    """An event loop on which functions run."""

    loop: asyncio.AbstractEventLoop

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have this called on the functions' loop soon; to be called on the frontend's."""

    def reply(self, call: Callable[..., object], *args: Any) -> None:
        """Have this called on the frontend's loop soon; to be called on the functions'."""

    def is_held(self, now_ns: int) -> bool:
        """Whether a function keeps the loop from going on."""


class OwnLoop:
    """The frontend's own loop, where functions are known to hold nothing up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def post(self, call: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon(call, *args)

    def reply(self, call: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon(call, *args)

    def is_held(self, now_ns: int) -> bool:
        return False


class LoopsOfFunctions(Protocol):
    """A loop for each function of the user's."""

    def of(self, function: str) -> FunctionLoop | None:
        """The loop of a function; None where it holds too many."""

    def close(self) -> None: ...


class OwnLoops:
    """The frontend's own loop for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = OwnLoop(loop)

    def of(self, function: str) -> FunctionLoop | None:
        return self.loop

    def close(self) -> None: ...


class ThreadLoop:
    """A loop in a thread of its own. A function that holds it holds no other pipeline's."""

    def __init__(self, name: str, frontend: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_warn)
        self.frontend = frontend
        self.clock = clock
        self.posted = 0
        self.taken = 0
        """Written by the thread alone; the rest by the frontend."""
        self.seen = 0
        """Count of what was taken at that time, and since when."""
        self.seen_at_ns = clock()
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def post(self, call: Callable[..., object], *args: Any) -> None:
        if self.taken != self.seen or self.posted == self.taken:
            self.seen, self.seen_at_ns = self.taken, self.clock()
        self.posted += 1
        self.loop.call_soon_threadsafe(self._take, call, args)

    def _take(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.taken += 1
        call(*args)

    def reply(self, call: Callable[..., object], *args: Any) -> None:
        # A function may outlive the frontend by a moment, while that shuts down.
        if not self.frontend.is_closed():
            self.frontend.call_soon_threadsafe(call, *args)

    def is_held(self, now_ns: int) -> bool:
        waits = self.posted != self.taken and self.taken == self.seen
        return waits and now_ns - self.seen_at_ns > HELD_NS

    def stop(self) -> None:
        """End the thread, once it takes something again."""
        self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.stopped = True
        self.loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self.stopped:
            try:
                self.loop.run_forever()
            # Tasks that a function has made may ask the process to exit.
            except (SystemExit, KeyboardInterrupt) as error:
                LOG.warning("a pipeline's function tried to exit", extra=fields(error=repr(error)))
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        # Tasks hear of it in the next round, and those that await them in the one after.
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.loop.close()


def _warn(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tasks that a function has left behind: their errors are nobody's else."""
    error = context.get("exception") or context.get("message")
    LOG.warning("a task of a pipeline's function failed", extra=fields(error=repr(error)))


class FunctionLoops:
    """The loop of each function. One that is held is left alone, and another takes its place."""

    def __init__(self, frontend: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.frontend = frontend
        self.clock = clock
        self.loops: dict[str, list[ThreadLoop]] = {}
        """By function: those that are held, and last the one in use."""

    def of(self, function: str) -> FunctionLoop | None:
        """The loop of a function; None where too many of its threads are held."""
        loops, now_ns = self.loops.setdefault(function, []), self.clock()
        if loops and not loops[-1].is_held(now_ns):
            return loops[-1]
        free = next((each for each in loops if not each.is_held(now_ns)), None)
        if free is not None:
            # One that was held before.
            loops.remove(free)
            loops.append(free)
            return free
        if len(loops) >= HELD_MAX:
            return None
        loops.append(ThreadLoop(function, self.frontend, self.clock))
        return loops[-1]

    def close(self) -> None:
        for loops in self.loops.values():
            for each in loops:
                each.stop()
