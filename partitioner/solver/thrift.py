"""Fewer moves for a plan that is nearly as good: each costs a load, and a little balance is not
worth one."""

import random
from itertools import combinations

import numpy as np

from fermata.partitioner.solver.balance import Balance, Homes
from fermata.partitioner.solver.search import SMALL_GAIN, LocalSearch


def with_fewer_moves(
    balance: Balance, best: Homes, start: Homes, until: float, rng: random.Random
) -> Homes:
    """The cheapest found that is within the problem's slack of the best one. `start` has today's
    models at home."""
    near = _Near(balance, best)
    searched = LocalSearch(balance, start, rng).run(until, enough=near.will_do)
    found = [near.taken_back(near.renumbered(homes)) for homes in (searched, best)]
    return min((each for each in found if near.will_do(each)), key=balance.cost, default=best)


class _Near:
    """Plans that leave no sub-cluster much further off than the best one does. The largest
    deviation would not do: where that of one cannot be helped, it hides all others."""

    def __init__(self, balance: Balance, best: Homes) -> None:
        self.balance = balance
        self.off = balance.off(best) + balance.problem.slack

    def will_do(self, homes: Homes) -> bool:
        return bool((self.balance.off(homes) <= self.off).all()) and self.balance.feasible(homes)

    def renumbered(self, homes: Homes) -> Homes:
        """The same parts, each on the sub-cluster where most of it is today: two that change
        places balance no better than two that stay."""
        balance = self.balance
        cost = np.zeros((balance.places, balance.places))
        np.add.at(cost, homes, balance.move_cost)
        place = np.arange(balance.places)
        gained = True
        while gained:
            gained = False
            for one, other in combinations(range(balance.places), 2):
                here, there = place[one], place[other]
                gain = cost[one, here] + cost[other, there] - cost[one, there] - cost[other, here]
                if gain > SMALL_GAIN:
                    place[one], place[other] = there, here
                    if self.will_do(place[homes]):
                        gained = True
                    else:
                        place[one], place[other] = here, there
        renumbered: Homes = place[homes]
        return renumbered

    def taken_back(self, homes: Homes) -> Homes:
        """The same without moves that bring little: those that cost most are tried first."""
        balance, homes = self.balance, homes.copy()
        if not self.will_do(homes):
            return homes
        moved = np.flatnonzero((balance.current >= 0) & (homes != balance.current))
        costs = balance.move_cost[moved, homes[moved]]
        for model in moved[np.argsort(-costs, kind="stable")]:
            there, homes[model] = homes[model], balance.current[model]
            if not self.will_do(homes):
                homes[model] = there
        return homes
