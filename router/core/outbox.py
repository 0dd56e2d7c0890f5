"""Where effects of sources wait for the driver, with the account of who is still queued."""

from collections.abc import Callable
from typing import Final

from fermata.router.core.events import Answer, Drop, DropReason, Effect, Request
from fermata.router.core.signals import Ledger

FOR_WANT: Final = frozenset((DropReason.LATE, DropReason.WINDOW, DropReason.SHED, DropReason.FULL))
"""Reasons that speak of too few backends: they are true only where some are up."""


class Outbox:
    """Where sources leave their effects; it keeps the account of who is still queued."""

    __slots__ = ("effects", "granted", "ledger", "queued", "unserved")

    def __init__(self, unserved: Callable[[Request], bool] = lambda request: False) -> None:
        """`unserved` tells whether no backend could have run a request while it waited."""
        self.unserved = unserved
        self.effects: list[Effect] = []
        self.queued: dict[int, Request] = {}
        self.granted: set[int] = set()
        """Requests whose dispatch is among the effects."""
        self.ledger = Ledger()

    def drop(self, request: Request, reason: str) -> None:
        """End a queued request without a result."""
        held = self.queued.pop(request.rid, None)
        assert held is request, "a request that ends has been queued, and has not ended"
        if request.error and reason not in (DropReason.CANCELLED, DropReason.MOVED):
            # Whatever kept it from running again, this is why it has no result.
            reason = DropReason.FAILED
        reason = self.true_reason(request, reason)
        self.ledger.on_drop(request, reason)
        self.effects.append(Drop(request, reason))

    def true_reason(self, request: Request, reason: str) -> str:
        """Where no backend could have run a request, that is why it was dropped."""
        wanting = reason in FOR_WANT and self.unserved(request)
        return DropReason.NO_BACKEND if wanting else reason

    def answer(self, request: Request, label: int, accuracy: float) -> None:
        """End a queued request with a result that needs no backend."""
        held = self.queued.pop(request.rid, None)
        assert held is request, "a request that ends has been queued, and has not ended"
        self.ledger.on_answer(request)
        self.effects.append(Answer(request, label, accuracy))
