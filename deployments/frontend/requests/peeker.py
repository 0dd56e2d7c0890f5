"""Votes of SneakPeek models on the inputs of waiting requests, off the event loop."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import NEVER, ms
from fermata.router.links.messages import Evidence

Sample = tuple[int, str, NDArray[Any], bool]
"""Request, application, input, and whether a look may answer it."""


@dataclass(frozen=True, slots=True)
class PeekerLimits:
    """Limits of a peeker."""

    batch_max: int = 256
    """Samples that one job votes on."""
    waiting_max: int = 1024
    """Beyond that inputs come faster than votes, and a vote would come too late."""
    batch_ns: int = ms(50)
    """Time that one job should take: votes come together, so the first waits for the last."""
    smoothing: float = 0.2
    """Weight of one job in the time of a look."""


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
        self.look_ns: dict[str, float] = {}
        """Time of one look, as measured lately, by application."""
        if any(model.is_embedded for model in models.values()):
            # Weights take seconds to read, and the first look as long as ten others.
            self.busy = True
            job = self.loop.run_in_executor(pool, self._warm_up)
            job.add_done_callback(self._on_votes)

    def class_counts(self) -> dict[str, int]:
        """Number of classes by application."""
        return {name: model.index.classes for name, model in self.models.items()}

    def take(
        self,
        rid: int,
        application: str,
        sample: NDArray[Any],
        answers: bool = True,
        within_ns: int = NEVER,
    ) -> None:
        """Queue an input for a vote; it is copied, since its memory is released early. `answers`:
        the client takes a look's answer for its own. `within_ns`: a vote is of no use later."""
        model = self.models.get(application)
        if model is None:
            return
        late = len(self.waiting) * self.look_ns.get(application, 0.0) > within_ns
        full = late or len(self.waiting) >= self.limits.waiting_max
        if full or not model.sees(sample.shape):
            self.skipped += 1
            return
        self.waiting.append((rid, application, sample.copy(), answers))
        if not self.busy:
            self._vote_on_next()

    def _vote_on_next(self) -> None:
        self.busy = True
        each_ns = self.look_ns.get(self.waiting[0][1], 0.0)
        limits = self.limits
        size = limits.batch_max
        if each_ns * size > limits.batch_ns:
            size = max(1, int(limits.batch_ns / each_ns))
        batch, self.waiting = self.waiting[:size], self.waiting[size:]
        job = self.loop.run_in_executor(self.pool, self._votes, batch)
        job.add_done_callback(self._on_votes)

    def _votes(self, batch: list[Sample]) -> tuple[list[Evidence], int]:
        """The evidence on each sample, and the CPU time that it took; runs in a thread."""
        began_ns = time.thread_time_ns()
        found: list[Evidence] = []
        for application in {each[1] for each in batch}:
            mine = [each for each in batch if each[1] == application]
            from_ns = time.monotonic_ns()
            votes = self.models[application].look([each[2] for each in mine])
            self._learn(application, (time.monotonic_ns() - from_ns) / len(mine))
            for (rid, _, _, answers), row in zip(mine, votes.tolist(), strict=True):
                found.append(Evidence(rid, votes=tuple(row), answers=answers))
        return found, time.thread_time_ns() - began_ns

    def _learn(self, application: str, took_ns: float) -> None:
        """One look took so long."""
        usual_ns, part = self.look_ns.get(application, took_ns), self.limits.smoothing
        self.look_ns[application] = usual_ns + part * (took_ns - usual_ns)

    def _warm_up(self) -> tuple[list[Evidence], int]:
        """Read the weights of embeddings, in a thread."""
        began_ns = time.thread_time_ns()
        for model in self.models.values():
            model.warm_up()
        return [], time.thread_time_ns() - began_ns

    def _on_votes(self, job: "asyncio.Future[tuple[list[Evidence], int]]") -> None:
        if job.cancelled():
            return
        error = job.exception()
        if error is not None:
            if not self.failed:
                LOG.warning("cannot look at requests", extra=fields(reason=repr(error)))
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
