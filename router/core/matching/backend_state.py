"""A backend as the rank sees it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fermata.router.core.events import Batch
from fermata.router.core.matching.standing import RipeBids
from fermata.router.core.source import Source
from fermata.router.core.timers import Timer

if TYPE_CHECKING:
    from fermata.router.core.matching.lane import Lane


class BackendState(Timer):
    """The rank's view of a backend: one batch runs, a few more may wait there."""

    __slots__ = (
        "backend",
        "bit",
        "draining",
        "ejected",
        "errors",
        "free",
        "free_at_ns",
        "grouping",
        "groups",
        "kind",
        "lane",
        "last_until_ns",
        "offer",
        "owner",
        "queued",
        "queued_max",
        "resident",
        "running",
        "trial",
    )

    def __init__(
        self,
        offer: Callable[[int, "BackendState"], None],
        backend: int,
        kind: int,
        lane: "Lane",
        owner: Source | None,
        queued_max: int = 1,
    ) -> None:
        super().__init__()
        self.offer = offer
        self.backend = backend
        self.bit = 0
        """The set of it alone, as the lane writes sets."""
        self.kind = kind
        self.lane = lane
        self.owner = owner
        self.resident: frozenset[int] | None = frozenset()
        """Variants that it holds; None: every one. Changed by `Lane.hold` alone."""
        self.running: Batch | None = None
        self.queued: list[Batch] = []
        """Batches that wait behind it, in order."""
        self.queued_max = queued_max
        self.free = False
        """It can be had now."""
        self.free_at_ns = 0
        """Predicted end of all it has been given."""
        self.draining = False
        self.ejected = False
        """It drains, but is to be given back."""
        self.trial = False
        """It was given back, and is given one batch at a time until one succeeds."""
        self.errors = 0
        """Batches in a row that failed, whoever was to blame."""
        self.last_until_ns = 0
        """Until then it comes after its peers."""
        self.groups: list[RipeBids] = []
        """Groups of ripe bids that it can serve."""
        self.grouping = -1
        """The lane's grouping when they were looked up."""

    def batches(self) -> list[Batch]:
        """All that it has been given and has not ended, in order."""
        return self.queued if self.running is None else [self.running, *self.queued]

    def fire(self, now_ns: int) -> None:
        self.offer(now_ns, self)
