"""The place where frontends have a backend look at inputs; every look that is asked is answered."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.execution.tensors import InputError, view
from fermata.deployments.backend.frontends import Frontends
from fermata.deployments.backend.looks.looker import BATCH_MAX, Looker
from fermata.deployments.sneakpeek.look_queue import LookLimits, LookQueue, Votes, WaitingLook
from fermata.foundation.units import ms
from fermata.router.links.messages import Look, Looked, TakesLooks

LIMITS = LookLimits(batch_max=BATCH_MAX, batch_ns=ms(10))
"""Jobs are shorter than on a frontend: batches run on the same device."""


class LookDesk:
    """Has looks taken together on one thread, beside the batches; all methods on the loop."""

    def __init__(
        self,
        looker: Looker,
        segments: Segments,
        frontends: Frontends,
        limits: LookLimits = LIMITS,
    ) -> None:
        """`segments` are those of the batches, which are mapped once."""
        self.looker = looker
        self.segments = segments
        self.frontends = frontends
        self.pool = ThreadPoolExecutor(1, "looker")
        self.queue = LookQueue(looker, self.pool, self._answer, limits)
        self.ready = False

    async def load(self) -> None:
        """Read all weights, then tell frontends that looks are taken here."""
        await asyncio.get_running_loop().run_in_executor(self.pool, self.looker.load)
        self.ready = True
        self.frontends.take_looks(self)

    def told(self) -> TakesLooks:
        """The message that frontends get of it."""
        return TakesLooks(tuple(sorted(self.looker.looks)))

    def take(self, frontend: int, looks: Sequence[Look]) -> None:
        """Look at these inputs, those that are late or too many aside."""
        for look in looks:
            waiting = self._waiting(frontend, look)
            if waiting is None or not self.queue.has_room(look.application, look.within_ns):
                self.frontends.send(frontend, Looked(look.payload.rid))
            else:
                self.queue.add(waiting)

    def _waiting(self, frontend: int, look: Look) -> WaitingLook | None:
        """The look with its input in place; None where it cannot be taken here."""
        payload, until_ns = look.payload, self.queue.clock() + look.within_ns
        try:
            item = view(payload, self.segments)
        except InputError:
            return None
        if payload.rows or not self.looker.sees(look.application, item):
            return None
        return WaitingLook(payload.rid, look.application, item, frontend, until_ns)

    def _answer(self, look: WaitingLook, votes: Votes) -> None:
        took_ns = int(self.queue.times.of(look.application))
        self.frontends.send(look.asker, Looked(look.rid, votes, took_ns))

    def close(self) -> None:
        """End the thread, after the looks that it takes now."""
        self.pool.shutdown(wait=False, cancel_futures=True)
