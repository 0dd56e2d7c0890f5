"""Looks at the router once a second, so that whoever asks hears of the last minute too."""

import asyncio
import logging
from typing import Any

import ray

from deployments.history import History

LOG = logging.getLogger("fermata")
LOOK_S = 1.0


class Watch:
    """The control plane's memory of how the router has fared."""

    def __init__(self, router: Any) -> None:
        self.router = router
        self.history = History()
        self.task = asyncio.get_running_loop().create_task(self._look())

    def rated(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """The snapshot, with what follows from it and from the last minute."""
        snapshot["bad_rates"] = self.history.bad_rates(snapshot)
        snapshot["idle_fractions"] = self.history.idle_fractions(snapshot)
        return snapshot

    def check(self) -> None:
        """Raise what has ended the looking."""
        if self.task.done() and not self.task.cancelled():
            self.task.result()

    def stop(self) -> None:
        self.task.cancel()

    async def _look(self) -> None:
        while True:
            try:
                self.history.add(dict(await self.router.snapshot.remote()))
            except ray.exceptions.RayError as error:
                # It is on its way back, or the control plane itself is about to end.
                LOG.info("no word from the router (%s)", error)
            await asyncio.sleep(LOOK_S)
