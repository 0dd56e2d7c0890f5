"""A good assignment fast: greedy, then exchanges between two sub-clusters at a time."""

import random
import time
from collections.abc import Callable
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fermata.partitioner.solver.balance import Balance, Floats, Homes, over
from fermata.partitioner.solver.options import SEARCH

BROKEN = 1e3
"""Weight of a broken limit against imbalance: feasible comes first."""
SMALL_GAIN = 1e-13
"""Gain below which an exchange is rounding."""

Clock = Callable[[], float]
Enough = Callable[[Homes], bool]


def greedy(balance: Balance) -> Homes:
    """Largest models first, each to the least harm; today's models stay at home.

    What is left over for a sub-cluster is looked at in rate, memory and limits at once.
    """
    homes = np.full(balance.count, -1, np.int64)
    size = balance.load / balance.load_target.max()
    size = np.maximum(size, balance.static_bytes / balance.static_target.max())
    loads, rates = np.zeros(balance.places), np.zeros(balance.places)
    statics, dynamic = np.zeros(balance.places), np.zeros(balance.places)
    at_home = balance.current >= 0
    for model in sorted(range(balance.count), key=lambda each: (not at_home[each], -size[each])):
        if at_home[model] and balance.allowed[model, balance.current[model]]:
            place = int(balance.current[model])
        else:
            load = (loads + balance.load[model]) / balance.load_target
            static = (statics + balance.static_bytes[model]) / balance.static_target
            peak = np.maximum(dynamic, balance.dynamic_bytes[model])
            memory = statics + balance.static_bytes[model] + peak
            broken = over(rates + balance.rate_rps[model], balance.rate_max)
            broken += over(memory, balance.memory_max) + ~balance.allowed[model]
            harm = np.maximum(load, balance.weight * static) + 0.1 * (load + static)
            place = int(np.argmin(harm + BROKEN * broken))
        homes[model] = place
        loads[place] += balance.load[model]
        rates[place] += balance.rate_rps[model]
        statics[place] += balance.static_bytes[model]
        dynamic[place] = max(dynamic[place], balance.dynamic_bytes[model])
    return homes


class Exchange:
    """Sets of at most two models that may leave one sub-cluster for another."""

    __slots__ = ("cost", "dynamic_left", "dynamic_sent", "load", "members", "rate", "static")

    def __init__(
        self,
        balance: Balance,
        models: npt.NDArray[np.int64],
        here: int,
        there: int,
        rng: random.Random,
        pairs_max: int,
    ) -> None:
        chosen = [int(model) for model in models if balance.allowed[model, there]]
        pairs = list(combinations(chosen, 2)) if pairs_max else []
        if len(pairs) > pairs_max:
            pairs = rng.sample(pairs, pairs_max)
        none = len(balance.rate_rps)
        members = [(none, none), *((model, none) for model in chosen), *pairs]
        self.members = np.array(members, np.int64)
        first, second = self.members[:, 0], self.members[:, 1]
        self.rate = _padded(balance.rate_rps)[first] + _padded(balance.rate_rps)[second]
        self.load = _padded(balance.load)[first] + _padded(balance.load)[second]
        static = _padded(balance.static_bytes)
        self.static = static[first] + static[second]
        extra = _padded(balance.move_cost[:, there] - balance.move_cost[:, here])
        self.cost = extra[first] + extra[second]
        dynamic = _padded(balance.dynamic_bytes)
        self.dynamic_sent = np.maximum(dynamic[first], dynamic[second])
        # The largest that stays is one of the three largest, whichever two leave.
        largest = models[np.argsort(-balance.dynamic_bytes[models], kind="stable")[:3]]
        self.dynamic_left = np.zeros(len(self.members))
        for model in largest[::-1]:
            stays = (first != model) & (second != model)
            self.dynamic_left[stays] = balance.dynamic_bytes[model]


def _padded(values: Floats) -> Floats:
    return np.append(values, 0.0)


