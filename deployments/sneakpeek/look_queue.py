"""Looks taken together on a thread, off the event loop of a frontend or a backend."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import NEVER, ms

Votes = tuple[float, ...]
"""Votes for each class; none where there was no look."""
TakeLooks = Callable[[str, Sequence[Any]], Sequence[Votes]]
"""Votes on samples of an application; called on a thread."""


@dataclass(frozen=True, slots=True)
class LookLimits:
    """Limits of a queue of looks."""

    batch_max: int = 256
    """Samples that one job votes on."""
    waiting_max: int = 1024
    """Beyond that inputs come faster than votes, and a vote would come too late."""
    batch_ns: int = ms(50)
    """Time that one job should take: votes come together, so the first waits for the last."""
    smoothing: float = 0.2
    """Weight of one job in the time of a look."""


@dataclass(frozen=True, slots=True)
class WaitingLook:
    """A sample that is to be looked at."""

    rid: int
    application: str
    sample: Any
    asker: int = 0
    """Whatever whoever asks wants to know once there are votes."""
    until_ns: int = NEVER
    """A vote is of no use later."""


@dataclass(frozen=True, slots=True)
class LooksTaken:
    """Results of one job."""

    votes: list[tuple[WaitingLook, Votes]]
    took_ns: dict[str, float]
    """Time of one look, by application."""
    cpu_ns: int = 0


class LookTimes:
    """Time of one look, as measured lately, by application."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing
        self.usual_ns: dict[str, float] = {}

    def of(self, application: str) -> float:
        return self.usual_ns.get(application, 0.0)

    def learn(self, application: str, took_ns: float) -> None:
        usual_ns = self.usual_ns.get(application, took_ns)
        self.usual_ns[application] = usual_ns + self.smoothing * (took_ns - usual_ns)

    def is_late(self, application: str, before: int, within_ns: int) -> bool:
        """Whether a look would come too late behind so many others."""
        return before * self.of(application) > within_ns


class LookQueue:
    """Runs one job at a time, on a thread; samples that come meanwhile make up the next one."""

    def __init__(
        self,
        look: TakeLooks,
        pool: Executor,
        answer: Callable[[WaitingLook, Votes], None],
        limits: LookLimits | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`answer` is called on the loop, once for each sample, without votes where none came."""
        self.look = look
        self.pool = pool
        self.answer = answer
        self.limits = limits or LookLimits()
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.times = LookTimes(self.limits.smoothing)
        self.waiting: list[WaitingLook] = []
        self.busy = False
        self.failed = 0
        """Jobs that raised an error; their samples are answered without votes."""
        self.cpu_ns = 0
        """CPU time of all jobs."""

    def has_room(self, application: str, within_ns: int = NEVER) -> bool:
        """Whether a look would be in time."""
        ahead = len(self.waiting)
        late = self.times.is_late(application, ahead, within_ns)
        return not late and ahead < self.limits.waiting_max

    def add(self, look: WaitingLook) -> None:
        self.waiting.append(look)
        if not self.busy:
            self._take_next()

    def prepare(self, work: Callable[[], None]) -> None:
        """Have the thread do this before any look."""

        def job() -> LooksTaken:
            began_ns = time.thread_time_ns()
            work()
            return LooksTaken([], {}, time.thread_time_ns() - began_ns)

        self._start(job, [])

    def _take_next(self) -> None:
        each_ns = self.times.of(self.waiting[0].application)
        limits = self.limits
        size = limits.batch_max
        if each_ns * size > limits.batch_ns:
            size = max(1, int(limits.batch_ns / each_ns))
        batch, self.waiting = self.waiting[:size], self.waiting[size:]
        self._start(lambda: self._take(batch), batch)

    def _start(self, work: Callable[[], LooksTaken], batch: list[WaitingLook]) -> None:
        self.busy = True
        job = self.loop.run_in_executor(self.pool, work)
        job.add_done_callback(lambda done: self._on_done(done, batch))

    def _take(self, batch: list[WaitingLook]) -> LooksTaken:
        """Votes on each sample, in a thread; nobody waits for those of samples that are late."""
        began_ns, now_ns = time.thread_time_ns(), self.clock()
        late = [each for each in batch if each.until_ns < now_ns]
        found: list[tuple[WaitingLook, Votes]] = [(each, ()) for each in late]
        took_ns: dict[str, float] = {}
        in_time = [each for each in batch if each.until_ns >= now_ns]
        for application in dict.fromkeys(each.application for each in in_time):
            mine = [each for each in in_time if each.application == application]
            from_ns = time.monotonic_ns()
            votes = self.look(application, [each.sample for each in mine])
            took_ns[application] = (time.monotonic_ns() - from_ns) / len(mine)
            found += zip(mine, votes, strict=True)
        return LooksTaken(found, took_ns, time.thread_time_ns() - began_ns)

    def _on_done(self, job: "asyncio.Future[LooksTaken]", batch: list[WaitingLook]) -> None:
        if job.cancelled():
            return
        error = job.exception()
        taken = LooksTaken([(each, ()) for each in batch], {})
        if error is None:
            taken = job.result()
        else:
            if not self.failed:
                LOG.warning("cannot look at requests", extra=fields(reason=repr(error)))
            self.failed += 1
        self.cpu_ns += taken.cpu_ns
        for application, took_ns in taken.took_ns.items():
            self.times.learn(application, took_ns)
        for look, votes in taken.votes:
            self.answer(look, votes)
        self.busy = False
        if self.waiting:
            self._take_next()
