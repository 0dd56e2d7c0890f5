"""Reports of a process once a second, to its router and to Ray's exporter."""

import asyncio
import time
from collections.abc import Callable

from fermata.foundation.units import SECOND


class PeriodicReport:
    """Calls `report` once a second with the delay of the loop, a measure of its load."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[int], None]) -> None:
        self.loop = loop
        self.report = report
        self._arm()

    def _arm(self) -> None:
        self.due_at_ns = time.monotonic_ns() + SECOND
        self.timer = self.loop.call_later(1.0, self._on_due)

    def _on_due(self) -> None:
        late_ns = max(0, time.monotonic_ns() - self.due_at_ns)
        self._arm()
        self.report(late_ns)

    def close(self) -> None:
        self.timer.cancel()
