"""Pauses of a process that prepares models on a device where another one serves."""

import time
from collections.abc import Callable
from typing import Final

REST: Final = 4.0
"""Times what a step took, in a process that serves meanwhile."""
REST_BESIDE: Final = 60.0
"""The same beside a process that serves: two processes on a GPU take turns, and batches that meet
a step take several times as long. So few may that nobody plans by them: routers plan with run times
that one batch in fifty exceeds."""

LOOK_S: Final = 0.05
"""How often a rest looks whether it may end."""


class Pace:
    """Rests between steps while somebody else is served."""

    def __init__(
        self,
        is_beside: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`is_beside` tells whether another process serves on the device."""
        self.is_beside = is_beside
        self.sleep = sleep
        self.hurries = False
        """Clients wait for this process: what can be done while it serves is left for later."""

    @property
    def puts_off(self) -> bool:
        """Whether only what serving needs is to be done now, and the rest once this one serves."""
        return self.hurries or self.is_beside()

    def rest(self, took_s: float) -> None:
        """Called after a step that kept the device busy for so long; ends when nobody else is
        served any more."""
        left_s = REST_BESIDE * took_s
        while left_s > 0.0 and self.is_beside():
            self.sleep(min(left_s, LOOK_S))
            left_s -= LOOK_S
