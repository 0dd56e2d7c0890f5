"""A lane: a set of backends, those of them that can be had now, and the ripe bids for them."""

from bisect import bisect_left
from collections.abc import Callable, Container

from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.standing import RipeBids, Standing
from fermata.router.core.matching.time_share import TimeShares
from fermata.router.core.source import Source, kind_lane, own_lane

ANY = -1
"""The set of all backends, those to come included."""


class Lane:
    """A set of backends, the ripe bids for them, and those of them that can be had now.

    Sets of backends are integers with one bit each, in the order of the backends' numbers. The
    first of a set is its lowest bit, and a backend that leaves a set leaves nothing behind. One
    operation tells which backends can be had and hold a model. Bids that the same backends can
    serve wait together, so no event looks at bids or backends that cannot come to terms.
    """

    __slots__ = (
        "ahead",
        "bidders",
        "free",
        "grouping",
        "holders",
        "index",
        "kinds",
        "members",
        "narrow",
        "near",
        "parted",
        "ripe",
        "shares",
        "stamp",
        "swappable",
        "up",
        "version",
        "weak",
        "whole",
    )

    def __init__(self, index: int, swappable: Container[int]) -> None:
        self.index = index
        self.swappable = swappable
        """Variants that any backend can bring in."""
        self.members: list[BackendState] = []
        """By number; the place in this list is that of the bit."""
        self.up = 0
        """Backends that do not drain."""
        self.free = 0
        """Backends that can be had."""
        self.weak = 0
        """Free and idle, but slower or with less memory than their peers."""
        self.ahead = 0
        """Free in so far as their batch is about to end."""
        self.near = 0
        """Backends of nodes that requests come from."""
        self.whole = 0
        """Backends that hold every variant."""
        self.holders: dict[int, int] = {}
        """By variant: others that hold it."""
        self.kinds: dict[int, int] = {}
        """By kind: its backends."""
        self.bidders: dict[int, list[Standing]] = {}
        """By variant: sources that may run it."""
        self.version = 0
        """Changes with the holders."""
        self.ripe: dict[int, RipeBids] = {}
        """Bids that wait, by the set of their holders. Backends that hold every variant would be
        in all of these sets, and are left out. A group stays when its last bid goes."""
        self.grouping = 0
        """Changes with the groups, so that each backend looks for its own ones only then."""
        self.narrow: dict[tuple[int, int], RipeBids] = {}
        """The same of bids for a part of the lane, by party and all backends that can serve them;
        party 0 where the lane's time is not shared."""
        self.parted: list[Standing] = []
        """Standings in a part of the lane."""
        self.stamp = 0
        self.shares: TimeShares | None = None
        """Turns, where policies share the backends; None: the smallest key goes first."""

    # Backends

    def add(self, state: BackendState) -> None:
        """Make room for one more backend; it holds nothing and cannot be had yet."""
        at = bisect_left(self.members, state.backend, key=_number)
        state.bit = 1 << at
        if at < len(self.members):
            assert self.members[at].backend != state.backend, "a backend is there already"
            for later in self.members[at:]:
                later.bit <<= 1
            self._renumber(_widen, state.bit)
        self.members.insert(at, state)
        self.kinds[state.kind] = self.kinds.get(state.kind, 0) | state.bit
        self.up |= state.bit

    def drain(self, state: BackendState) -> None:
        """Count on this backend no longer."""
        self.withdraw(state)
        self.up &= ~state.bit

    def undrain(self, state: BackendState) -> None:
        """Count on this backend again."""
        assert not self.up & state.bit
        self.up |= state.bit

    def remove(self, state: BackendState) -> None:
        self.drain(state)
        self.kinds[state.kind] ^= state.bit
        self.set_near(state, False)
        self.hold(state, frozenset())
        at = self.members.index(state)
        assert state.bit == 1 << at, "a bit does not name its backend"
        del self.members[at]
        for later in self.members[at:]:
            later.bit >>= 1
        self._renumber(_narrow, state.bit)

    def _renumber(self, change: Callable[[int, int], int], bit: int) -> None:
        """Write every set anew: backends behind that bit have another one now."""
        self.up, self.whole = change(self.up, bit), change(self.whole, bit)
        self.free, self.weak = change(self.free, bit), change(self.weak, bit)
        self.ahead, self.near = change(self.ahead, bit), change(self.near, bit)
        self.holders = {variant: change(each, bit) for variant, each in self.holders.items()}
        self.kinds = {kind: change(each, bit) for kind, each in self.kinds.items()}
        self._forget_empty()
        self.ripe = {change(each, bit): ripe for each, ripe in self.ripe.items()}
        narrow = self.narrow.items()
        self.narrow = {(party, change(each, bit)): ripe for (party, each), ripe in narrow}
        self.version += 1

    def hold(self, state: BackendState, resident: frozenset[int] | None) -> None:
        """Note what a backend holds; None: every variant."""
        before, state.resident = state.resident, resident
        state.grouping = -1
        bit, whole = state.bit, resident is None
        if whole != bool(self.whole & bit):
            self.whole ^= bit
        changed = (before or frozenset()) ^ (resident or frozenset())
        for variant in changed:
            holders = self.holders.get(variant, 0)
            assert bool(holders & bit) == (before is not None and variant in before)
            self.holders[variant] = holders ^ bit
        bidders = [each for variant in changed for each in self.bidders.get(variant, ())]
        bidders += self.parted
        if bidders:
            self.version += 1
            for standing in bidders:
                if standing.ripe_stamp:
                    self.wait(standing)
            self._forget_empty()

    def offer(self, state: BackendState, weak: bool) -> None:
        """This backend can be had from now on."""
        assert self.up & state.bit
        assert state.running is not None or not state.queued
        self.withdraw(state)
        state.free = True
        self.free |= state.bit
        if state.running is not None:
            self.ahead |= state.bit
        elif weak:
            self.weak |= state.bit

    def withdraw(self, state: BackendState) -> None:
        """This backend cannot be had any longer."""
        assert bool(self.free & state.bit) == state.free
        if state.free:
            state.free = False
            self.free ^= state.bit
            self.weak &= ~state.bit
            self.ahead &= ~state.bit

    def set_near(self, state: BackendState, near: bool) -> None:
        """Prefer this backend to its peers, or no longer."""
        if near != bool(self.near & state.bit):
            self.near ^= state.bit

    def first_free(self, among: int) -> BackendState | None:
        """The backend to give next: the lowest number first, so that work gathers on few of them
        and the others idle long. Near ones come before their peers, where inputs need not travel;
        weak ones come after them, busy ones after all others."""
        found = self.free & among
        if not found:
            return None
        if self.weak or self.ahead:
            idle = found & ~self.ahead
            found = idle & ~self.weak or idle or found
        if self.near:
            found = found & self.near or found
        state = self.members[(found & -found).bit_length() - 1]
        assert state.free
        return state

    def no_better(self, state: BackendState, source: Source) -> int:
        """The backends that a source would decline, too, once it has declined this one, which is
        idle and not weak: those of its kind that hold no more of what the source may run."""
        if source.may_run is None:
            return state.bit
        found = self.free & self.kinds[state.kind]
        if state.resident is not None:
            found &= ~self.whole
            for variant in source.may_run - state.resident:
                found &= ~self.holders.get(variant, 0)
        assert found & state.bit, "a backend that was declined would be offered again"
        return found

    def part(self, index: int) -> int:
        """The backends of a part of this lane: of one kind, or one alone."""
        if index > 0:
            at = bisect_left(self.members, index, key=_own_lane)
            here = at < len(self.members) and self.members[at].backend + own_lane(0) == index
            return self.members[at].bit if here else 0
        for kind, backends in self.kinds.items():
            if kind_lane(kind) == index:
                return backends
        return 0

    # Bids

    def join(self, standing: Standing) -> None:
        if standing.narrow:
            self.parted.append(standing)
            return
        for variant in self._tied_to(standing.source):
            self.bidders.setdefault(variant, []).append(standing)

    def leave(self, standing: Standing) -> None:
        standing.ripe_stamp = 0
        if standing.narrow:
            self.parted.remove(standing)
            return
        for variant in self._tied_to(standing.source):
            self.bidders[variant].remove(standing)

    def _tied_to(self, source: Source) -> frozenset[int]:
        """The variants of a source that runs only where one of them is held."""
        wanted = source.may_run or frozenset()
        return frozenset() if any(each in self.swappable for each in wanted) else wanted

    def holders_of(self, source: Source) -> int:
        """The backends that hold some of what the source may run; all, where that makes no
        difference."""
        tied_to = self._tied_to(source)
        if not tied_to:
            return ANY
        holders = 0
        for variant in tied_to:
            holders |= self.holders.get(variant, 0)
        return holders

    def wait(self, standing: Standing) -> None:
        """Keep a ripe bid until a backend that can serve it can be had."""
        assert standing.lane is self
        self.stamp += 1
        standing.ripe_stamp = self.stamp
        if standing.version != self.version:
            standing.look_up()
        if standing.narrow:
            key = (0 if standing.party is None else standing.party.number, standing.holders)
            self.narrow.setdefault(key, RipeBids()).push(standing)
            return
        ripe = self.ripe.get(standing.holders)
        if ripe is None:
            ripe = self.ripe[standing.holders] = RipeBids()
            self.grouping += 1
        ripe.push(standing)

    def first_ripe(self, state: BackendState) -> Standing | None:
        """The bid with the smallest key of those that wait and that this backend can serve; where
        time is shared, of those whose turn it is."""
        if self.narrow:
            return self._first_in_turn(state)
        if state.grouping != self.grouping:
            whole, bit = state.resident is None, state.bit
            groups = self.ripe.items()
            state.groups = [ripe for holders, ripe in groups if whole or holders & bit]
            state.grouping = self.grouping
        first: tuple[int, int, Standing] | None = None
        for ripe in state.groups:
            if ripe.heap:
                entry = ripe.first()
                if entry is not None and (first is None or entry < first):
                    first = entry
        return None if first is None else first[2]

    def _first_in_turn(self, state: BackendState) -> Standing | None:
        self._forget_empty()
        found = [each.first() for sets, each in self.narrow.items() if sets[1] & state.bit]
        whole = state.resident is None
        found += [each.first() for sets, each in self.ripe.items() if whole or sets & state.bit]
        entries = [entry for entry in found if entry is not None]
        shares = self.shares
        if shares is not None:
            parties = {each.party for _, _, each in entries if each.party is not None}
            turn = shares.in_turn(parties)
            entries = [each for each in entries if each[2].party is None or each[2].party in turn]
        return min(entries)[2] if entries else None

    def _forget_empty(self) -> None:
        self.ripe = {each: ripe for each, ripe in self.ripe.items() if ripe.first() is not None}
        self.grouping += 1
        if self.narrow:
            narrow = self.narrow.items()
            self.narrow = {each: ripe for each, ripe in narrow if ripe.first() is not None}


def _number(state: BackendState) -> int:
    return state.backend


def _own_lane(state: BackendState) -> int:
    return own_lane(state.backend)


def _widen(backends: int, bit: int) -> int:
    """The same set once a backend has come in at that bit."""
    if backends == ANY:
        return ANY
    below = backends & (bit - 1)
    return below | (backends ^ below) << 1


def _narrow(backends: int, bit: int) -> int:
    """The same set once the backend of that bit, which is not in it, has gone."""
    assert backends == ANY or not backends & bit
    below = backends & (bit - 1)
    return below | (backends ^ below) >> 1
