"""Spares: processes that wait, warm, to take the place of a backend that ends."""

from collections.abc import Collection
from dataclasses import dataclass, field

from fermata.router.links.messages import LoadVariant, UnloadVariant
from fermata.router.live.fleet.peers import LinkPeer


@dataclass(slots=True)
class SparePeer:
    """A process that waits for the end of a backend."""

    link: LinkPeer
    first: int
    """Number of that backend."""
    kind: str
    held: frozenset[str] = frozenset()
    """Variants that it has loaded."""
    asked: set[str] = field(default_factory=set)
    """Variants that it was sent an order for, and that it has not carried out."""


class Spares:
    """Pure. By their own numbers; none of them is given a batch, nor counts as a backend.

    A spare holds what its first holds: orders follow what that one has announced, so that loads,
    unloads and moves of models need not know of spares.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, SparePeer] = {}

    def on_ready(self, link: LinkPeer, first: int, kind: str, held: Collection[str]) -> None:
        """Take a spare in, or note what it holds now."""
        number = link.peer.number
        known = self.waiting.get(number)
        if known is None or known.link is not link or known.first != first:
            known = self.waiting[number] = SparePeer(link, first, kind)
        known.held = frozenset(held)

    def take(self, link: LinkPeer) -> SparePeer | None:
        """The spare of this link, which waits no more: it has gone, or takes over."""
        found = self.waiting.get(link.peer.number)
        if found is None or found.link is not link:
            return None
        return self.waiting.pop(link.peer.number)

    def equalise(
        self, first: int, held: Collection[str]
    ) -> list[tuple[LinkPeer, LoadVariant | UnloadVariant]]:
        """Orders by which the spares of a backend come to hold what it holds; each is given once,
        whether it could be carried out or not."""
        orders: list[tuple[LinkPeer, LoadVariant | UnloadVariant]] = []
        wanted = frozenset(held)
        for spare in self.waiting.values():
            if spare.first != first:
                continue
            differs = wanted ^ spare.held
            spare.asked &= differs
            for variant in sorted(differs - spare.asked):
                order = LoadVariant if variant in wanted else UnloadVariant
                orders.append((spare.link, order(variant)))
            spare.asked |= differs
        return orders
