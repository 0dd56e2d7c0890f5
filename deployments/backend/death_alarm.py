"""Early news of a death: a mutex that the kernel gives on before it clears a process's memory.

A killed process with a GPU keeps its sockets and file locks until its memory has been unmapped, a
tenth of a second and more. Robust mutexes are given on as soon as the thread that holds them ends.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fermata.foundation.logs import LOG, fields

MUTEX_BYTES = 64
"""More than a mutex takes on any machine."""
SHARED, ROBUST = 1, 1
"""PTHREAD_PROCESS_SHARED and PTHREAD_MUTEX_ROBUST."""


class DeathAlarm:
    """A mutex in a file: one process arms it, and another one hears of the end of that."""

    def __init__(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, MUTEX_BYTES)
            self.memory = mmap.mmap(file, MUTEX_BYTES)
        finally:
            os.close(file)
        self.mutex = ctypes.byref(ctypes.c_char.from_buffer(self.memory))
        # Calls through it leave the interpreter to other threads.
        self.library: Any = ctypes.CDLL(None)

    def arm(self) -> None:
        """Have the end of this process heard; on a file that nobody else has armed. Where there are
        no robust mutexes it stays unarmed, and the locks of files tell alone, later."""
        armed = threading.Event()

        def hold() -> None:
            try:
                self._lock_anew()
            except (AttributeError, OSError) as error:
                _warn(error)
                return
            finally:
                # Whoever arms it waits for this, on an event loop.
                armed.set()
            # The mutex goes with this thread, which nothing but the end of the process ends.
            threading.Event().wait()

        threading.Thread(target=hold, name="alarm", daemon=True).start()
        armed.wait()

    def _lock_anew(self) -> None:
        kind = ctypes.create_string_buffer(MUTEX_BYTES)
        self._call("pthread_mutexattr_init", kind)
        self._call("pthread_mutexattr_setpshared", kind, SHARED)
        self._call("pthread_mutexattr_setrobust", kind, ROBUST)
        self._call("pthread_mutex_init", self.mutex, kind)
        self._call("pthread_mutex_lock", self.mutex)

    def _call(self, name: str, *arguments: object) -> None:
        """AttributeError where the library has no such function, OSError where that fails."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise OSError(code, f"{name}: {os.strerror(code)}")

    def when_dead(self, call: Callable[[], object]) -> None:
        """Call this, from a thread of its own, once the process that armed it has ended. One that
        is only stopped has not, and of one that could not arm it nothing is heard."""

        def wait() -> None:
            try:
                self._call("pthread_mutex_lock", self.mutex)
            except (AttributeError, OSError) as error:
                if isinstance(error, OSError) and error.errno == errno.EOWNERDEAD:
                    call()
                else:
                    _warn(error)

        threading.Thread(target=wait, name="alarm", daemon=True).start()


def _warn(error: Exception) -> None:
    LOG.warning("deaths are heard by file locks alone", extra=fields(reason=str(error)))
