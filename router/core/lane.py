"""A lane: a set of backends, those of them that can be had now, and the ripe bids for them."""

from bisect import bisect_left
from collections.abc import Callable

from fermata.router.core.events import Batch
from fermata.router.core.source import Bid, Source
from fermata.router.core.timers import Timer

COMPACT_FROM = 32
"""Ripe bids: with fewer entries it is not worth looking for stale ones."""


class Standing(Timer):
    """A source's standing in one lane: its bid and where the rank keeps it."""

    __slots__ = (
        "armed_at_ns",
        "ask",
        "bid",
        "key",
        "lane",
        "ripe_since_ns",
        "ripe_stamp",
        "source",
    )

    def __init__(
        self, ask: Callable[[int, "Standing"], None], source: Source, lane: "Lane"
    ) -> None:
        super().__init__()
        self.ask = ask
        self.source = source
        self.lane = lane
        self.bid: Bid | None = None
        self.armed_at_ns = 0
        self.key = 0
        self.ripe_stamp = 0
        """Names its valid entry among the lane's ripe bids; 0 when there is none."""
        self.ripe_since_ns = 0

    def fire(self, now_ns: int) -> None:
        self.ask(now_ns, self)


class BackendState(Timer):
    """What the rank knows of a backend: one batch runs, at most one more waits there."""

    __slots__ = (
        "backend",
        "bit",
        "draining",
        "free_at_ns",
        "kind",
        "lane",
        "offer",
        "owner",
        "queued",
        "resident",
        "running",
    )

    def __init__(
        self,
        offer: Callable[[int, "BackendState"], None],
        backend: int,
        kind: int,
        lane: "Lane",
        owner: Source | None,
        resident: frozenset[int] | None,
    ) -> None:
        super().__init__()
        self.offer = offer
        self.backend = backend
        self.bit = 0
        """The set of it alone, as the lane writes sets."""
        self.kind = kind
        self.lane = lane
        self.owner = owner
        self.resident = resident
        self.running: Batch | None = None
        self.queued: Batch | None = None
        self.free_at_ns = 0
        """Predicted end of all it has been given."""
        self.draining = False

    def fire(self, now_ns: int) -> None:
        self.offer(now_ns, self)


class Lane:
    """A set of backends, the ripe bids for them, and those of them that can be had now.

    Sets of backends are integers with one bit each, in the order of the backends' numbers. The
    first of a set is its lowest bit, and whoever leaves a set leaves nothing behind.
    """

    __slots__ = ("ahead", "compact_at", "idle", "index", "members", "ripe", "weak")

    def __init__(self, index: int) -> None:
        self.index = index
        self.compact_at = COMPACT_FROM
        self.ripe: list[tuple[int, int, Standing]] = []
        self.members: list[BackendState] = []
        """By number; the place in this list is that of the bit."""
        self.idle = 0
        """Backends on which nothing runs."""
        self.weak = 0
        """The same, of those that are slower or have less memory than their peers."""
        self.ahead = 0
        """Backends about to be free."""

    def add(self, state: BackendState) -> None:
        """Make room for one more backend; it cannot be had yet."""
        at = bisect_left(self.members, state.backend, key=_number)
        for later in self.members[at:]:
            later.bit <<= 1
        self.members.insert(at, state)
        state.bit = 1 << at
        self.idle, self.weak, self.ahead = (
            _widen(each, state.bit) for each in (self.idle, self.weak, self.ahead)
        )

    def remove(self, state: BackendState) -> None:
        self.withdraw(state)
        at = self.members.index(state)
        del self.members[at]
        for later in self.members[at:]:
            later.bit >>= 1
        self.idle, self.weak, self.ahead = (
            _narrow(each, state.bit) for each in (self.idle, self.weak, self.ahead)
        )

    def first_free(self, among: int) -> BackendState | None:
        """The backend to give next: the lowest number first, so that work gathers on few of them
        and the others idle long. Weak ones come after their peers, busy ones after all others."""
        found = self.idle & among or self.weak & among or self.ahead & among
        return self.members[(found & -found).bit_length() - 1] if found else None

    def free_count(self) -> int:
        return (self.idle | self.weak | self.ahead).bit_count()

    def withdraw(self, state: BackendState) -> None:
        """This backend cannot be had any longer."""
        bit = state.bit
        if self.idle & bit:
            self.idle ^= bit
        elif self.weak & bit:
            self.weak ^= bit
        elif self.ahead & bit:
            self.ahead ^= bit


def _number(state: BackendState) -> int:
    return state.backend


def _widen(members: int, bit: int) -> int:
    """The same set once a backend has come in at that bit."""
    below = members & (bit - 1)
    return below | (members ^ below) << 1


def _narrow(members: int, bit: int) -> int:
    """The same set once the backend of that bit, which is not in it, has gone."""
    below = members & (bit - 1)
    return below | (members ^ below) >> 1
