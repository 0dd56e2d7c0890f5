"""Sequences of simulated clients, one after the other for each of them."""

from collections.abc import Sequence

from fermata.applications.application import Application
from fermata.router.core.events import Drop, DropReason, SequenceStep

OVER = frozenset(
    (DropReason.SEQUENCE_LOST, DropReason.NO_SEQUENCE, DropReason.FAILED, DropReason.FULL)
)
"""Refusals after which a client starts anew."""


class SimulatedSequences:
    """The place of each client in its sequence."""

    def __init__(self, applications: Sequence[Application]) -> None:
        self.lengths = {
            number: each.sequence_length
            for number, each in enumerate(applications)
            if each.sequences
        }
        """By application: requests of each sequence; 0: it has no end."""
        self.sent: dict[int, int] = {}
        """By client: requests of its sequence so far; none where it starts one next."""

    def step(self, application: int, client: int) -> SequenceStep | None:
        """The next request of a client; None where its application has no sequences."""
        length = self.lengths.get(application)
        if length is None:
            return None
        sent = self.sent.get(client, 0) + 1
        self.sent[client] = sent % length if length else sent
        return SequenceStep(client, sent == 1, sent == length)

    def on_drop(self, drop: Drop) -> None:
        """Start anew where a client is told that its sequence is over."""
        step = drop.request.sequence
        if step is not None and drop.reason in OVER:
            self.sent.pop(step.key, None)


def sequences_of(applications: Sequence[Application]) -> SimulatedSequences | None:
    """The sequences of a scenario; None where it has none."""
    found = SimulatedSequences(applications)
    return found if found.lengths else None
