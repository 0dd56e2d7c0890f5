"""One armed timer on an event loop, exact to some tens of microseconds.

asyncio's own timers have a grain of 1 ms and fire up to that late, uvloop's up to 0.9 ms early.
Linux' timerfd takes nanoseconds and wakes the same epoll. Elsewhere the loop's timer serves,
checked and armed again.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from fermata.foundation.units import NEVER, SECOND

CLOCK_MONOTONIC = 1
TIMER_ABSTIME = 1


class PreciseTimer(Protocol):
    """Calls back at a time of `time.monotonic_ns`, never before it."""

    def set(self, at_ns: int) -> None:
        """Be called then, and not at the time given before; `NEVER` disarms."""

    def close(self) -> None: ...


class _TimeSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class TimerFd:
    """A kernel timer on the loop's own poll."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self.loop = loop
        self.call = call
        libc = ctypes.CDLL(None, use_errno=True)
        # Python's time.monotonic_ns reads CLOCK_MONOTONIC too, so absolute times agree.
        self.fd = libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.settime = libc.timerfd_settime
        self.spec = _TimeSpec()
        self.reference = ctypes.byref(self.spec)
        self.at_ns = NEVER
        loop.add_reader(self.fd, self._on_due)

    def set(self, at_ns: int) -> None:
        if at_ns == self.at_ns:
            return
        self.at_ns = at_ns
        spec = self.spec
        # Zero would disarm; a time long past fires at once.
        spec.value_s, spec.value_ns = (0, 0) if at_ns == NEVER else divmod(max(at_ns, 1), SECOND)
        self.settime(self.fd, TIMER_ABSTIME, self.reference, None)

    def close(self) -> None:
        self.loop.remove_reader(self.fd)
        os.close(self.fd)

    def _on_due(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            # Armed anew between the kernel's word and ours.
            return
        self.at_ns = NEVER
        self.call()


class LoopTimer:
    """The loop's timer, for systems without timerfd."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.loop = loop
        self.call = call
        self.clock = clock
        self.at_ns = NEVER
        self.handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        if at_ns == self.at_ns:
            return
        self.at_ns = at_ns
        self.close()
        if at_ns != NEVER:
            self._arm()

    def close(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None

    def _arm(self) -> None:
        left_ns = max(0, self.at_ns - self.clock())
        self.handle = self.loop.call_later(left_ns / SECOND, self._on_due)

    def _on_due(self) -> None:
        if self.clock() < self.at_ns:
            self._arm()
            return
        self.at_ns = NEVER
        self.handle = None
        self.call()


def precise_timer(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> PreciseTimer:
    """The most exact timer this system has."""
    if sys.platform == "linux":
        return TimerFd(loop, call)
    return LoopTimer(loop, call)
