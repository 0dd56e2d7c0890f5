"""The rules that policies learn from first."""

import numpy as np

from fermata.foundation.units import SECOND
from fermata.router.policies.rl.batching import LIMITS, SIZES
from fermata.router.policies.rl.observation import Floats
from fermata.simulator.learning.lanes import Ints
from fermata.simulator.learning.system import TrainingSystem

UTILISATION = 0.75
"""Load of the better instances: uneven arrivals need room."""
SHARE_MIN = 0.002
"""No share is quite 0, since the softmax of no scores is."""


class Teacher:
    """Ways to share a slot's requests, each right for one belief about the workload: the most
    accurate instances first, each up to a utilisation, less what it has already; the last tier
    takes the rest."""

    def __init__(self, system: TrainingSystem, slot_ns: int, batching: bool) -> None:
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

    def candidates(self, lengths: Floats) -> Floats:
        """Every rule's shares, by rule, copy and instance, with the requests already there."""
        rates = sorted(self.system.rates_rps)
        return np.stack([self.shares(rps, lengths) for rps in rates])

    def shares(self, rps: float, lengths: Floats) -> Floats:
        """By copy and instance, for so many requests a second."""
        expected = rps * self.slot_s
        left = np.ones(len(lengths))
        shares = np.zeros(lengths.shape)
        for tier in self.order:
            mine = np.flatnonzero(self.tier == tier)
            if tier == self.order[-1]:
                shares[:, mine] = left[:, None] / len(mine)
                break
            room = UTILISATION * self.capacity[tier] * self.slot_s - lengths[:, mine]
            wanted = np.maximum(0.0, room) / expected
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
