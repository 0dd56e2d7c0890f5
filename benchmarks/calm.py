"""Measures on a machine that others share: waits for calm, and measures again what was disturbed.

A virtual machine's host may run something else for tens of milliseconds; Linux counts that as
stolen time. A server that misses a deadline then has not failed, so such a probe says nothing.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

STOLEN_MAX = 0.02
"""Share of the CPU time that was wanted; a probe that lost more is repeated."""
TRIES = 4
WAIT_S = 60.0
LOOK_S = 1.0
Found = TypeVar("Found")


class Stolen:
    """The share of the wanted CPU time that the host gave to others, since it was made."""

    def __init__(self) -> None:
        self.from_ticks = _ticks()

    def share(self) -> float:
        wanted, stolen = (
            after - before for before, after in zip(self.from_ticks, _ticks(), strict=True)
        )
        return stolen / wanted if wanted else 0.0


def _ticks() -> tuple[int, int]:
    """CPU time wanted and stolen so far."""
    fields = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, stolen = fields
    return user + nice + system + irq + softirq + stolen, stolen


def wait_for_calm(wait_s: float = WAIT_S) -> None:
    """Return when the host leaves the machine alone, or after that long."""
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s:
        stolen = Stolen()
        time.sleep(LOOK_S)
        if stolen.share() <= STOLEN_MAX:
            return


def undisturbed(probe: Callable[[], Found]) -> Found:
    """What the probe finds while the host leaves it alone; else the last of several tries."""
    for _ in range(TRIES - 1):
        stolen = Stolen()
        found = probe()
        if stolen.share() <= STOLEN_MAX:
            return found
        wait_for_calm()
    return probe()
