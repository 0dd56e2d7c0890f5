"""A source's standing in a lane, and the ripe ones by key."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from fermata.router.core.matching.time_share import TimeParty
from fermata.router.core.source import Bid, Source
from fermata.router.core.timers import Timer

if TYPE_CHECKING:
    from fermata.router.core.matching.lane import Lane

COMPACT_FROM = 32
"""Ripe bids: with fewer entries it is not worth looking for stale ones."""


class Standing(Timer):
    """A source's standing in one lane: its bid and where the rank keeps it."""

    __slots__ = (
        "armed_at_ns",
        "ask",
        "bid",
        "holders",
        "index",
        "key",
        "lane",
        "losses",
        "narrow",
        "party",
        "passed",
        "ripe_since_ns",
        "ripe_stamp",
        "source",
        "version",
    )

    def __init__(
        self,
        ask: Callable[[int, "Standing"], None],
        source: Source,
        lane: "Lane",
        index: int | None = None,
    ) -> None:
        super().__init__()
        self.ask = ask
        self.source = source
        self.lane = lane
        self.index = lane.index if index is None else index
        """The lane's number for the source; another one than the lane's own names a part of it."""
        self.narrow = self.index != lane.index
        self.party: TimeParty | None = None
        """Its part in the lane's time, where that is shared."""
        self.losses = source.losses()
        self.bid: Bid | None = None
        self.armed_at_ns = 0
        self.key = 0
        self.ripe_stamp = 0
        """Names its valid entry among the lane's ripe bids; 0 when there is none."""
        self.ripe_since_ns = 0
        self.passed = 0
        """Backends that it has declined, where not all could be offered at once."""
        self.holders = 0
        """Backends that can run some of what the source may run, beside those that hold all. In a
        part of the lane, those are among them."""
        self.version = -1
        """The lane's version when they were looked up."""

    def fire(self, now_ns: int) -> None:
        self.ask(now_ns, self)

    def able(self) -> int:
        """The backends that can run some of what the source may run."""
        if self.version != self.lane.version:
            self.look_up()
        return self.holders if self.narrow else self.holders | self.lane.whole

    def look_up(self) -> None:
        """Learn anew who holds what the source may run."""
        lane = self.lane
        self.holders, self.version = lane.holders_of(self.source), lane.version
        if self.narrow:
            self.holders = (self.holders | lane.whole) & lane.part(self.index)


class RipeBids:
    """The ripe bids that the same backends can serve, smallest key first."""

    __slots__ = ("compact_at", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Standing]] = []
        self.compact_at = COMPACT_FROM

    def push(self, standing: Standing) -> None:
        heap = self.heap
        heappush(heap, (standing.key, standing.ripe_stamp, standing))
        if len(heap) > self.compact_at:
            # While no backend is free nobody pops the entries that newer ones have replaced.
            heap[:] = [entry for entry in heap if entry[2].ripe_stamp == entry[1]]
            heapify(heap)
            self.compact_at = max(COMPACT_FROM, 2 * len(heap))

    def first(self) -> tuple[int, int, Standing] | None:
        heap = self.heap
        while heap:
            first = heap[0]
            if first[2].ripe_stamp == first[1]:
                assert first[2].key == first[0], "a bid has another key than it waits with"
                return first
            heappop(heap)
        return None
