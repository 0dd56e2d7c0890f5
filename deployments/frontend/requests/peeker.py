"""Looks at inputs while their requests wait: votes of SneakPeek models, off the event loop."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.router.links.messages import Evidence

BATCH_MAX = 256
"""Samples looked at in one go; the others follow."""
WAITING_MAX = 4 * BATCH_MAX
"""Beyond that inputs come faster than they can be looked at, and a look would come too late."""

Sample = tuple[int, str, NDArray[np.float32]]
"""Request, application, input."""


class Peeker:
    """One look at a time, on a thread: what comes meanwhile is looked at together, next. A request
    that was not looked at in time is scheduled by profiled accuracy."""

    def __init__(
        self,
        models: Mapping[str, SneakPeekModel],
        pool: Executor,
        send: Callable[[Evidence], None],
    ) -> None:
        self.models = models
        """By application."""
        self.pool = pool
        self.send = send
        self.loop = asyncio.get_running_loop()
        self.waiting: list[Sample] = []
        self.looking = False
        self.peeked = 0
        self.skipped = 0
        self.failed = 0
        """Looks that raised an error; their requests go on without evidence."""
        self.cpu_ns = 0
        """Spent on looking, all in all."""

    def take(self, rid: int, application: str, sample: NDArray[Any]) -> None:
        """Have an input looked at; it is copied, since its memory is given back early."""
        model = self.models.get(application)
        if model is None or sample.size != int(np.prod(model.input_shape)):
            return
        if len(self.waiting) >= WAITING_MAX:
            self.skipped += 1
            return
        self.waiting.append((rid, application, sample.astype(np.float32).reshape(-1)))
        if not self.looking:
            self._look()

    def _look(self) -> None:
        self.looking = True
        batch, self.waiting = self.waiting[:BATCH_MAX], self.waiting[BATCH_MAX:]
        job = self.loop.run_in_executor(self.pool, self._votes, batch)
        job.add_done_callback(self._on_votes)

    def _votes(self, batch: list[Sample]) -> tuple[list[Evidence], int]:
        """In a thread: the evidence of each sample, and the CPU time that it took."""
        began_ns = time.thread_time_ns()
        found: list[Evidence] = []
        for application in {each[1] for each in batch}:
            mine = [each for each in batch if each[1] == application]
            votes = self.models[application].index.votes(np.stack([each[2] for each in mine]))
            for (rid, _, _), row in zip(mine, votes.tolist(), strict=True):
                found.append(Evidence(rid, votes=tuple(row)))
        return found, time.thread_time_ns() - began_ns

    def _on_votes(self, job: "asyncio.Future[tuple[list[Evidence], int]]") -> None:
        if job.cancelled():
            return
        if job.exception() is not None:
            self.failed += 1
        else:
            found, cpu_ns = job.result()
            self.cpu_ns += cpu_ns
            self.peeked += len(found)
            for evidence in found:
                self.send(evidence)
        self.looking = False
        if self.waiting:
            self._look()
