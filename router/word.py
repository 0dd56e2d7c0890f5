"""What frontends hear of their requests."""

from collections.abc import Callable

from router.assembly import Assembly
from router.core.events import Advise, Answer, Batch, Drop, DropReason
from router.links.messages import (
    RID_BITS,
    Absent,
    Dropped,
    Estimated,
    Message,
    ShortCircuit,
)
from router.mapped_clients import MappedClients
from router.peers import Speaker
from router.presence import Presence
from router.retry import retry_after_ns


class Word:
    """Tells them; `say` sends a message on a link."""

    def __init__(
        self,
        built: Assembly,
        presence: Presence,
        clients: MappedClients,
        frontends: dict[int, Speaker],
        say: Callable[[Speaker, Message], None],
    ) -> None:
        self.built = built
        self.presence = presence
        self.clients = clients
        self.frontends = frontends
        self.say = say

    def absent(self, link: Speaker | None = None) -> None:
        """Which applications nobody serves; to one frontend, or to all."""
        absent = Absent(tuple(sorted(self.presence.absent.items())))
        for each in self.frontends.values() if link is None else (link,):
            self.say(each, absent)

    def advise(self, advise: Advise) -> None:
        number, advice = self.clients.advice(advise)
        if number in self.frontends:
            self.say(self.frontends[number], advice)

    def short_circuit(self, answer: Answer) -> None:
        request, estimate = answer.request, answer.request.estimate
        link = self.frontends.get(request.rid >> RID_BITS)
        if link is not None and estimate is not None:
            right = estimate.classes[answer.label]
            self.say(link, ShortCircuit(request.rid, answer.label, right, estimate.classes))

    def estimates(self, batch: Batch) -> None:
        """Whoever asked hears how good the answer is thought to be."""
        for request in batch.requests:
            expected = self.built.expected(request, batch.variant)
            link = self.frontends.get(request.rid >> RID_BITS)
            if expected is not None and link is not None:
                self.say(link, Estimated(request.rid, expected))

    def dropped(self, drop: Drop) -> None:
        # Who cancelled knows; nobody waits for the word.
        if drop.reason == DropReason.CANCELLED:
            return
        request = drop.request
        link = self.frontends.get(request.rid >> RID_BITS)
        if link is not None:
            after_ns = retry_after_ns(self.built, drop.reason, request.application)
            self.say(link, Dropped(request.rid, drop.reason, after_ns))