class LocalSearch:
    """Improves an assignment by the best exchange between two sub-clusters, again and again.

    It minimises the sum of squared deviations. Unlike the largest deviation, that orders the
    exchanges of every pair of sub-clusters.
    """

    def __init__(self, balance: Balance, homes: Homes, rng: random.Random, cost_price: float = 0.0):
        self.balance = balance
        self.homes = homes.copy()
        self.rng = rng
        self.cost_price = cost_price
        """Worth of a unit of load cost against imbalance, where the cost is bounded."""
        self.loads = balance.loads(homes)
        self.rates = balance.rates(homes)
        self.statics = balance.statics(homes)
        self.cost = balance.cost(homes)

    def run(
        self, until: float, clock: Clock = time.monotonic, enough: Enough | None = None
    ) -> Homes:
        """Search until then, until nothing gives, or until it is good enough; the assignment as it
        is at the end."""
        # Single models first: their exchanges are few, and most of the gain. Pairs of models are
        # sampled, so that a round without a gain does not yet mean that there is none.
        for pairs_max, patience in ((0, 1), (SEARCH.pairs_sampled, SEARCH.patience)):
            calm = 0
            while calm < patience and clock() < until and self.balance.places > 1:
                gained = False
                for here, there in self._pairs():
                    if clock() >= until or (enough is not None and enough(self.homes)):
                        return self.homes
                    gained |= self.improve(here, there, pairs_max)
                calm = 0 if gained else calm + 1
        return self.homes

    def _pairs(self) -> list[tuple[int, int]]:
        """Every pair of sub-clusters, the most unequal ones first."""
        load = self.loads / self.balance.load_target + self.statics / self.balance.static_target
        pairs = list(combinations(range(self.balance.places), 2))
        return sorted(pairs, key=lambda pair: -abs(load[pair[0]] - load[pair[1]]))

    def improve(self, here: int, there: int, pairs_max: int) -> bool:
        """Make the best exchange between these two, if there is one that gains."""
        balance = self.balance
        mine = np.flatnonzero(self.homes == here)
        theirs = np.flatnonzero(self.homes == there)
        give = Exchange(balance, mine, here, there, self.rng, pairs_max)
        take = Exchange(balance, theirs, there, here, self.rng, pairs_max)
        harm = self._harm(here, there, give, take)
        best = int(np.argmin(harm))
        if harm.flat[best] >= harm[0, 0] - SMALL_GAIN:
            return False
        row, column = divmod(best, harm.shape[1])
        self._make(give, row, there)
        self._make(take, column, here)
        moved_load = give.load[row] - take.load[column]
        moved_rate = give.rate[row] - take.rate[column]
        moved_static = give.static[row] - take.static[column]
        self.loads[here] -= moved_load
        self.loads[there] += moved_load
        self.rates[here] -= moved_rate
        self.rates[there] += moved_rate
        self.statics[here] -= moved_static
        self.statics[there] += moved_static
        self.cost += float(give.cost[row] + take.cost[column])
        return True

    def _make(self, exchange: Exchange, row: int, target: int) -> None:
        for model in exchange.members[row]:
            if model < self.balance.count:
                self.homes[model] = target

    def _harm(self, here: int, there: int, give: Exchange, take: Exchange) -> Floats:
        """Squared deviations of the two after every exchange, and the limits it breaks."""
        balance = self.balance
        load = give.load[:, None] - take.load[None, :]
        rate = give.rate[:, None] - take.rate[None, :]
        static = give.static[:, None] - take.static[None, :]
        harm = np.zeros_like(rate)
        for place, sign, left, sent in ((here, -1.0, give, take), (there, 1.0, take, give)):
            rates = self.rates[place] + sign * rate
            statics = self.statics[place] + sign * static
            loads = self.loads[place] + sign * load
            harm += (loads / balance.load_target[place] - 1.0) ** 2
            harm += (balance.weight * (statics / balance.static_target[place] - 1.0)) ** 2
            stays, comes = left.dynamic_left, sent.dynamic_sent
            peak = (
                np.maximum(stays[:, None], comes[None, :])
                if place == here
                else np.maximum(comes[:, None], stays[None, :])
            )
            harm += BROKEN * over(rates, np.full(1, balance.rate_max[place]))
            harm += BROKEN * over(statics + peak, np.full(1, balance.memory_max[place]))
        if np.isfinite(balance.cost_max):
            cost = self.cost + give.cost[:, None] + take.cost[None, :]
            harm += self.cost_price * cost
            harm += BROKEN * over(cost, np.full(1, balance.cost_max))
        return harm
