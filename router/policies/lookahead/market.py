"""Backend time that applications share: who is to have which part of it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fermata.router.policies.central.accuracy_hull import Point, concave_hull, price
from fermata.router.policies.lookahead.values import ValueTable

NOTHING = Point(-1, 1, 0, 0.0)
"""A request that is dropped: it takes no time and earns nothing."""
TABLES_MAX = 512
"""Solved tables that are kept."""
PART_MIN = 1e-4


@dataclass(slots=True, eq=False)
class Stake:
    """One application in the market."""

    steps: list[tuple[float, float]] = field(default_factory=list)
    """(accuracy for a nanosecond, nanoseconds) of one request, from nothing to the best."""
    rate: float = 0.0
    """Arrivals a nanosecond; 0: silent."""
    end_in_ns: float = 0.0
    part: float = 1.0
    """Its part of all backend time."""
    backlog_ns: float = 0.0
    """Time of the pool that its waiting requests stand for."""
    left_free: int = 0
    """Backends that it leaves to applications whose requests have far less time."""

    def offer(self, points: Sequence[Point]) -> None:
        """Set what a request can be given."""
        hull = concave_hull([NOTHING, *points])
        self.steps = [
            (price(cheap, dear), dear.each_ns - cheap.each_ns) for cheap, dear in pairwise(hull)
        ]

    @property
    def wanted(self) -> float:
        """Backends that would give every request the best."""
        return self.rate * sum(time_ns for _, time_ns in self.steps)


class Market:
    """Applications that share the backends of one pool, and the tables solved for them.

    Backend time goes where it earns most: step by step along each application's hull. Where there
    is enough for all, each has a part in proportion to its wish.
    """

    reserve: float = 1.0
    """Requests with little time cannot wait for long batches to end. For each root of the backends
    that they need, others leave this many free."""
    tighter: float = 0.5
    """Applications with less than this share of one's time are tighter."""

    def __init__(self) -> None:
        self.stakes: list[Stake] = []
        self.tables: dict[object, ValueTable] = {}
        self.waiting_ns: dict[float, float] = {}
        """Time of the pool that waiting requests stand for, by the time that they have."""

    def join(self) -> Stake:
        stake = Stake()
        self.stakes.append(stake)
        return stake

    def leave(self, stake: Stake) -> None:
        self.set_backlog(stake, 0.0)
        self.stakes.remove(stake)

    def set_backlog(self, stake: Stake, backlog_ns: float) -> None:
        """Count an application's waiting requests anew."""
        if backlog_ns != stake.backlog_ns:
            known_ns = self.waiting_ns.get(stake.end_in_ns, 0.0)
            self.waiting_ns[stake.end_in_ns] = known_ns + backlog_ns - stake.backlog_ns
            stake.backlog_ns = backlog_ns

    def set_end(self, stake: Stake, end_in_ns: float) -> None:
        """Change the time that an application's requests have."""
        if end_in_ns != stake.end_in_ns:
            backlog_ns = stake.backlog_ns
            self.set_backlog(stake, 0.0)
            stake.end_in_ns = end_in_ns
            self.set_backlog(stake, backlog_ns)

    def ahead_ns(self, end_in_ns: float) -> float:
        """Time of the pool that goes to waiting requests before those with so much time; of
        requests that have more, as much as is due earlier."""
        ahead_ns = 0.0
        for theirs_ns, time_ns in self.waiting_ns.items():
            if theirs_ns > 0.0:
                ahead_ns += time_ns * min(1.0, end_in_ns / theirs_ns)
        return ahead_ns

    def part_of(self, stake: Stake, backends: float) -> float:
        """The part of all backend time that an application is to have."""
        others = [each for each in self.stakes if each is not stake and each.rate > 0.0]
        if not others or stake.rate <= 0.0:
            return 1.0
        wanted = stake.wanted + sum(each.wanted for each in others)
        if wanted <= backends:
            part = stake.wanted / wanted
        else:
            part = self._auction(stake, others, backends) / backends
        needed = sum(
            each.part * backends
            for each in others
            if each.end_in_ns < self.tighter * stake.end_in_ns
        )
        free = self.reserve * math.sqrt(needed)
        stake.left_free = min(int(backends) - 1, math.ceil(free)) if needed > 0.0 else 0
        part *= max(0.3, 1.0 - free / backends)
        return min(1.0, max(PART_MIN, part))

    def _auction(self, stake: Stake, others: Iterable[Stake], backends: float) -> float:
        """Backends that the application has, if all time goes to what earns most."""
        lots = [(worth, stake.rate * time_ns, True) for worth, time_ns in stake.steps]
        for each in others:
            lots += [(worth, each.rate * time_ns, False) for worth, time_ns in each.steps]
        lots.sort(key=lambda lot: -lot[0])
        mine, left, place = 0.0, backends, 0
        while place < len(lots) and left > 0.0:
            # Those that earn alike have equal parts of what is left.
            alike = place
            while alike < len(lots) and lots[alike][0] >= lots[place][0] * (1.0 - 1e-9):
                alike += 1
            asked = sum(lot[1] for lot in lots[place:alike])
            given = min(1.0, left / asked) if asked > 0.0 else 1.0
            mine += given * sum(lot[1] for lot in lots[place:alike] if lot[2])
            left -= given * asked
            place = alike
        return max(mine, 0.02 * stake.rate * stake.steps[0][1])

    def keep(self, key: object, table: ValueTable) -> None:
        if len(self.tables) >= TABLES_MAX:
            self.tables.pop(next(iter(self.tables)))
        self.tables[key] = table
