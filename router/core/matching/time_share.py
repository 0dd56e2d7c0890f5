"""Shares of backends' time: whose turn it is where policies share backends.

Each party has a virtual time: the backend time that it was given, over its share. A party that
was away starts again from where the others are, so that nobody saves time up. Among the parties
that are not ahead of the others by more than a little, the most urgent bid goes first (earliest
eligible deadline first). So deadlines decide while there is time for all, and shares decide when
there is not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fermata.foundation.units import ms


@dataclass(frozen=True, slots=True)
class TimeShareRules:
    """How strictly time is shared."""

    ahead_ns: int = ms(100)
    """Backend time by which a party may be ahead of its share, for the sake of deadlines."""


RULES: Final = TimeShareRules()


class TimeParty:
    """One party: a policy with queues of its own for each backend, or all that pool them."""

    __slots__ = ("number", "share", "virtual_ns")

    def __init__(self, number: int, share: float) -> None:
        assert 0.0 < share <= 1.0, "a share is a part of the whole"
        self.number = number
        self.share = share
        """Part of the backends' time."""
        self.virtual_ns = 0.0
        """Backend time given to it, over its share."""


class TimeShares:
    """The parties that share the backends of a lane."""

    __slots__ = ("parties", "pool", "reached_ns", "rules")

    def __init__(self, rules: TimeShareRules = RULES) -> None:
        self.rules = rules
        self.parties: list[TimeParty] = []
        self.pool: TimeParty | None = None
        """The party of all policies that have no queues for single backends."""
        self.reached_ns = 0.0
        """Virtual time at which the last batch was given its turn."""

    def add(self, share: float) -> TimeParty:
        """One more party."""
        self.parties.append(TimeParty(len(self.parties) + 1, share))
        return self.parties[-1]

    def add_to_pool(self, share: float) -> TimeParty:
        """The pool's party, which has this share from now on."""
        if self.pool is None:
            self.pool = self.add(share)
        self.pool.share = share
        return self.pool

    def turn_ns(self, party: TimeParty) -> float:
        """The virtual time at which this party's next batch would have its turn."""
        return max(party.virtual_ns, self.reached_ns)

    def in_turn(self, waiting: Iterable[TimeParty]) -> set[TimeParty]:
        """Those of the parties that wait whose turn it is: of them the most urgent goes first."""
        turns_ns = {party: self.turn_ns(party) for party in waiting}
        least_ns = min(turns_ns.values(), default=0.0)
        return {
            party
            for party, turn_ns in turns_ns.items()
            if (turn_ns - least_ns) * party.share <= self.rules.ahead_ns
        }

    def charge(self, party: TimeParty, run_ns: int) -> None:
        """A party has been given so much backend time."""
        turn_ns = self.turn_ns(party)
        party.virtual_ns = turn_ns + run_ns / party.share
        reached_ns = turn_ns - self.rules.ahead_ns / party.share
        self.reached_ns = max(self.reached_ns, reached_ns)
