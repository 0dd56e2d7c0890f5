"""An emulated GPU: a lock that is held for as long as a real one would run.

Needs Python alone: benchmarks run it in other servers, in environments that have nothing of ours.
"""

import ctypes
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

PR_SET_TIMERSLACK = 29
SPIN_NS = 60_000
"""Sleeping ends this much early and the rest is spun: threads wake tens of microseconds late."""


def sharpen_sleep() -> None:
    """Let this thread's sleeps end on time: by default Linux may add 50 us to each."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def sleep_until(at_ns: int) -> None:
    """Sleep until this time of `time.monotonic_ns`, precisely."""
    left_ns = at_ns - time.monotonic_ns()
    while left_ns > SPIN_NS:
        time.sleep((left_ns - SPIN_NS) / 1e9)
        left_ns = at_ns - time.monotonic_ns()
    while time.monotonic_ns() < at_ns:
        pass


class DeviceLock:
    """A lock that processes share by its path."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.fd)


class EmulatedGpu:
    """Runs one batch at a time; processes that name the same lock share it."""

    def __init__(self, lock_path: str = "") -> None:
        self.lock = DeviceLock(lock_path) if lock_path else None
        self.broken = ""
        """Why it runs nothing any more, as after an error that a real one does not recover from."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        with self.lock:
            yield

    def run(self, run_ns: int) -> None:
        """Hold the GPU for that long, once it is free."""
        self.check()
        with self.hold():
            sleep_until(time.monotonic_ns() + run_ns)

    def check(self) -> None:
        if self.broken:
            raise RuntimeError(self.broken)
