"""Requests that backends have, and those of them that are asked for once more."""

from collections.abc import Collection

from fermata.router.core.events import Batch, Request
from fermata.router.links.messages import RID_BITS, Done


class InFlight:
    """By their ids. A frontend that reconnects may submit them again, and must not be run twice for
    it; one whose link to the backend was cut may do so because the result was lost."""

    def __init__(self) -> None:
        self.rids: set[int] = set()
        self.asked_again: set[int] = set()
        """Submitted once more: their results may have been lost."""

    def is_asked_again(self, rid: int) -> bool:
        """A request is submitted; whether a backend has it already."""
        if rid not in self.rids:
            return False
        self.asked_again.add(rid)
        return True

    def on_lost(self, batch: Batch) -> None:
        """Its backend is gone."""
        rids = [request.rid for request in batch.requests]
        self.rids.difference_update(rids)
        self.asked_again.difference_update(rids)

    def on_done(self, batch: Batch, done: Done, frontends: Collection[int]) -> list[Request]:
        """A batch has ended; those of it that the backend has not answered to a frontend that
        lives: all, where it failed. Whoever has been answered after all is left out of its next
        batch by the frontend."""
        rids = [request.rid for request in batch.requests]
        self.rids.difference_update(rids)
        if not done.failed and not done.left_out and not self.asked_again:
            return []
        missed = self.asked_again.union(rids if done.failed else done.left_out)
        self.asked_again.difference_update(rids)
        return [
            request
            for request in batch.requests
            if request.rid in missed and request.rid >> RID_BITS in frontends
        ]
