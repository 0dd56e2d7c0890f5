"""Work that takes too long for the router's own loop, done by another process.

`python -m fermata.router.live.subprocess_worker` reads pickled functions from its input, calls
each, and writes the results. A thread would share the interpreter with the router and delay every
decision. So would a new process for each piece: starting one holds the router up for milliseconds,
and takes half a second until it is at work.
"""

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

NICENESS = 10
"""Requests go first."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""For matrices as small as ours, more threads only double the CPU time."""
ENDING_S = 0.5
"""A process that has closed its output gets so long to end by itself."""
LENGTH = 8
"""Bytes before each pickle, which say how long it is."""

Work = Callable[[], object]
Then = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Failed:
    """Handed over in place of a result."""

    reason: str


def run_now(work: Work, then: Then) -> None:
    """Run it on the spot; for tests, and for drivers whose clock stands still meanwhile."""
    then(work())


class SubprocessWorker:
    """Runs one piece of work after the other in a process that stays."""

    def __init__(self, lasts_s_max: float = 300.0) -> None:
        """Work that takes longer than `lasts_s_max` hangs."""
        self.lasts_s_max = lasts_s_max
        self.waiting: list[tuple[Work, Then]] = []
        self.running: asyncio.Task[None] | None = None
        self.process: Process | None = None

    def submit(self, work: Work, then: Then) -> None:
        """Have it done, and its result or `Failed` handed over on this loop."""
        self.waiting.append((work, then))
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self.waiting:
                work, then = self.waiting.pop(0)
                then(await self._result(work))
        finally:
            self.running = None

    async def _result(self, work: Work) -> object:
        """The result of the work, or how it `Failed`; whatever fails ends the process."""
        try:
            if self.process is None or self.process.returncode is not None:
                self.process = await _start()
        except OSError as error:
            return Failed(f"no process could be started ({error.strerror})")
        try:
            output = await asyncio.wait_for(_ask(self.process, work), self.lasts_s_max)
        except TimeoutError:
            self.process.kill()
            await self._end()
            return Failed(f"took more than {self.lasts_s_max:g} s")
        except (asyncio.IncompleteReadError, ConnectionError):
            return Failed(f"ended with status {await self._end()}")
        result: object = pickle.loads(output)
        return result

    async def _end(self) -> int:
        """The status with which the process ends, by itself or not."""
        process, self.process = self.process, None
        assert process is not None
        try:
            return await asyncio.wait_for(process.wait(), ENDING_S)
        except TimeoutError:
            process.kill()
            return await process.wait()

    async def stop(self) -> None:
        """End what is under way; nothing more is handed over."""
        self.waiting.clear()
        if (running := self.running) is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            # Reads what is left in the pipes too, which then close.
            await self.process.communicate()


async def _start() -> Process:
    path = os.pathsep.join(each for each in sys.path if each)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fermata.router.live.subprocess_worker"),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
    )


async def _ask(process: Process, work: Work) -> bytes:
    """The pickled result."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.writelines(_framed(work))
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(LENGTH))
    return await process.stdout.readexactly(length)


def _framed(given: object) -> tuple[bytes, bytes]:
    pickled = pickle.dumps(given)
    return len(pickled).to_bytes(LENGTH), pickled


def serve(given: BinaryIO, results: BinaryIO) -> None:
    """Do pieces of work until there are no more. What one of them raises ends it."""
    while head := given.read(LENGTH):
        work: Work = pickle.loads(given.read(int.from_bytes(head)))
        results.writelines(_framed(work()))
        results.flush()


def main() -> None:
    os.nice(NICENESS)
    # What work prints is no result.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, results)


if __name__ == "__main__":
    main()
