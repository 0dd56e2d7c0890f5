"""Backend time that applications share: who is to have which part of it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist

from fermata.router.policies.central.accuracy_hull import Point, concave_hull, price
from fermata.router.policies.lookahead.values import ValueTable

NOTHING = Point(-1, 1, 0, 0.0)
"""A request that is dropped: it takes no time and earns nothing."""
TABLES_MAX = 512
"""Solved tables that are kept."""
PART_MIN = 1e-4
CHANCE_MAX = 0.999
NORMAL = NormalDist()
Lot = tuple[float, float, bool]
"""Worth of backend time, backends asked for at it, and whether it is the asking application's."""


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
    bought: float = 1.0
    """The part that the market gave it, before it left some to others."""
    left: float = 0.0
    """The part that it leaves to applications whose requests have far less time."""
    left_free: int = 0
    """Backends that it leaves idle for them."""
    tighter: float = 0.0
    """The part that those have bought."""

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
    left_max: float = 0.7
    """The largest share of its part that an application leaves to tighter ones."""

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
            stake.bought = 1.0
            return 1.0
        wanted = stake.wanted + sum(each.wanted for each in others)
        if wanted <= backends:
            stake.bought = stake.wanted / wanted
        else:
            stake.bought = self._auction(stake, others, backends) / backends
        tighter = [each for each in others if each.end_in_ns < self.tighter * stake.end_in_ns]
        stake.tighter = sum(each.bought for each in tighter)
        free = self.reserve * math.sqrt(stake.tighter * backends)
        stake.left_free = min(int(backends) - 1, math.ceil(free)) if tighter else 0
        stake.left = stake.bought * min(self.left_max, free / backends)
        left = sum(
            each.left * stake.bought / each.tighter
            for each in others
            if stake.end_in_ns < self.tighter * each.end_in_ns and each.tighter > 0.0
        )
        return min(1.0, max(PART_MIN, stake.bought - stake.left + left))

    def _auction(self, stake: Stake, others: Iterable[Stake], backends: float) -> float:
        """Backends that the application has, if all time goes to what earns most."""
        lots = [(_rounded(worth), stake.rate * time_ns, True) for worth, time_ns in stake.steps]
        for each in others:
            lots += [(_rounded(worth), each.rate * time_ns, False) for worth, time_ns in each.steps]
        lots.sort(key=lambda lot: -lot[0])
        price, above, spare = _clear(lots, backends)
        # Above the price everyone has what is asked for, and something to spare.
        given = min(backends, above + spare)
        mine = 0.0
        if above > 0.0:
            mine = given * sum(asked for worth, asked, own in lots if own and worth > price) / above
        # Those who ask at the price have equal parts of what is left.
        last = [(asked, own) for worth, asked, own in lots if worth == price]
        wished = sum(asked for asked, _ in last)
        if wished > 0.0:
            mine += (backends - given) * sum(asked for asked, own in last if own) / wished
        return max(mine, 0.02 * stake.rate * stake.steps[0][1])

    def keep(self, key: object, table: ValueTable) -> None:
        if len(self.tables) >= TABLES_MAX:
            self.tables.pop(next(iter(self.tables)))
        self.tables[key] = table


def _clear(lots: Sequence[Lot], backends: float) -> tuple[float, float, float]:
    """The price at which all time is given away, the backends asked for above it, and how many
    to add to them. As many as keep the chance of a shortage to the price over what would be lost
    (Littlewood's rule of protected seats)."""
    asked_for, price = 0.0, 0.0
    for worth, asked, _ in lots:
        asked_for += asked
        if asked_for > backends:
            price = worth
            break
    above = until = 0.0
    for worth, asked, _ in lots:
        if worth > price:
            above += asked
            until = max(until, above + _deviate(1.0 - price / worth) * math.sqrt(above))
    return price, above, until - above


def _deviate(chance: float) -> float:
    """Standard deviations that a normal figure exceeds with 1 - chance; 0 up to one half."""
    return NORMAL.inv_cdf(min(chance, CHANCE_MAX)) if chance > 0.5 else 0.0


def _rounded(worth: float) -> float:
    """Figures that differ by rounding alone become equal."""
    return float(f"{worth:.9e}")
