"""The rule that policies learn from first: it knows the state of the workload, as no policy may."""

import numpy as np

from router.core.units import SECOND
from router.policies.rl.batching import LIMITS, SIZES
from router.policies.rl.observation import Floats
from simulator.learning.lanes import Ints
from simulator.learning.system import System

UTILISATION = 0.75
"""Of the better instances: arrivals drawn at random need room to be uneven."""
SHARE_MIN = 0.002
"""No share is quite 0, since the softmax of no scores is."""


class Teacher:
    """The most accurate instances first, each up to its utilisation, less what it has already;
    the last tier takes the rest."""

    def __init__(self, system: System, slot_ns: int, batching: bool) -> None:
        self.system = system
        self.slot_s = slot_ns / SECOND
        self.tier = np.array(system.tiers)
        self.order = sorted(set(system.tiers), key=lambda tier: -system.accuracy[tier])
        size = max(SIZES) if batching else 1
        self.capacity = np.array(
            [
                min(size, len(table) - 1) * SECOND / table[min(size, len(table) - 1)]
                for table in system.batch_ns
            ]
        )
        self.limits = LIMITS.index((1, size))
        best = self.order[0]
        self.best_rps = float(self.capacity[best] * (self.tier == best).sum())
        """What the most accurate instances can serve."""

    def shares(self, state: Ints, lengths: Floats) -> Floats:
        """By copy and instance, for the states of the workload and the requests already there."""
        expected = np.array(self.system.rates_rps)[state] * self.slot_s
        left = np.ones(len(state))
        shares = np.zeros(lengths.shape)
        for tier in self.order:
            mine = np.flatnonzero(self.tier == tier)
            if tier == self.order[-1]:
                shares[:, mine] = left[:, None] / len(mine)
                break
            room = UTILISATION * self.capacity[tier] * self.slot_s - lengths[:, mine]
            wanted = np.maximum(0.0, room) / expected[:, None]
            total = wanted.sum(axis=1, keepdims=True)
            # With more room than requests all go here, evenly.
            given = np.where(total > left[:, None], left[:, None] / len(mine), wanted)
            shares[:, mine] = given
            left = np.maximum(0.0, left - given.sum(axis=1))
        shares = np.maximum(shares, SHARE_MIN)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def choices(self, copies: int) -> Ints:
        """Indices of `LIMITS`, by copy and tier: batches as large as there are requests for."""
        return np.full((copies, len(self.system.accuracy)), self.limits)
