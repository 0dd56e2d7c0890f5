"""Once a second each process tells its router what it has counted, and Ray's exporter too."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from fermata.foundation.units import SECOND

STATM = Path("/proc/self/statm")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PeriodicReport:
    """Calls `tell` with how late the loop came to it, which says how busy the process is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[int], None]) -> None:
        self.loop = loop
        self.tell = tell
        self._arm()

    def _arm(self) -> None:
        self.due_at_ns = time.monotonic_ns() + SECOND
        self.timer = self.loop.call_later(1.0, self._on_due)

    def _on_due(self) -> None:
        late_ns = max(0, time.monotonic_ns() - self.due_at_ns)
        self._arm()
        self.tell(late_ns)

    def close(self) -> None:
        self.timer.cancel()


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        return int(STATM.read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
