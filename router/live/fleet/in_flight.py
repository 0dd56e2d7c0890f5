"""Requests that backends have, and those of them that were submitted once more."""

from collections.abc import Collection, Iterable

from fermata.router.core.events import Batch, Request
from fermata.router.links.messages import Done, frontend_of


class InFlight:
    """By their ids. A frontend that reconnects may submit a request again, which must not run twice
    for that. One whose link to the backend was cut may do so because the result was lost."""

    def __init__(self) -> None:
        self.rids: set[int] = set()
        self.resubmitted: set[int] = set()
        """Submitted once more: their results may have been lost."""

    def add(self, rids: Iterable[int]) -> None:
        """Note that a backend has these."""
        self.rids.update(rids)

    def note_resubmission(self, rid: int) -> bool:
        """Note that a request was submitted, if a backend has it already; returns whether one
        has."""
        if rid not in self.rids:
            return False
        self.resubmitted.add(rid)
        return True

    def on_lost(self, batch: Batch) -> None:
        """Forget a batch whose backend is gone."""
        rids = [request.rid for request in batch.requests]
        self.rids.difference_update(rids)
        self.resubmitted.difference_update(rids)

    def on_done(self, batch: Batch, done: Done, frontends: Collection[int]) -> list[Request]:
        """End a batch; returns its requests without an answer to a frontend that lives: all of
        them, where it failed. A frontend leaves out those that were answered after all."""
        rids = [request.rid for request in batch.requests]
        self.rids.difference_update(rids)
        if not done.failed and not done.left_out and not self.resubmitted:
            return []
        lost = rids if done.failed else done.left_out
        missed = self.resubmitted.union(lost)
        self.resubmitted.difference_update(rids)
        return [
            request
            for request in batch.requests
            if request.rid in missed
            and frontend_of(request.rid) in frontends
            # A step of a sequence has run once, and is not to run again.
            and (request.sequence is None or request.rid in lost)
        ]
