"""Votes of SneakPeek models on the inputs of waiting requests, off the event loop."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.pictures.picture import centre_square, whole_frame
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.router.links.messages import Evidence

Sample = tuple[int, str, NDArray[Any], bool]
"""Request, application, input, and whether a look may answer it."""


FITS = {"whole": whole_frame, "centre": centre_square}


def look(model: SneakPeekModel, samples: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """Votes [samples, classes] on inputs as they come."""
    if model.fit:
        make, side = FITS[model.fit], model.input_shape[1]
        samples = [make(each, side) for each in samples]
    flat = np.stack([each.reshape(-1) for each in samples])
    return model.index.votes(flat.astype(np.float32, copy=False))


@dataclass(frozen=True, slots=True)
class PeekerLimits:
    """Limits of a peeker."""

    batch_max: int = 256
    """Samples that one job votes on."""
    waiting_max: int = 1024
    """Beyond that inputs come faster than votes, and a vote would come too late."""


class Peeker:
    """Runs one job at a time, on a thread; inputs that come meanwhile make up the next one.

    A request without votes in time is scheduled by profiled accuracy.
    """

    def __init__(
        self,
        models: Mapping[str, SneakPeekModel],
        pool: Executor,
        send: Callable[[Evidence], None],
        limits: PeekerLimits | None = None,
    ) -> None:
        self.models = models
        """SneakPeek models by application."""
        self.limits = limits or PeekerLimits()
        self.pool = pool
        self.send = send
        self.loop = asyncio.get_running_loop()
        self.waiting: list[Sample] = []
        self.busy = False
        self.peeked = 0
        self.skipped = 0
        self.failed = 0
        """Jobs that raised an error; their requests go on without evidence."""
        self.cpu_ns = 0
        """CPU time of all jobs."""

    def class_counts(self) -> dict[str, int]:
        """Number of classes by application."""
        return {name: model.index.classes for name, model in self.models.items()}

    def take(self, rid: int, application: str, sample: NDArray[Any], answers: bool = True) -> None:
        """Queue an input for a vote; it is copied, since its memory is released early. `answers`:
        the client takes a look's answer for its own."""
        model = self.models.get(application)
        if model is None:
            return
        if len(self.waiting) >= self.limits.waiting_max or not model.sees(sample.shape):
            self.skipped += 1
            return
        self.waiting.append((rid, application, sample.copy(), answers))
        if not self.busy:
            self._vote_on_next()

    def _vote_on_next(self) -> None:
        self.busy = True
        size = self.limits.batch_max
        batch, self.waiting = self.waiting[:size], self.waiting[size:]
        job = self.loop.run_in_executor(self.pool, self._votes, batch)
        job.add_done_callback(self._on_votes)

    def _votes(self, batch: list[Sample]) -> tuple[list[Evidence], int]:
        """The evidence on each sample, and the CPU time that it took; runs in a thread."""
        began_ns = time.thread_time_ns()
        found: list[Evidence] = []
        for application in {each[1] for each in batch}:
            mine = [each for each in batch if each[1] == application]
            votes = look(self.models[application], [each[2] for each in mine])
            for (rid, _, _, answers), row in zip(mine, votes.tolist(), strict=True):
                found.append(Evidence(rid, votes=tuple(row), answers=answers))
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
        self.busy = False
        if self.waiting:
            self._vote_on_next()
