"""Virtual time: one agenda for every process, and an event loop for each of them.

What runs here is the production code with its tasks, timers and futures. A process may be killed,
stopped (nothing of it runs) or made busy (its loop does not run, its threads do).
"""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from fermata.foundation.units import SECOND, ms

if TYPE_CHECKING:
    from fermata.fault_simulator.environment.network import SimulatedNetwork

THREAD_NS = ms(8)
EARLY_NS = ms(1) * 9 // 10
"""uvloop fires its timers up to this much before they are due."""


class InvariantViolationError(Exception):
    """An invariant does not hold."""


class World:
    """The agenda. Same seed, same story."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ns = SECOND
        self.wall_ns = 1_700_000_000 * SECOND
        """Wall time less virtual time; it may step either way."""
        self.sequence = 0
        self.agenda: list[tuple[int, int, VirtualLoop | None, bool, Callable[[], object]]] = []
        """(when, order, whose, whether a thread's, what)."""
        self.looks: list[Callable[[VirtualLoop], None]] = []
        """Called after each step of a process."""
        self.trouble: list[str] = []
        """Exceptions that no code of the process itself has handled."""
        self.said: list[str] | None = None
        """The story, where someone wants to read it."""
        self.network: SimulatedNetwork
        self.memory: dict[str, memoryview] = {}
        """That processes share, by name."""

    def rng(self, name: str) -> random.Random:
        """A source of chance of its own for everyone, so that one more draw by one does not
        change what the others see."""
        return random.Random(f"{self.seed}/{name}")

    def say(self, *words: object) -> None:
        if self.said is not None:
            self.said.append(f"{(self.now_ns - SECOND) / 1e6:10.3f} " + " ".join(map(str, words)))

    def wall_ms(self) -> int:
        return (self.wall_ns + self.now_ns) // 1_000_000

    def enter(
        self,
        at_ns: int,
        call: Callable[[], object],
        loop: "VirtualLoop | None" = None,
        thread: bool = False,
    ) -> None:
        """Have this called then: for a process on its loop or in a thread, or for nobody."""
        self.sequence += 1
        if at_ns < self.now_ns:
            at_ns = self.now_ns
        heappush(self.agenda, (at_ns, self.sequence, loop, thread, call))

    def after(self, wait_ns: int, call: Callable[[], object]) -> None:
        self.enter(self.now_ns + wait_ns, call)

    def run_until(self, until_ns: int) -> None:
        """Play everything that is due by then."""
        agenda = self.agenda
        while agenda and agenda[0][0] <= until_ns:
            self.now_ns, _, loop, thread, call = heappop(agenda)
            if loop is None:
                call()
            elif loop.alive:
                loop.step(call, thread)
        self.now_ns = until_ns


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one process; just what our processes ask of a loop."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.rng(name)
        self.skew_ns = self.rng.randrange(1_000_000 * SECOND)
        """Monotonic clocks of two processes have nothing in common but their pace, roughly."""
        self.pace = 1.0
        """Seconds of this clock in a second of the world."""
        self.paced_from_ns = 0
        """When the world had that pace first."""
        self.alive = True
        self.stopped = False
        self.busy = False
        self.held_ns = 0
        """How long it has been stopped or busy, up to the last time it went on."""
        self.held_since_ns = 0
        self.parked: list[tuple[bool, Callable[[], object]]] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """That have not ended."""
        self.thread_ns = THREAD_NS
        """How long a thread takes at most."""
        self.may_fail: tuple[type[Exception], ...] = ()
        """Errors that tasks may end with: someone looks at them."""

    def clock(self) -> int:
        now_ns = self.world.now_ns
        if self.pace != 1.0:
            now_ns += round((now_ns - self.paced_from_ns) * (self.pace - 1.0))
        return now_ns + self.skew_ns

    def set_pace(self, pace: float) -> None:
        """Have its clock go faster or slower from now on; it never goes back."""
        self.skew_ns = self.clock() - self.world.now_ns
        self.pace, self.paced_from_ns = pace, self.world.now_ns

    @property
    def held(self) -> bool:
        return self.stopped or self.busy

    # Faults of a process

    def step(self, call: Callable[[], object], thread: bool) -> None:
        if self.stopped or (self.busy and not thread):
            self.parked.append((thread, call))
            return
        asyncio._set_running_loop(self)
        try:
            call()
        finally:
            asyncio._set_running_loop(None)
        for look in self.world.looks:
            look(self)

    def hold(self, stopped: bool) -> None:
        """SIGSTOP, or a loop that something keeps busy."""
        self.held_since_ns = self.world.now_ns
        self.stopped, self.busy = stopped, not stopped

    def go_on(self) -> None:
        if not self.held:
            return
        self.held_ns += self.world.now_ns - self.held_since_ns
        self.stopped = self.busy = False
        parked, self.parked = self.parked, []
        for thread, call in parked:
            self.world.enter(self.world.now_ns, call, self, thread)

    def die(self) -> None:
        """SIGKILL: whoever had a connection to it sees its end."""
        self.alive = False
        self.parked.clear()
        for task in self.tasks:
            work = task.get_coro()
            # Python would miss coroutines that were never started.
            if (
                inspect.iscoroutine(work)
                and inspect.getcoroutinestate(work) == inspect.CORO_CREATED
            ):
                work.close()
        self.world.network.drop(self)

    # asyncio.AbstractEventLoop

    def time(self) -> float:
        return self.clock() / SECOND

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.world.enter(self.world.now_ns, partial(_run, handle), self)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        wait_ns = round((round(when * SECOND) - self.clock()) / self.pace)
        if wait_ns > ms(1):
            wait_ns -= self.rng.randrange(EARLY_NS)
        self.world.enter(self.world.now_ns + wait_ns, partial(_run, handle), self)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self, name=name)
        self.tasks[task] = None
        task.add_done_callback(self._on_task)
        return task

    def _on_task(self, task: "asyncio.Task[Any]") -> None:
        del self.tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, self.may_fail):
            self.call_exception_handler({"exception": task.exception()})

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> Awaitable[Any]:
        """A thread that takes its time, then does it at once."""
        future = self.create_future()

        def work() -> None:
            try:
                value = func(*args)
            # As a thread pool does: whatever it was goes to whoever waits.
            except Exception as error:
                self.call_soon(settle, future, None, error)
            else:
                self.call_soon(settle, future, value, None)

        self.world.enter(
            self.world.now_ns + self.rng.randrange(self.thread_ns), work, self, thread=True
        )
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.Protocol]:
        return await self.world.network.connect(self, protocol_factory, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> Any:
        return self.world.network.listen(self, protocol_factory)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.alive:
            # Work that a killed process leaves unfinished is ignored.
            return
        error = context.get("exception")
        self.world.trouble.append(f"{self.name}: {error!r} {context.get('message', '')}")

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return not self.alive

    def is_running(self) -> bool:
        return self.alive

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays on the agenda, and does nothing when its time has come."""

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Begin a task of the process; from outside, as an operating system would."""
        self.world.enter(self.world.now_ns, lambda: self.create_task(work()), self)


def new_process(world: World, name: str) -> VirtualLoop:
    # Parts of an event loop that are left out are never called.
    return VirtualLoop(world, name)  # type: ignore[abstract]


def settle(future: "asyncio.Future[Any]", value: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()
