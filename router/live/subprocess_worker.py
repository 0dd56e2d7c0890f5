"""Work that takes too long for the router's own loop, done by another process.

`python -m fermata.router.live.subprocess_worker` reads one pickled function from its
input, calls it, and writes the result. A thread would share the interpreter with the
router and delay every decision.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass

NICENESS = 10
"""Requests go first."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""For matrices as small as ours, more threads only double the CPU time."""

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
    """Runs one piece of work after the other, each in a process of its own."""

    def __init__(self, lasts_s_max: float = 300.0) -> None:
        """Work that takes longer than `lasts_s_max` hangs."""
        self.lasts_s_max = lasts_s_max
        self.waiting: list[tuple[Work, Then]] = []
        self.running: asyncio.Task[None] | None = None

    def submit(self, work: Work, then: Then) -> None:
        """Have it done, and its result or `Failed` handed over on this loop."""
        self.waiting.append((work, then))
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self.waiting:
                work, then = self.waiting.pop(0)
                then(await run_in_subprocess(work, self.lasts_s_max))
        finally:
            self.running = None

    def stop(self) -> None:
        self.waiting.clear()
        if self.running is not None:
            self.running.cancel()


async def run_in_subprocess(work: Work, lasts_s_max: float) -> object:
    """The result of the work, or how it `Failed`."""
    path = os.pathsep.join(each for each in sys.path if each)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fermata.router.live.subprocess_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
        )
    except OSError as error:
        return Failed(f"no process could be started ({error.strerror})")
    try:
        given = pickle.dumps(work)
        output, _ = await asyncio.wait_for(process.communicate(given), lasts_s_max)
    except TimeoutError:
        return Failed(f"took more than {lasts_s_max:g} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        return Failed(f"ended with status {process.returncode}")
    result: object = pickle.loads(output)
    return result


def main() -> None:
    os.nice(NICENESS)
    work = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(work()))


if __name__ == "__main__":
    main()
