"""Work that takes too long for the router's own loop, done by another process.

`python -m router.aside` reads one pickled function from its input, calls it, and writes what it
returned. A thread would share the interpreter with the router and delay every decision.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable

NICENESS = 10
"""It may take its time; requests may not."""

Work = Callable[[], object]
Then = Callable[[object], None]


def do_now(work: Work, then: Then) -> None:
    """On the spot; for tests, and for drivers whose clock stands still meanwhile."""
    then(work())


class Aside:
    """Runs one piece of work after the other, each in a process of its own."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Work, Then]] = []
        self.running: asyncio.Task[None] | None = None
        self.failed = 0

    def do(self, work: Work, then: Then) -> None:
        """Have it done, and its result handed over on this loop; a failure is only counted."""
        self.waiting.append((work, then))
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self.waiting:
            work, then = self.waiting.pop(0)
            done, result = await call_elsewhere(work)
            if done:
                then(result)
            else:
                self.failed += 1
        self.running = None

    def stop(self) -> None:
        self.waiting.clear()
        if self.running is not None:
            self.running.cancel()


async def call_elsewhere(work: Work) -> tuple[bool, object]:
    """Whether it ran, and what it returned."""
    path = os.pathsep.join(each for each in sys.path if each)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router.aside",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        output, _ = await process.communicate(pickle.dumps(work))
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        return False, None
    return True, pickle.loads(output)


def main() -> None:
    os.nice(NICENESS)
    work = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(work()))


if __name__ == "__main__":
    main()
