"""Terms of routers: each later start has a higher one, and a lower one is never obeyed again."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol

from fermata.foundation.errors import NoAnswerError
from fermata.foundation.logs import LOG, fields

RESTART_BITS = 44
"""Milliseconds since 1970 fit until the year 2527."""


def next_term(generation: int, wall_ms: int, last: int = 0, seat: int | None = None) -> int:
    """A number that grows with every start: of a new generation, or of the same one by Ray.

    Ray restarts an actor with the arguments it was created with, so the generation alone would
    not tell the new process from the one whose place it takes. Wall clocks may be set back: the
    highest term that the cluster remembers (`last`) counts too. Two routers may start at once,
    one for each `seat`, 0 or 1: the last bit tells them apart.
    """
    term = max((generation << RESTART_BITS) | wall_ms, last + 1)
    return term if seat is None else term + ((term ^ seat) & 1)


class TermRecord(Protocol):
    """The cluster's own record of terms; raises NoAnswerError while it cannot be reached."""

    async def highest(self) -> int:
        """The highest term that any router of this name has had."""

    async def note(self, term: int) -> None:
        """Record a term of this router's own."""


@dataclass(frozen=True, slots=True)
class RecordTiming:
    """Times of calls to the record."""

    answer_s: float = 1.0
    """Time for the cluster to answer; then it is out of reach."""
    retry_s: float = 0.5
    """Pause between two attempts to have a term recorded."""


class Terms:
    """Asks that record for one router, which stands down for no peer's claim alone."""

    def __init__(
        self,
        record: TermRecord | None,
        term: Callable[[], int],
        timing: RecordTiming | None = None,
    ) -> None:
        """`term` is the router's own by now. Without a record, peers are believed."""
        self.record = record
        self.term = term
        self.timing = timing or RecordTiming()
        self.asking: asyncio.Task[None] | None = None
        self.noting: asyncio.Task[None] | None = None
        self.refuted = 0
        """Claim that was refuted last."""

    def confirm(self, claimed: int, then: Callable[[], None]) -> None:
        """Call `then` if there is a router of the term that a proven peer claims to have met. Where
        the record cannot be read, the peer is believed: better no router than two."""
        if self.record is None:
            then()
        elif self.asking is None or self.asking.done():
            self.asking = _start(self._ask(self.record, claimed, then))

    async def _ask(self, record: TermRecord, claimed: int, then: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(self.timing.answer_s):
                highest = await record.highest()
        except (NoAnswerError, TimeoutError):
            LOG.warning("cannot read the record of terms; accepting the peer's term")
        else:
            # A standby has a higher term too: that alone confirms nothing.
            if not self.term() < claimed <= highest:
                self._refute(claimed, highest)
                return
        then()

    def _refute(self, claimed: int, highest: int) -> None:
        # Logged once: the peer tries again and again.
        if claimed != self.refuted:
            self.refuted = claimed
            LOG.warning(
                "a peer claims to have met a newer router, and the cluster knows of none",
                extra=fields(term=self.term(), claimed=claimed, recorded=highest),
            )

    def note(self, term: int) -> None:
        """Have a term recorded that the cluster did not give, however long it takes."""
        if self.record is not None:
            if self.noting is not None:
                self.noting.cancel()
            self.noting = _start(self._note(self.record, term))

    async def _note(self, record: TermRecord, term: int) -> None:
        while True:
            try:
                async with asyncio.timeout(self.timing.answer_s):
                    await record.note(term)
                return
            except (NoAnswerError, TimeoutError):
                await asyncio.sleep(self.timing.retry_s)

    def stop(self) -> None:
        for task in (self.asking, self.noting):
            if task is not None:
                task.cancel()


def _start(work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(work)
